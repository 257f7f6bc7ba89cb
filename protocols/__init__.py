"""Evaluation protocols: one file each, registered with `harness.protocol`."""
