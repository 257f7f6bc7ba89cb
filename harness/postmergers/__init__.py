"""Post-merging methods, a merge in, a merge out: one file each, by `harness.postmerge`."""
