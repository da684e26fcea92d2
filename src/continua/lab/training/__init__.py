"""Training in the lab: finite networks by the batch, and their exact limit."""

from continua.lab.training.adamw_limit import AdamWLimit
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.compactness import AdamWCompactness
from continua.lab.training.dimension_free import DimensionFree
from continua.lab.training.problem import Problem, Training

__all__ = [
    "AdamWCompactness", "AdamWLimit", "AgainstLimit", "DimensionFree", "Problem", "Training",
]  # fmt: skip
