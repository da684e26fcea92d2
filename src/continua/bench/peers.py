"""torchdiffeq as its users call it, on the velocity of our own flow."""

from typing import Any

import torch
from torch import nn

from continua.bench.flows import DEPTH, SPAN
from continua.core.extras import extra
from continua.core.shapes import Points, Tensor
from continua.model import FlowVectorField
from continua.solve import State


class Velocity(nn.Module):
    """func(t, x) as torchdiffeq asks for it; counts its calls."""

    def __init__(self, bound: FlowVectorField) -> None:
        super().__init__()
        self.bound = bound
        self.calls = 0

    def forward(self, t: Tensor, x: Points) -> Points:
        self.calls += 1
        z = min(max(t.item(), 0.0), DEPTH)
        return self.bound(z, State(x)).x


def solved(velocity: Velocity, points: Points, tolerance: float, adjoint: bool) -> Points:
    """The end of `odeint`, or of `odeint_adjoint` with the gradients of the same parameters, by "dopri5"."""
    peer = extra("torchdiffeq", "peers")
    settings: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}
    if adjoint:
        parameters = tuple(velocity.bound.flow.parameters())
        return peer.odeint_adjoint(velocity, points, torch.tensor(SPAN), adjoint_params=parameters, **settings)[-1]
    return peer.odeint(velocity, points, torch.tensor(SPAN), **settings)[-1]
