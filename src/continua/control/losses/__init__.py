"""Terminal losses: what the end of a solve is held against."""

from continua.control.losses.cross_entropy import CrossEntropy, MaskedToken, NextToken
from continua.control.losses.loss import AbstractLoss
from continua.control.losses.squared import MeanSquaredError, RelativeL2

__all__ = [
    "AbstractLoss", "CrossEntropy", "MaskedToken", "MeanSquaredError", "NextToken", "RelativeL2",
]  # fmt: skip
