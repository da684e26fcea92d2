"""Clusters of tokens on the sphere: exact equations, modes, metastability, collapse."""
