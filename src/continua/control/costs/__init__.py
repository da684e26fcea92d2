"""Running costs: what a solve pays on its way (docs/mathematics.md, section 4)."""

from continua.control.costs.cost import AbstractRunningCost
from continua.control.costs.jacobian import JacobianFrobenius, JacobianSpectral
from continua.control.costs.motion import KineticEnergy, Length
from continua.control.costs.parameters import FieldSize, HeadNegentropy

__all__ = [
    "AbstractRunningCost",
    "FieldSize",
    "HeadNegentropy",
    "JacobianFrobenius",
    "JacobianSpectral",
    "KineticEnergy",
    "Length",
]
