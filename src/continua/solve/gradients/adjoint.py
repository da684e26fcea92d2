"""The adjoint flow: tokens, costate and parameter gradient as one state that moves backwards."""

from collections.abc import Sequence

import torch

from continua.core.shapes import Depth, Float, Points, Tensor
from continua.solve.gradients.gradient import pulled_back
from continua.solve.state import AbstractBound, State


class Adjoint(AbstractBound):
    """The flow of (x, a | g): tokens and costate side by side along the width, parameter gradients as costs.

        dx/dz = f ,   da/dz = -(df/dx)^T a - sum_c (dr_c/dx)^T w_c ,   dg/dz = -(df/dphi)^T a - sum_c (dr_c/dphi)^T w_c

    `inputs` are the tensors phi, `costs` the cotangents w_c of the running costs, which do not change along depth, and
    `clip` bounds |a| of each sequence on the right-hand side.
    """

    def __init__(self, flow: AbstractBound, inputs: Sequence[Tensor], costs: Sequence[Tensor], clip: float) -> None:
        self.flow = flow
        self.inputs = tuple(inputs)
        self.costs = tuple(costs)
        self.clip = clip

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.flow.breaks

    @property
    def parts(self) -> Sequence[AbstractBound]:
        return [self]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    @property
    def weights(self) -> Float[Tensor, "batch tokens"] | None:
        return self.flow.weights

    @property
    def evaluations(self) -> int:
        return self.flow.evaluations

    def rates(self, z: Depth, points: Points, velocity: Points) -> tuple[Tensor, ...]:
        raise AssertionError("splitting and projection are refused before")

    def __call__(self, z: Depth, state: State, inside: Depth | None = None) -> State:
        points, a = state.points.chunk(2, -1)
        with torch.enable_grad():
            x = points.detach().requires_grad_(True)
            slope = self.flow(z, State(x, tuple(torch.zeros_like(c) for c in self.costs)), inside)
        cotangents = [-self._clipped(a), *(-c for c in self.costs)]
        inputs = (x, *self.inputs)
        found = pulled_back((slope.points, *slope.costs), cotangents, inputs)
        da, *dg = (torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))
        return State(torch.cat([slope.points.detach(), da], -1), tuple(dg))

    def _clipped(self, a: Points) -> Points:
        norm = a.flatten(1).norm(dim=-1).clamp_min(1e-30)
        return a * (self.clip / norm).clamp_max(1.0)[:, None, None]
