"""A task and a split -> rows, draws of rows, and scores of what is predicted for them."""
