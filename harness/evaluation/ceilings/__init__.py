"""References with parts of their own for each task. One file each."""
