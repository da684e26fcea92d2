"""Calculus of variations on the sphere: actions of paths, their extremals, and what layers do with them."""
