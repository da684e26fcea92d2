"""How nodes are spread over a sequence: levels of its cumulative mass, each of uniform law on [0, 1)."""

import abc
import dataclasses
from typing import final

import torch

from continua.core.seeds import branched, generator_of
from continua.core.shapes import Float, Tensor
from continua.operators.estimators.nodes import Nodes, nodes_at
from continua.spaces import Measure

_BITS = 30
"""What torch's Sobol points resolve."""


@dataclasses.dataclass(frozen=True)
class AbstractDraw(abc.ABC):
    """Levels u_1, ..., u_m in [0, 1), each of uniform law, drawn anew for every sequence of every solve.

    With `common`, a seed, the same levels serve all of them: common random numbers, which cancel in differences between
    mini-batches. Without a seed (evaluation) all sequences share fixed levels, so that none depends on its batch.
    """

    common: int | None = None

    @final
    def nodes(self, measure: Measure, like: Tensor, count: int, seed: int | None) -> Nodes:
        """`count` nodes for every sequence."""
        if seed is None or self.common is not None:
            return nodes_at(self._levels(1, count, self.common or 0), measure, like)
        return nodes_at(self._levels(measure.shape[0], count, seed), measure, like)

    @abc.abstractmethod
    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        """Levels in float64; the rows are independent."""


@final
@dataclasses.dataclass(frozen=True)
class Independent(AbstractDraw):
    """Independent levels, by pseudo-random numbers."""

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        return torch.rand(rows, count, generator=generator_of(seed), dtype=torch.float64)


@final
@dataclasses.dataclass(frozen=True)
class Sobol(AbstractDraw):
    """Scrambled Sobol points: evenly spread over token time, hence of lower variance where the signal is smooth.

    `torch.quasirandom.SobolEngine(1, scramble=True)`, its digits shifted at random (exclusive or) for each sequence,
    which keeps the one point in each dyadic cell. A. B. Owen, Scrambled net variance, Ann. Statist. 25 (1997).
    """

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=branched(seed, 0) % 2**31)
        digits = (engine.draw(count, dtype=torch.float64)[:, 0] * 2**_BITS).long().clamp_max(2**_BITS - 1)
        shift = torch.randint(2**_BITS, (rows, 1), generator=generator_of(branched(seed, 1)))
        return ((digits ^ shift).double() + 0.5) / 2**_BITS


@final
@dataclasses.dataclass(frozen=True)
class Lattice(AbstractDraw):
    """u_i = (i/m + shift) mod 1 with one random shift a sequence: as even as can be."""

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        shift = torch.rand(rows, 1, generator=generator_of(seed), dtype=torch.float64)
        return (torch.arange(count, dtype=torch.float64) / count + shift) % 1.0
