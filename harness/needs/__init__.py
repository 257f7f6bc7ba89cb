"""What methods may ask for beside weights, one file each; every file is scanned."""
