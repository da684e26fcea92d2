"""Running costs: what a solve pays on its way (docs/mathematics.md, section 4)."""

from continua.control.costs.cost import AbstractRunningCost
from continua.control.costs.jacobian import JacobianFrobenius, JacobianSpectral
from continua.control.costs.motion import KineticEnergy, Length
from continua.control.costs.parameters import FieldSize, HeadNegentropy
from continua.control.costs.sampled import AtRandomDepth

__all__ = [
    "AbstractRunningCost", "AtRandomDepth", "FieldSize", "HeadNegentropy", "JacobianFrobenius", "JacobianSpectral",
    "KineticEnergy", "Length",
]  # fmt: skip
