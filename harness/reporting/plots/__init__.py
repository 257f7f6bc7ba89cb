"""Pictures of scores and of features: a file for each, and `plot`, which draws them."""
