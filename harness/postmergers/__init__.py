"""Post-merging methods: a merge in, a merge out. One file each, registered with `postmerge`."""
