"""What an architecture is, as data: one file for each that has a name, rules for others."""
