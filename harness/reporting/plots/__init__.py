"""Pictures of scores and of features: one file for each, a verb that draws them."""
