"""A model over rows: features, Gram matrices, Fisher information; each made once and kept."""
