"""A field that evaluates each depth once."""

from typing import Any, final

import torch

from continua.core.shapes import Depth, Tensor
from continua.fields.field import AbstractField
from continua.operators import Theta
from continua.spaces import AbstractParameterSpace


@final
class MemoisedField(AbstractField):
    """theta(z) of `inner`, kept for every depth it was asked at: for many solves on one grid with the same weights.

    Without a gradient, and blind to weights that change before `forget`. It holds one theta for each evaluation of a
    solve, as a network of so many layers would. One depth for each sequence is not kept.
    """

    def __init__(self, inner: AbstractField) -> None:
        super().__init__()
        self.inner, self.spec = inner, inner.spec
        self._known: dict[tuple[Depth, Depth | None], Theta] = {}

    def forget(self) -> None:
        """Evaluates every depth anew: the weights have changed."""
        self._known.clear()

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.inner.breaks

    @property
    def reach(self) -> float:
        return self.inner.reach

    @torch.no_grad()
    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        if isinstance(z, Tensor) or isinstance(inside, Tensor):
            return self.inner(z, inside)
        if (z, inside) not in self._known:
            self._known[z, inside] = self.inner(z, inside)
        return self._known[z, inside]

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"inner.{name}": space for name, space in self.inner.parameter_spaces().items()}

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner}
