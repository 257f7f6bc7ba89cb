"""Records -> files for other programs: one small module for each format, and `export`."""
