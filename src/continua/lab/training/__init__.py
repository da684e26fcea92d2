"""Training in the lab: finite networks by the batch, and their exact limit."""

from continua.lab.training.adamw_limit import AdamWLimit
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.compactness import AdamWCompactness
from continua.lab.training.problem import Problem, UpdateRule
from continua.lab.training.width import DimensionFree, RMSScaling

__all__ = [
    "AdamWCompactness", "AdamWLimit", "AgainstLimit", "DimensionFree", "Problem", "RMSScaling", "UpdateRule",
]  # fmt: skip
