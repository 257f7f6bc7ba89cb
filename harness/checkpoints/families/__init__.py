"""Architectures as data: one file for each known family, and rules for others."""
