"""Merging methods: one file each, registered with `harness.merger`."""
