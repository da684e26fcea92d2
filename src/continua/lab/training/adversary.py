"""Initial conditions that climb the distance between trained networks and their limit."""

import dataclasses
from typing import NamedTuple, final

import torch

from continua.core.shapes import Float, Points, Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.flows import in_ball
from continua.lab.training.limit import Limit, limit_courses
from continua.lab.training.network import Network
from continua.lab.training.problem import Problem, Training
from continua.lab.training.trained import trained
from continua.operators import radial


class _Found(NamedTuple):
    """The largest squared distance of each seed over layers, sequences and tokens, and how it grows with x(0)."""

    largest: Float[Tensor, " seeds"]
    slope: Points


@final
@dataclasses.dataclass(frozen=True)
class Adversarial(AbstractCell):
    """Squared errors of the states of trained networks, the largest that projected gradient ascent on x(0) finds.

    Every seed has its own initial conditions in the ball, none of them seen in training. They climb the distance of the
    worst token at depth 1; its derivative is the adjoint of the network minus that of the limit, both with the gap of
    that token as terminal value. `drawn` is where they begin, `found` the largest met on the way.
    """

    layers: int
    heads: int
    seeds: int
    updates: int
    problem: Problem
    training: Training
    starts: int = 1
    ascent: int = 8
    nodes: int = 33

    def measure(self) -> Row:
        problem = self.problem
        network = Network(problem, problem.drawn(self.layers, self.seeds, self.heads, 0))
        trained(network, self.training, self.updates, lambda update, passed: None)
        limit = Limit(problem, self.nodes)
        kept = limit_courses(problem, self.training, (self.updates,), self.nodes)[self.updates]
        limit.q, limit.k, limit.v, limit.o = kept.parameters
        depths = torch.arange(self.layers + 1, dtype=torch.float64) / self.layers

        def compared(start: Points) -> _Found:
            states, exact = network.forward(start), limit.forward(start)
            gaps = torch.stack(states) - kept.at(depths, exact)
            squares = gaps.square().sum(-1)  # (depths sequences tokens)
            worst = squares[-1] == squares[-1].amax(-1, keepdim=True)
            end = gaps[-1] * worst[..., None]
            own, other = network.backward(states, end, lambda layer, g: None)[0], limit.backward(exact, end)[0]
            return _Found(squares.amax((0, 2)).unflatten(0, (self.seeds, -1)).amax(-1), own - other)

        x = in_ball((self.seeds * self.starts, problem.tokens, problem.width), problem.radius, 6000)
        with torch.no_grad():
            here = compared(x)
            drawn = found = here.largest
            for _ in range(self.ascent):
                x = radial(x + 0.3 * problem.radius * _unit(here.slope), problem.radius)
                here = compared(x)
                found = torch.maximum(found, here.largest)
        sizes = {"layers": self.layers, "heads": self.heads, "updates": self.updates}
        return {**sizes, "drawn": drawn.tolist(), "found": found.tolist()}


def _unit(slope: Points) -> Points:
    """Steps of one length for the token that moves most."""
    return slope / slope.norm(dim=-1, keepdim=True).amax(-2, keepdim=True).clamp_min(1e-300)
