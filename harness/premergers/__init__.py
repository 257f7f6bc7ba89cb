"""Pre-merging methods: experts in, experts out. One file each, registered with `premerge`."""
