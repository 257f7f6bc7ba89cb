"""What methods may need beside weights, one file each; every file is scanned."""
