"""Clusters of tokens on the sphere: exact equations, modes, metastability, collapse."""

from continua.lab.clusters.experiment import Clusters, FastestMode, Overlap
from continua.lab.clusters.particles import check_question

__all__ = [
    "Clusters", "FastestMode", "Overlap", "check_question",
]  # fmt: skip
