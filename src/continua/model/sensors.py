"""Cells of asynchronous sensors as tokens: a value, the sensor it is of, and what does not change along the series."""

from typing import final

import torch

from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.shapes import Bool, Points, Tensor
from continua.model.embedding import AbstractSampleEmbedding, check_values
from continua.model.positions import Clock
from continua.spaces import AbstractSampleRule, Trapezoid


@final
class CellEmbedding(AbstractSampleEmbedding):
    """Samples (v, e_c, u) -> tokens (v e_c, e_c, u): e_c has a 1 for the channel c among 0s, u are static numbers.

    Nothing is trained but the vector of a query. Tokens of one time share its mass, so that a sensor does not count
    more where others report at the same moment. A stem with `channels` reads these tokens (`InterpolatedStem`).
    """

    def __init__(
        self,
        channels: int,
        static: int = 0,
        rule: AbstractSampleRule = Trapezoid(),
        queries: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        at_least(1, channels=channels)
        at_least(0, static=static)
        self.channels, self.static = channels, static
        self.register_buffer("like", torch.zeros(()), persistent=False)  # says in which precision the model works
        self._place(2 * channels + static, None, rule, queries, clock)

    def _check(self, samples: Tensor) -> None:
        check_values(samples, 1 + self.channels + self.static, self.like.dtype)
        channel = samples[..., 1 : 1 + self.channels]
        if bool(((channel != 0.0) & (channel != 1.0)).any()):
            cure = f"Pass a value, then {self.channels} numbers with a 1 for its channel and 0s, then static numbers."
            reject("values", tuple(samples.shape), "the channel of a token is no 1 among 0s", cure)

    def _states(self, samples: Tensor, present: Bool[Tensor, "batch tokens"] | None) -> Points:
        values = samples if present is None else samples.masked_fill(~present.unsqueeze(-1), 0.0)
        value, channel, static = values.split([1, self.channels, self.static], -1)
        return torch.cat([value * channel, channel, static], -1)

    like: Tensor
