"""Running models over rows: features, Gram matrices, Fisher information; results are cached."""
