"""A stand-in for a GPU, on the processor: what mixes devices fails here as it would there."""
