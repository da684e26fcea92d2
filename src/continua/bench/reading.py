"""Writing with kept keys and values against a solve of the whole window for every token."""

import dataclasses
import statistics
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio
from continua.bench.timing import interleaved, paired, using_threads
from continua.core.shapes import Int, Tensor
from continua.fields import Expansion
from continua.model import (
    CachedDecoder,
    ContinuousTransformer,
    Flow,
    NormedEmbedding,
    Part,
    TokenEmbedding,
    TokenReadout,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Rotary
from continua.solve import Direct, Fixed, Midpoint, Solver
from continua.spaces import Legendre

_VOCABULARY = 65
_LIMIT = 0.5


@final
@dataclasses.dataclass(frozen=True)
class ReadingCost(AbstractBenchmark):
    """Tokens read one after the other until a window is full, by `CachedDecoder` and by the model on all tokens so far.

    The model is that of the text task: two midpoint steps, weights of four modes, rotary positions. The limit is for
    the longest window; in a short one the many small operations of either side weigh more than the tokens.
    """

    windows: tuple[int, ...] = (64, 256)
    width: int = 128
    heads: int = 4
    modes: int = 4
    repetitions: int = 5
    threads: int = 1

    @property
    def claim(self) -> str:
        return f"filling a window of {self.windows[-1]} tokens takes at most {_LIMIT} of the time without kept keys"

    def quick(self) -> "ReadingCost":
        return ReadingCost((3, 6), width=8, heads=2, modes=2, repetitions=1)

    def run(self) -> Outcome:
        model, tokens = self._model(), torch.arange(self.windows[-1])[None] % _VOCABULARY
        cases = {}
        for count in self.windows:
            window = tokens[:, :count]
            cases[f"kept, {count}"] = lambda window=window: _kept(model, window)
            cases[f"whole, {count}"] = lambda window=window: _whole(model, window)
        with using_threads(self.threads):
            seconds = interleaved(cases, self.repetitions)
        rows = tuple(
            {"tokens": count, "keys and values": way, "ms a token": 1e3 * statistics.median(times) / count}
            for count in self.windows
            for way, times in (("kept", seconds[f"kept, {count}"]), ("computed anew", seconds[f"whole, {count}"]))
        )
        ratios = tuple(
            Ratio(
                f"kept / computed anew, {count} tokens",
                paired(seconds[f"kept, {count}"], seconds[f"whole, {count}"]),
                _LIMIT if count == self.windows[-1] else None,
            )
            for count in self.windows
        )
        return Outcome(rows, ratios)

    def _model(self) -> ContinuousTransformer:
        torch.manual_seed(0)
        width, key = self.width, self.width // self.heads
        attention = PreNorm(LayerNorm(), Attention(self.heads, key, causal=True, rotary=Rotary(2.5, 0.05)))
        operators = (attention, PreNorm(LayerNorm(), FeedForward(4 * width)))
        parts = [Part(operator, Expansion(operator.spec(width), Legendre(self.modes))) for operator in operators]
        embedding = NormedEmbedding(TokenEmbedding(_VOCABULARY, width), LayerNorm(affine=False))
        solver = Solver(Midpoint(), Fixed(2))
        model = ContinuousTransformer(embedding, Flow(parts), TokenReadout(width, _VOCABULARY), solver, Direct())
        return model.eval()


def _kept(model: ContinuousTransformer, window: Int[Tensor, "batch tokens"]) -> None:
    reading = CachedDecoder(model)
    for place in range(window.shape[1]):
        reading.decode(window[:, place : place + 1])


@torch.no_grad()
def _whole(model: ContinuousTransformer, window: Int[Tensor, "batch tokens"]) -> None:
    for place in range(window.shape[1]):
        model(window[:, : place + 1])
