"""Pre-merging methods, experts in, experts out: one file each, by `harness.premerge`."""
