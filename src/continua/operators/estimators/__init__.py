"""Estimates of the token integral for long sequences, at a cost of O(T m)."""

from continua.operators.estimators.debiased import Debiased
from continua.operators.estimators.draws import AbstractDraw, Independent, Lattice, Sobol
from continua.operators.estimators.nodes import LogTokens
from continua.operators.estimators.nystrom import Controlled, Nystrom
from continua.operators.estimators.subset import Subset

__all__ = [
    "AbstractDraw", "Controlled", "Debiased", "Independent", "Lattice", "LogTokens", "Nystrom", "Sobol", "Subset",
]  # fmt: skip
