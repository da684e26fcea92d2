"""Writing on: tokens drawn one after the other from a causal model."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import final

import torch

from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.model import CachedDecoder, ContinuousTransformer, why_not_cacheable


@final
@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits l: with probability softmax(l / temperature), among the `top` highest.

    Temperature 0 takes the highest; without `top` all tokens may be drawn.
    """

    temperature: float = 1.0
    top: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < math.inf:
            reject("temperature", self.temperature, "this is no temperature", "Pass 0 (the likeliest) or more.")
        if self.top is not None and self.top < 1:
            reject("top", self.top, "a token must be drawn", "Pass top >= 1, or None for all.")

    def draw(self, logits: Float[Tensor, " outputs"], generator: torch.Generator) -> int:
        """One token."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        logits = logits.double() / self.temperature
        if self.top is not None and self.top < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top).values[-1], -torch.inf)
        return int(torch.multinomial(logits.softmax(0), 1, generator=generator))


@final
@dataclasses.dataclass(frozen=True)
class Window:
    """What a model sees of a growing text: at most its last `context` tokens, counted from the window's start.

    When the window is full it moves on by `slide` tokens. With 1 every token is drawn from all `context` before it, and
    after a move all states are new, as each token has seen the one that left: one solve of the whole window for each
    token. With more, one such solve serves `slide` tokens, each drawn from at least `context - slide + 1` before it.
    """

    context: int
    slide: int = 1

    def __post_init__(self) -> None:
        if self.context < 1:
            reject("context", self.context, "a token is drawn from those before it", "Pass context >= 1.")
        if not 1 <= self.slide <= self.context:
            cure = f"Pass a number from 1 to {self.context}, the size of the window."
            reject("slide", self.slide, "a full window moves on, and keeps its last token", cure)

    def start(self, before: int, length: int) -> int:
        """Where the window begins in a text of this length, if it began at `before` so far."""
        return before if length - before <= self.context else length - self.context + self.slide - 1


def generated(
    model: ContinuousTransformer,
    prompt: Int[Tensor, " tokens"],
    sampling: Sampling,
    window: Window,
    seed: int,
    cached: bool = True,
) -> Iterator[int]:
    """Token after token, without end, each drawn after the prompt and all before it that the window shows.

    The grid of depth is the model's own; with a fixed one the output depends on nothing but prompt and seed. Keys and
    values are then kept (`CachedDecoder`), unless `cached=False`, and a token costs one solve of itself; where `why_not_cacheable`
    gives a reason they are not, and it costs one of the window. Either way each token is drawn from the model's output
    on the window, up to rounding.
    """
    if len(prompt) == 0:
        reject("prompt", prompt.tolist(), "there is nothing to go on from", "Pass at least one token.")
    model.eval()
    reads = _kept(model) if cached and why_not_cacheable(model) is None else _whole(model)
    return _drawn(reads, prompt.tolist(), sampling, window, generator_of(seed))


_Reads = Callable[[list[int], int], Tensor]
"""The logits after the last of some tokens, of which the window shows those from a place on."""


def _drawn(
    reads: _Reads, tokens: list[int], sampling: Sampling, window: Window, generator: torch.Generator
) -> Iterator[int]:
    start = 0
    while True:
        start = window.start(start, len(tokens))
        tokens.append(sampling.draw(reads(tokens, start), generator))
        yield tokens[-1]


def _whole(model: ContinuousTransformer) -> _Reads:
    @torch.no_grad()
    def reads(tokens: list[int], start: int) -> Tensor:
        return model(torch.tensor([tokens[start:]]))[0, -1]

    return reads


def _kept(model: ContinuousTransformer) -> _Reads:
    reading, began = CachedDecoder(model), 0

    def reads(tokens: list[int], start: int) -> Tensor:
        nonlocal began
        if start != began:
            reading.forget()
            began = start
        return reading.read(torch.tensor([tokens[start + reading.length :]]))[0, -1]

    return reads
