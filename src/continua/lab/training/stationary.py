"""Where AdamW ends: points of Karush, Kuhn and Tucker of a box, blockwise of balls."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch

from continua.core.shapes import Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.training.network import Network
from continua.lab.training.problem import Problem, Training
from continua.lab.verdicts import Judgement, at_most, settled
from continua.runs import Lines, Scale, Series

RESIDUAL = 0.02
"""The most that the residual at the end may be, of the largest gradient at the end."""
OUTSIDE = 0.02
"""The most that |b(theta)| may be above 1/lam at the end."""


@final
@dataclasses.dataclass(frozen=True)
class Stationary(AbstractCell):
    """AdamW with rates that fall: how far its end is from a KKT point of min loss over |b(theta)| <= 1/lam.

        residual = | theta - P(theta - g) | ,   P the projection on the box (blockwise: on balls)

    It vanishes at KKT points and nowhere else: within the set g = 0, on its edge g points inwards. The rate is constant
    over the first half of the updates and falls to zero over the second. A limit is reached only if parameters move
    more slowly than the second moment forgets: rate * decay well below 1 - b2.
    """

    layers: int
    heads: int
    updates: int
    problem: Problem
    training: Training

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.drawn(self.layers, 1, self.heads, 0))
        optimiser = self.training.optimiser(network.parameters)
        seen: list[Distance] = []
        with torch.no_grad():
            for update in range(self.updates + 1):
                network.both()
                seen.append(self.distance(network.parameters))
                left = 2.0 * (1.0 - update / self.updates)
                optimiser.param_groups[0]["lr"] = self.training.rate * min(1.0, left**2)
                optimiser.step()
        whole = {name: [getattr(one, name) for one in seen] for name in Distance._fields}
        return {**whole, "blockwise": self.training.blockwise, "betas": list(self.training.betas)}

    def distance(self, parameters: list[Tensor]) -> "Distance":
        """How far parameters with these gradients are from a KKT point."""
        limit, block = 1.0 / self.training.decay, self.training.blockwise
        residual = gradient = size = 0.0
        inside: list[Tensor] = []
        for w in parameters:
            assert w.grad is not None
            projected = _projected(w - w.grad, limit, block)
            sizes = _sizes(w, block) / limit
            residual = max(residual, float(_sizes(w - projected, block).max()))
            gradient = max(gradient, float(_sizes(w.grad, block).max()))
            size = max(size, float(sizes.max()))
            inside.append((sizes < 1.0 - OUTSIDE).flatten())
        return Distance(residual, gradient, size, 1.0 - float(torch.cat(inside).double().mean()))


class Distance(NamedTuple):
    """The residual, the largest gradient, the largest |b(theta)| of 1/lam, and the share of them at the edge."""

    residual: float
    gradient: float
    size: float
    edge: float


def _sizes(w: Tensor, blockwise: bool) -> Tensor:
    return torch.linalg.matrix_norm(w) if blockwise else w.abs()


def _projected(w: Tensor, limit: float, blockwise: bool) -> Tensor:
    if not blockwise:
        return w.clamp(-limit, limit)
    return w * (limit / torch.linalg.matrix_norm(w, keepdim=True).clamp_min(limit))


def named(row: Row) -> str:
    """`box, b = (0.9, 0.9)`, or balls."""
    b1, b2 = row["betas"]
    return f"{'balls' if row['blockwise'] else 'box'}, b = ({b1:g}, {b2:g})"


def numbers(row: Row) -> dict[str, Any]:
    """What the end of one training says."""
    name = named(row)
    return {
        f"KKT residual of the gradient, {name}": row["residual"][-1] / row["gradient"][-1],
        f"largest parameter of 1/lam, {name}": row["size"][-1],
        f"share of parameters at the edge, {name}": row["edge"][-1],
    }


def judged(row: Row) -> tuple[Judgement, Judgement]:
    """A limit point is claimed to be a KKT point: before the limit is reached nothing is said."""
    name, (residual, size, _) = named(row), numbers(row).values()
    return (
        settled(f"KKT residual of the gradient, {name}", residual, RESIDUAL),
        (at_most if residual <= RESIDUAL else settled)(f"largest parameter of 1/lam, {name}", size, 1.0 + OUTSIDE),
    )


def figure(rows: Sequence[Row]) -> Lines:
    """Residuals over training."""
    return Lines(
        title="distance from a KKT point",
        caption="|theta - P(theta - g)|, P the projection on |b(theta)| <= 1/lam; the rate falls over the second half.",
        x=Scale("updates"),
        y=Scale("residual", log=True),
        series=tuple(Series.of(named(row), range(len(row["residual"])), row["residual"]) for row in rows),
    )
