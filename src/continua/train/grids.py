"""The depths and nodes that each update of a training has: coarse at first, refined at last, moved at random."""

import dataclasses
import itertools
import math
from typing import final

import torch

from continua.core.checks import fraction
from continua.model import ContinuousTransformer, fixed_steps, own_nodes
from continua.train.presets import DepthOptions


@final
@dataclasses.dataclass(frozen=True)
class TrainingGrids:
    """The grids of a training: coarse in the first updates, refined in the last, moved at random in each.

    The first updates, the fraction `coarse` of all, take half of the depth steps, and so about half of the time: the
    parameters are those of one flow, which finer steps then go on with.
    Of the last updates, the fraction `refined` of all, each reads a third of its batch with twice the depth steps; in
    the fraction `nodes` of them, where there is a measure of heads or an embedding axis, that has twice its nodes
    instead (of an axis, on a quarter of the batch, since its kernels cost four times as much). The rest of the batch is
    read as usual, in a pass of its own, so that memory stays. The inner depths of every grid move at random by up to
    the fraction `jitter` of half a step to either side. Where parameters jump, the jumps stay, and steps move between
    them.
    """

    jitter: float = 0.0
    refined: float = 0.0
    nodes: float = 0.25
    coarse: float = 0.0

    def __post_init__(self) -> None:
        fraction(jitter=self.jitter, refined=self.refined, refined_nodes=self.nodes, coarse=self.coarse)

    @classmethod
    def of(cls, depth: DepthOptions) -> "TrainingGrids":
        """Those that options ask for."""
        return cls(depth.jitter, depth.refined, depth.refined_nodes, depth.coarse)

    def draw_kind(self, model: ContinuousTransformer, progress: float, generator: torch.Generator) -> str | None:
        """What is refined after the fraction `progress` of all updates: depth, head_nodes, axis_nodes, or nothing."""
        if progress < 1.0 - self.refined or fixed_steps(model) is None:
            return None
        kinds, drawn = [*finer_nodes(model)], float(torch.rand((), generator=generator))
        return "depth" if drawn >= self.nodes or not kinds else kinds[int(len(kinds) * drawn / self.nodes)]

    def draw_grid(
        self, model: ContinuousTransformer, progress: float, generator: torch.Generator, finer: bool = False
    ) -> list[float] | None:
        """Depths of a pass, with twice the usual steps if `finer`, or half of them at first; `None`: the model's own.

        No step crosses a jump of the parameters, so layers take one step each at least.
        """
        usual, depth = fixed_steps(model), model.flow.depth
        coarse = progress < self.coarse and not finer
        if usual is None or not (self.jitter or finer or coarse):
            return None
        steps = 2 * usual if finer else math.ceil(usual / 2) if coarse else usual
        breaks = {b for field in model.flow.fields for b in field.breaks if 0.0 < b < depth}
        grid = [0.0]
        for start, end in itertools.pairwise([0.0, *sorted(breaks), depth]):
            count = max(1, math.ceil(steps * (end - start) / depth - 1e-9))
            moves = self.jitter * (torch.rand(count - 1, generator=generator) - 0.5)
            inner = start + (torch.arange(1, count) + moves) * ((end - start) / count)
            grid += [*inner.tolist(), end]
        return grid


def finer_nodes(model: ContinuousTransformer) -> dict[str, int]:
    """Twice the nodes of the measure of heads and of the embedding axis, of those that it has, as `model.at` takes."""
    return {name: 2 * nodes for name, nodes in own_nodes(model).items()}
