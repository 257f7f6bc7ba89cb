"""A run -> records: a model and its references, read on tasks under protocols."""
