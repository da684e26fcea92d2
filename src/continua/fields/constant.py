"""Fields without modes: one theta for all depths, or one for each piece (a list of layers)."""

import itertools
import math
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import DepthValue
from continua.fields.field import AbstractField, copy_into, parameters_of
from continua.operators import Theta, map_leaves
from continua.spaces import AbstractParameterSpace
from continua.spaces.bases import cell_of


@final
class Constant(AbstractField):
    """theta(z) = theta: an autonomous flow, every layer shares its parameters."""

    def __init__(self, spec: Theta, generator: torch.Generator | None = None) -> None:
        super().__init__(spec)
        self.values = parameters_of(self.structure, generator)

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        theta = self._theta([*self.structure.read(self.values)])
        if isinstance(z, float | int):
            return theta
        return map_leaves(lambda leaf: leaf.expand(z.shape[0], *leaf.shape), theta)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"values.{key}": leaf.home for key, leaf in self.structure.keyed}

    def fill(self, theta: Theta) -> "Constant":
        copy_into(self.values, self.structure, theta)
        return self


@final
class PiecewiseConstant(AbstractField):
    """theta(z) = theta_l for z in [edges_l, edges_{l+1}): a list of layers IS this field, with edges 0, 1, ..., L.

    Each piece keeps its own parameters, so the gradient of a step touches its own layer and no other. Before the first
    edge and after the last one the nearest piece is read.
    """

    def __init__(self, spec: Theta, edges: Sequence[float], generator: torch.Generator | None = None) -> None:
        super().__init__(spec)
        rising = all(a < b for a, b in itertools.pairwise(edges))
        if len(edges) < 2 or not rising or not all(math.isfinite(e) for e in edges):
            reject("edges", edges, "edges must increase and bound at least one piece", "Pass (0.0, 1.0, ..., L).")
        self.edges = tuple(float(e) for e in edges)
        self.breaks = self.edges[1:-1]
        pieces = nn.ModuleList(parameters_of(self.structure, generator) for _ in self.edges[1:])
        self.pieces = cast("Sequence[nn.ParameterDict]", pieces)

    @classmethod
    def layers(cls, spec: Theta, count: int, generator: torch.Generator | None = None) -> "PiecewiseConstant":
        """`count` layers of thickness 1."""
        return cls(spec, [float(layer) for layer in range(count + 1)], generator)

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        where = z if inside is None else inside
        if isinstance(where, float | int):
            return self._theta([*self.structure.read(self.pieces[cell_of(where, self.breaks)])])
        breaks = torch.tensor(self.breaks, dtype=where.dtype, device=where.device)
        index = torch.bucketize(where.detach(), breaks, right=True)
        pieces = map(self.structure.read, self.pieces)
        return self._theta([torch.stack(values)[index] for values in zip(*pieces, strict=True)])

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        homes = {key: leaf.home for key, leaf in self.structure.keyed}
        return {f"pieces.{i}.{name}": home for i in range(len(self.pieces)) for name, home in homes.items()}

    def fill(self, thetas: Sequence[Theta]) -> "PiecewiseConstant":
        """Takes over the values of one theta for each piece."""
        if len(thetas) != len(self.pieces):
            reject("thetas", len(thetas), f"the field has {len(self.pieces)} pieces", "Pass one theta per piece.")
        for theta, piece in zip(thetas, self.pieces, strict=True):
            copy_into(piece, self.structure, theta)
        return self
