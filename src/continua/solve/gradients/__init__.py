"""Three gradients of one solve; the recommended choice first: `Checkpointed`, `Direct`, `Backsolve`."""

from continua.solve.gradients.backsolve import Backsolve
from continua.solve.gradients.checkpointed import Checkpointed
from continua.solve.gradients.direct import Direct
from continua.solve.gradients.gradient import AbstractGradient

__all__ = [
    "AbstractGradient", "Backsolve", "Checkpointed", "Direct",
]  # fmt: skip
