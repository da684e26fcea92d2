"""Nodes: the few tokens that stand for all, drawn by their masses, and how they are spread over a sequence."""

import abc
import dataclasses
import math
from typing import NamedTuple, final

import torch

from continua.core.checks import at_least, positive
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.operators.integral import Memory
from continua.spaces import Measure


@final
@dataclasses.dataclass(frozen=True)
class LogTokens:
    """m = ceil(c log T) nodes for T tokens; the cost of an estimate is then O(T log T)."""

    c: float

    def __post_init__(self) -> None:
        positive(c=self.c)


Count = int | LogTokens
"""How many nodes: a number, or a function of the number of tokens."""


def nodes_for(count: Count, tokens: int) -> int:
    """The number of nodes for a sequence of `tokens`."""
    return math.ceil(count.c * math.log(max(tokens, 2))) if isinstance(count, LogTokens) else count


def check_count(m: Count) -> None:
    """Rejects a number of nodes below one."""
    at_least(1, m=None if isinstance(m, LogTokens) else m)


def tokens_of(measure: Measure) -> int:
    """T: how many tokens have mass, in the longest sequence. Padding and queries do not count."""
    return measure.shape[1] if measure.heavy is None else int(measure.heavy.sum(-1).max())


class Nodes(NamedTuple):
    """Tokens drawn with probability pi_j: token j enters sums with weight w_j / (m pi_j), each time it was drawn."""

    chosen: Int[Tensor, "batch nodes"]
    log_rate: Float[Tensor, "batch nodes"]
    """log(m pi_j)"""

    def part(self, start: int, stop: int) -> "Nodes":
        """Some of the nodes, as a smaller draw of the same law."""
        shift = math.log((stop - start) / self.chosen.shape[1])
        return Nodes(self.chosen[:, start:stop], self.log_rate[:, start:stop] + shift)

    def log_weight(self, measure: Measure) -> Float[Tensor, "batch nodes"]:
        """log( w_j / (m pi_j) ), with a gradient to w."""
        if measure.log_mass is None:
            return -self.log_rate
        return measure.log_mass.gather(1, self.chosen) - self.log_rate

    def of(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Keys (batch, heads, nodes, key) and values (batch, heads, nodes, value) of the nodes."""
        index = self.chosen[:, None, :, None]
        return memory.keys.take_along_dim(index, 2), memory.values.take_along_dim(index, 2)


def nodes_at(levels: Float[Tensor, "rows nodes"], measure: Measure, like: Tensor) -> Nodes:
    """Nodes of every sequence where its cumulative mass passes `levels` of [0, 1): pi_j = w_j / sum w.

    One row of levels serves every sequence, or each has its own.
    """
    batch, tokens = measure.shape
    mass = torch.ones(batch, tokens, dtype=torch.float64, device=like.device)
    mass = mass if measure.mass is None else measure.mass.detach().double()
    share = mass / mass.sum(-1, keepdim=True)
    levels = levels.to(share).expand(batch, -1).contiguous()
    last = torch.where(share > 0, torch.arange(tokens, device=share.device), -1).amax(-1, keepdim=True)
    # rounding of the cumulative mass may point beyond the last token with mass
    index = torch.minimum(torch.searchsorted(share.cumsum(-1), levels, right=True), last)
    log_rate = torch.log(levels.shape[1] * share.gather(1, index))
    return Nodes(index, log_rate.to(like.dtype))


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
        engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=branch_seed(seed, 0) % 2**31)
        digits = (engine.draw(count, dtype=torch.float64)[:, 0] * 2**_BITS).long().clamp_max(2**_BITS - 1)
        shift = torch.randint(2**_BITS, (rows, 1), generator=generator_of(branch_seed(seed, 1)))
        return ((digits ^ shift).double() + 0.5) / 2**_BITS


_DECAY = 1.5
"""Between the variance (2^-2l) and the cost (2^l) of a term, so that both stay bounded in the number of levels."""


def draw_level(last: int, seed: int) -> tuple[int, float]:
    """A level from 1 to `last`, and its probability."""
    odds = 2.0 ** (-_DECAY * torch.arange(1, last + 1, dtype=torch.float64))
    drawn = int(torch.multinomial(odds, 1, generator=generator_of(seed)))
    return drawn + 1, float(odds[drawn] / odds.sum())
