"""Decoding with cached keys and values against a solve of the whole window for every token."""

import dataclasses
import statistics
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Ratio, Row, median_ratio, time_in_turn
from continua.bench.flows import text_model
from continua.core.shapes import Int, Tensor
from continua.model import CachedDecoder, ContinuousTransformer

_VOCABULARY = 65
_LIMIT = 0.5


@final
@dataclasses.dataclass(frozen=True)
class DecodingCost(AbstractBenchmark):
    """A window filled token by token, with a key-value cache and by the model on all tokens so far.

    The model has the size of the text task's: two midpoint steps, weights of four modes, rotary positions. The limit is
    for the longest window; in a short one the many small operations of either side weigh more than the tokens.
    """

    windows: tuple[int, ...] = (64, 256)
    width: int = 128
    heads: int = 4
    modes: int = 4
    repetitions: int = 5
    threads: int = 1

    @property
    def claim(self) -> str:
        return f"filling a window of {self.windows[-1]} tokens takes at most {_LIMIT} of the time without a cache"

    def quick(self) -> "DecodingCost":
        return DecodingCost((3, 6), width=8, heads=2, modes=2, repetitions=1)

    def measure(self) -> BenchResult:
        model = text_model(self.width, self.heads, self.modes, _VOCABULARY)
        tokens = torch.arange(self.windows[-1])[None] % _VOCABULARY
        cases = {}
        for count in self.windows:
            window = tokens[:, :count]
            cases[f"cached, {count}"] = lambda window=window: _decode_cached(model, window)
            cases[f"anew, {count}"] = lambda window=window: _decode_anew(model, window)
        seconds = time_in_turn(cases, self.repetitions)
        rows: list[Row] = []
        ratios: list[Ratio] = []
        for count in self.windows:
            cached, anew = seconds[f"cached, {count}"], seconds[f"anew, {count}"]
            for way, times in (("cached", cached), ("computed anew", anew)):
                per_token = 1e3 * statistics.median(times) / count
                rows.append({"tokens": count, "keys and values": way, "ms per token": per_token})
            limit = _LIMIT if count == self.windows[-1] else None
            ratios.append(Ratio(f"cached / computed anew, {count} tokens", median_ratio(cached, anew), limit))
        return BenchResult(tuple(rows), tuple(ratios))


def _decode_cached(model: ContinuousTransformer, window: Int[Tensor, "batch tokens"]) -> None:
    reading = CachedDecoder(model)
    for place in range(window.shape[1]):
        reading.decode(window[:, place : place + 1])


@torch.no_grad()
def _decode_anew(model: ContinuousTransformer, window: Int[Tensor, "batch tokens"]) -> None:
    for place in range(window.shape[1]):
        model(window[:, : place + 1])
