"""Ceilings, one file each: references with parts for each task."""
