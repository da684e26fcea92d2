"""The embedding axis: a token's state as a function on [0, 1] with channels, known at quadrature nodes."""

import dataclasses
import functools
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.spaces.bases import AbstractBasis
from continua.spaces.quadrature import AbstractNodalRule, Midpoint


@final
@dataclasses.dataclass(frozen=True)
class Axis:
    """X(t, d_a, c): `nodes` d_a with weights v_a of a rule, times `channels` (docs/mathematics.md, section 2).

    A state of width nodes * channels holds the channels of the first node, then those of the second, and so on.
    """

    nodes: int
    channels: int
    rule: AbstractNodalRule = Midpoint()

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("channels", self.channels)):
            if value < 1:
                reject(name, value, "a function needs at least one", f"Pass {name} >= 1.")

    @property
    def width(self) -> int:
        """Numbers in one token's state."""
        return self.nodes * self.channels

    def at(self, nodes: int) -> "Axis":
        """The same axis at another resolution."""
        return dataclasses.replace(self, nodes=nodes)

    def points(self) -> Float[Tensor, " nodes"]:
        """The nodes d_a."""
        return _rule(self.rule, self.nodes)[0]

    def weights(self, like: Tensor | None = None) -> Float[Tensor, " nodes"]:
        """The weights v_a, which sum to one."""
        weights = _rule(self.rule, self.nodes)[1]
        return weights if like is None else weights.to(like.detach())

    def synthesis(self, basis: AbstractBasis) -> Float[Tensor, "nodes modes"]:
        """phi_i(d_a): from coefficients to the nodes."""
        values = basis.evaluate(self.points())
        gram = values.T @ (self.weights()[:, None] * values)
        defect = float((gram - torch.eye(basis.size, dtype=gram.dtype)).abs().max())
        if defect > 1e-8:
            cure = "Use more nodes, fewer modes, or an orthonormal basis (Cosine, Fourier, Legendre with Gauss nodes)."
            why = f"{self.nodes} nodes do not resolve {basis.size} modes: they are orthonormal only to {defect:.1e}"
            reject("nodes", self.nodes, why, cure)
        return values

    def analysis(self, basis: AbstractBasis) -> Float[Tensor, "modes nodes"]:
        """v_a phi_i(d_a): from the nodes to coefficients, the inverse of `synthesis` on the span of the basis."""
        return (self.weights()[:, None] * self.synthesis(basis)).T

    def transforms(
        self, basis: AbstractBasis, like: Tensor
    ) -> tuple[Float[Tensor, "nodes modes"], Float[Tensor, "modes nodes"]]:
        """Synthesis and analysis in the dtype and on the device of `like`, made once."""
        return _transforms(self, basis, like.dtype, like.device)


# What is kept must serve training too, whoever asked first: hence no inference tensors.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def _rule(rule: AbstractNodalRule, nodes: int) -> tuple[Tensor, Tensor]:
    return rule.nodes(nodes)


@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def _transforms(axis: Axis, basis: AbstractBasis, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return axis.synthesis(basis).to(device, dtype), axis.analysis(basis).to(device, dtype)
