"""Models whose states are functions along the embedding axis: coefficients in, functions between, coefficients out."""

from typing import Any, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.model.embedding import AbstractEmbedding
from continua.model.lifted import AbstractLifted
from continua.model.readout import AbstractReadout
from continua.spaces import AbstractBasis, Axis, Cloud


@final
class Synthesised(AbstractLifted):
    """X(0, t, d_a) = sum_i phi_i(d_a) u_i(t): the inner embedding gives coefficients, this the function at the nodes.

    The inner width is modes * channels; `at(nodes)` is the same embedding at another resolution.
    """

    def __init__(self, inner: AbstractEmbedding, axis: Axis, basis: AbstractBasis) -> None:
        super().__init__()
        _check_modes("inner", inner.width, axis, basis)
        self.inner, self.axis, self.basis = inner, axis, basis
        axis.synthesis(basis)  # refuses an axis that does not resolve the basis

    @property
    def width(self) -> int:
        return self.axis.width

    def lift(self, cloud: Cloud) -> Cloud:
        coefficients = cloud.points.unflatten(-1, (self.basis.size, -1))
        synthesis, _ = self.axis.transforms(self.basis, coefficients)
        functions = torch.einsum("ai,btic->btac", synthesis, coefficients)
        return cloud.at(functions.flatten(2))

    def at(self, nodes: int) -> "Synthesised":
        """The same embedding, parameters shared, at another resolution."""
        return Synthesised(self.inner, self.axis.at(nodes), self.basis)

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "axis": self.axis, "basis": self.basis}


@final
class Analysed(AbstractReadout):
    """The inner readout of the coefficients u_i(t) = sum_a v_a phi_i(d_a) X(Z, t, d_a)."""

    def __init__(self, inner: AbstractReadout, axis: Axis, basis: AbstractBasis) -> None:
        super().__init__()
        _check_modes("inner", inner.width, axis, basis)
        self.inner, self.axis, self.basis = inner, axis, basis
        axis.synthesis(basis)  # refuses an axis that does not resolve the basis

    @property
    def width(self) -> int:
        return self.axis.width

    @property
    def outputs(self) -> int:
        return self.inner.outputs

    @property
    def per_token(self) -> bool:
        return self.inner.per_token

    def forward(self, cloud: Cloud) -> Tensor:
        functions = cloud.points.unflatten(-1, (self.axis.nodes, -1))
        _, analysis = self.axis.transforms(self.basis, functions)
        coefficients = torch.einsum("ia,btac->btic", analysis, functions)
        return self.inner(cloud.at(coefficients.flatten(2)))

    def at(self, nodes: int) -> "Analysed":
        """The same readout, parameters shared, at another resolution."""
        return Analysed(self.inner, self.axis.at(nodes), self.basis)

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "axis": self.axis, "basis": self.basis}


def axis_of(embedding: AbstractEmbedding) -> Axis | None:
    """The axis along which the states of an embedding are functions; `None` where they are plain vectors."""
    if isinstance(embedding, Synthesised):
        return embedding.axis
    axis = axis_of(embedding.inner) if isinstance(embedding, AbstractLifted) else None
    return axis if axis is not None and axis.width == embedding.width else None


def _check_modes(name: str, width: int, axis: Axis, basis: AbstractBasis) -> None:
    if width != basis.size * axis.channels:
        cure = f"Build it with width = modes * channels = {basis.size * axis.channels}."
        reject(name, width, f"its width is not that of {basis.size} modes with {axis.channels} channels", cure)
