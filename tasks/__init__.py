"""Data sets: one file per family, each registering `harness.Task` values."""
