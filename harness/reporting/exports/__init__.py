"""Records -> files for other programs: a small module for each format, and `export`."""
