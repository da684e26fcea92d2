"""The random level of a telescoping sum: P(l) = 2^(-1.5 l) / sum, l = 1, ..., last."""

import math

import torch

from continua.core.seeds import generator_of

_DECAY = 1.5
"""Between the variance (2^-2l) and the cost (2^l) of a term, so that both stay bounded in the number of levels."""


def last_level(m: int, tokens: int) -> int:
    """The first level at which 2^l m nodes are as many as the tokens."""
    return max(1, math.ceil(math.log2(tokens / m)))


def draw_level(last: int, seed: int) -> tuple[int, float]:
    """A level from 1 to `last`, and its probability."""
    odds = 2.0 ** (-_DECAY * torch.arange(1, last + 1, dtype=torch.float64))
    drawn = int(torch.multinomial(odds, 1, generator=generator_of(seed)))
    return drawn + 1, float(odds[drawn] / odds.sum())
