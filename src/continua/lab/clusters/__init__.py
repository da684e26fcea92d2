"""Clusters of tokens on the sphere: exact equations, modes, metastability, collapse."""

from continua.lab.clusters.experiment import Clusters
from continua.lab.clusters.questions import FastestMode, Overlap

__all__ = [
    "Clusters", "FastestMode", "Overlap",
]  # fmt: skip
