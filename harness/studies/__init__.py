"""A study: one YAML -> a plan of steps -> experts, merges, records and boards."""
