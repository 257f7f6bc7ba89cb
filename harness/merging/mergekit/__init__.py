"""mergekit (Goddard et al. 2024, arXiv:2403.13257): its YAML, its folders, its methods."""
