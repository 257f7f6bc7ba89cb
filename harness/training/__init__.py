"""A base and a task -> an expert."""
