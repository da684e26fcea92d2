"""Fields without modes: one theta for all depths, or one for each piece (a list of layers)."""

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Depth
from continua.fields.field import AbstractField, check_loaded, copy_into, key, parameters_of, theta_of
from continua.operators import Theta, draw_theta, leaves, map_leaves, rebuild
from continua.spaces import AbstractParameterSpace


@final
class Constant(AbstractField):
    """theta(z) = theta: an autonomous flow, every layer shares its weights."""

    def __init__(self, spec: Theta, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.values = parameters_of(draw_theta(spec, generator))
        self.register_load_state_dict_pre_hook(_check_loaded)

    @property
    def breaks(self) -> tuple[float, ...]:
        return ()

    @property
    def reach(self) -> float:
        return math.inf

    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        theta = theta_of(self.spec, self.values)
        if isinstance(z, float | int):
            return theta
        return map_leaves(lambda leaf: leaf.expand(z.shape[0], *leaf.shape), theta)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"values.{key(name)}": leaf.home for name, leaf in leaves(self.spec)}

    def arguments(self) -> dict[str, Any]:
        return {"spec": self.spec}

    def fill(self, theta: Theta) -> "Constant":
        """Takes over the values of theta."""
        copy_into(self.values, self.spec, theta)
        return self


@final
class PiecewiseConstant(AbstractField):
    """theta(z) = theta_l for z in [edges_l, edges_{l+1}): a list of layers IS this field, with edges 0, 1, ..., L.

    Each piece keeps its own parameters, so the gradient of a step touches its own layer and no other. Before the first
    edge and after the last one the nearest piece is read.
    """

    def __init__(self, spec: Theta, edges: Sequence[float], generator: torch.Generator | None = None) -> None:
        super().__init__()
        rising = all(a < b for a, b in itertools.pairwise(edges))
        if len(edges) < 2 or not rising or not all(math.isfinite(e) for e in edges):
            reject("edges", edges, "edges must increase and bound at least one piece", "Pass (0.0, 1.0, ..., L).")
        self.spec = spec
        self.edges = tuple(float(e) for e in edges)
        self.pieces = nn.ModuleList(parameters_of(draw_theta(spec, generator)) for _ in self.edges[1:])
        self.register_load_state_dict_pre_hook(_check_loaded)

    @classmethod
    def layers(cls, spec: Theta, count: int, generator: torch.Generator | None = None) -> "PiecewiseConstant":
        """`count` layers of thickness 1."""
        return cls(spec, [float(layer) for layer in range(count + 1)], generator)

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.edges[1:-1]

    @property
    def reach(self) -> float:
        return math.inf

    def forward(self, z: Depth, inside: Depth | None = None) -> Theta:
        where = z if inside is None else inside
        if isinstance(where, float | int):
            return self._piece(bisect.bisect_right(self.breaks, where))
        breaks = torch.tensor(self.breaks, dtype=where.dtype, device=where.device)
        index = torch.bucketize(where.detach(), breaks, right=True)
        pieces = [dict(leaves(self._piece(i))) for i in range(len(self.pieces))]
        return rebuild(self.spec, {name: torch.stack([p[name] for p in pieces])[index] for name in pieces[0]})

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        homes = {key(name): leaf.home for name, leaf in leaves(self.spec)}
        return {f"pieces.{i}.{name}": home for i in range(len(self.pieces)) for name, home in homes.items()}

    def arguments(self) -> dict[str, Any]:
        return {"spec": self.spec, "edges": self.edges}

    def fill(self, thetas: Sequence[Theta]) -> "PiecewiseConstant":
        """Takes over the values of one theta for each piece."""
        if len(thetas) != len(self.pieces):
            reject("thetas", len(thetas), f"the field has {len(self.pieces)} pieces", "Pass one theta a piece.")
        for theta, piece in zip(thetas, self.pieces, strict=True):
            assert isinstance(piece, nn.ParameterDict)
            copy_into(piece, self.spec, theta)
        return self

    def _piece(self, index: int) -> Theta:
        piece = self.pieces[index]
        assert isinstance(piece, nn.ParameterDict)
        return theta_of(self.spec, piece)


def _check_loaded(field: Constant | PiecewiseConstant, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Masses of heads are refused off the simplex, here as in `fill`."""
    pieces = ["values"] if isinstance(field, Constant) else [f"pieces.{i}" for i in range(len(field.pieces))]
    named = [(f"{prefix}{piece}.{key(name)}", leaf) for piece in pieces for name, leaf in leaves(field.spec)]
    check_loaded(named, state)
