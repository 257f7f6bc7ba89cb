"""Records -> what other programs read: one small module for each format, and `export`."""
