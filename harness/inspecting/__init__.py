"""Several models -> the distances of their weights and the similarity of their task vectors."""
