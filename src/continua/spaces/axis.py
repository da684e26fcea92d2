"""The embedding axis: a token's state as a function on [0, 1] with channels, known at quadrature nodes."""

import dataclasses
import functools
from typing import final

import torch

from continua.core.checks import at_least, holds
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.spaces.bases import AbstractBasis
from continua.spaces.quadrature import AbstractNodalRule, MidpointRule


@final
@dataclasses.dataclass(frozen=True)
class Axis:
    """X(t, d_a, c): `nodes` d_a with weights v_a of a rule, times `channels` (docs/mathematics.md, section 2).

    A state of width nodes * channels holds the channels of the first node, then those of the second, and so on.
    """

    nodes: int
    channels: int
    rule: AbstractNodalRule = MidpointRule()

    def __post_init__(self) -> None:
        at_least(1, nodes=self.nodes, channels=self.channels)
        _ = self._rule, self.uniform  # made here, so that compiled code finds a tensor and no recipe for one

    @functools.cached_property
    def _rule(self) -> tuple[Tensor, "TensorTable"]:
        with torch.inference_mode(False):  # what is kept must serve training too
            nodes, weights = self.rule.nodes(self.nodes)
        return nodes, TensorTable(weights)

    @functools.cached_property
    def uniform(self) -> bool:
        """Whether all nodes weigh the same, so that means along the axis are plain ones."""
        weights = self._rule[1].values
        return bool((weights - weights[0]).abs().max() < 1e-14)

    @property
    def width(self) -> int:
        """Numbers in one token's state."""
        return self.nodes * self.channels

    def at(self, nodes: int) -> "Axis":
        """The same axis at another resolution."""
        return dataclasses.replace(self, nodes=nodes)

    def points(self) -> Float[Tensor, " nodes"]:
        """The nodes d_a."""
        return self._rule[0]

    def weights(self, like: Tensor | None = None) -> Float[Tensor, " nodes"]:
        """The weights v_a, which sum to one."""
        return self._rule[1].values if like is None else self._rule[1].like(like)

    def resolves(self, basis: AbstractBasis) -> bool:
        """Whether the functions of a basis are orthonormal under the rule of the axis."""
        return holds(self._defect(basis.evaluate(self.points())) <= 1e-8, unseen=True)

    def _defect(self, values: Float[Tensor, "nodes modes"]) -> Float[Tensor, ""]:
        gram = values.T @ (self.weights()[:, None] * values)
        return (gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max()

    def synthesis(self, basis: AbstractBasis) -> Float[Tensor, "nodes modes"]:
        """phi_i(d_a): from coefficients to the nodes."""
        values = basis.evaluate(self.points())
        if not self.resolves(basis):
            defect = self._defect(values)
            cure = "Use more nodes, fewer modes, or an orthonormal basis (Cosine, Fourier, Legendre with Gauss nodes)."
            why = f"{self.nodes} nodes do not resolve {basis.size} modes"
            if self.nodes < basis.size:
                cure = f"Use at least {basis.size} nodes."
            else:
                why += f": they are orthonormal only to {float(defect):.1e}"
            reject("nodes", self.nodes, why, cure)
        return values

    def analysis(self, basis: AbstractBasis) -> Float[Tensor, "modes nodes"]:
        """v_a phi_i(d_a): from the nodes to coefficients, the inverse of `synthesis` on the span of the basis."""
        return (self.weights()[:, None] * self.synthesis(basis)).T

    def transforms(
        self, basis: AbstractBasis, like: Tensor
    ) -> tuple[Float[Tensor, "nodes modes"], Float[Tensor, "modes nodes"]]:
        """Synthesis and analysis in the dtype and on the device of `like`."""
        synthesis, analysis = tables(self, basis)
        return synthesis.like(like), analysis.like(like)


@final
class TensorTable:
    """Constant numbers in float64, with a copy for every dtype and device that asked."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._whole = values.contiguous()  # what an exported graph can write into a file
        self._copies: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, x: Tensor) -> Tensor:
        """The table in the dtype and on the device of `x`."""
        if torch.compiler.is_compiling():  # compiled code makes its own copy, and would compile anew for each of ours
            return self._whole.to(x.device, x.dtype)
        found = self._copies.get((x.dtype, x.device))
        if found is None:
            with torch.inference_mode(False):  # what is kept must serve training too, whoever asked first
                found = self._copies[x.dtype, x.device] = self.values.to(x.device, x.dtype)
        return found


# What is kept must serve training too, whoever asked first: hence no inference tensors.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def tables(axis: Axis, basis: AbstractBasis) -> tuple[TensorTable, TensorTable]:
    """Synthesis and analysis, made once."""
    return TensorTable(axis.synthesis(basis)), TensorTable(axis.analysis(basis))
