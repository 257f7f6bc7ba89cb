"""Is a method lawful, and as good as recorded? Laws, toys, miniatures and baselines."""
