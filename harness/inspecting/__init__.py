"""Models beside one another -> how far apart they are, and how alike what they learned is."""
