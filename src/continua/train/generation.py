"""Writing on: tokens drawn one after the other from a causal model."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import final

import torch

from continua.core.checks import at_least, not_negative
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.model import ContinuousTransformer, Reading, unreadable


@final
@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits l: with probability softmax(l / temperature), among the `top` highest.

    Temperature 0 takes the highest; without `top` all tokens may be drawn.
    """

    temperature: float = 1.0
    top: int | None = None

    def __post_init__(self) -> None:
        not_negative(temperature=self.temperature)
        at_least(1, top=self.top)

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
        at_least(1, context=self.context)
        if not 1 <= self.slide <= self.context:
            cure = f"Pass a number from 1 to {self.context}, the size of the window."
            reject("slide", self.slide, "a full window moves on, and keeps its last token", cure)

    def start(self, before: int, length: int) -> int:
        """Where the window begins in a text of this length, if it began at `before` so far."""
        return before if length - before <= self.context else length - self.context + self.slide - 1


def generate(
    model: ContinuousTransformer,
    prompt: Int[Tensor, " tokens"],
    sampling: Sampling,
    window: Window,
    seed: int,
    cached: bool = True,
) -> Iterator[int]:
    """Token after token, without end, each drawn after the prompt and all before it that the window shows.

    The grid of depth is the model's own; with a fixed one the output depends on nothing but prompt and seed. Keys and
    values are then kept (`Reading`), unless `cached=False`, and a token costs one solve of itself; where `unreadable`
    gives a reason they are not, and it costs one of the window. Either way each token is drawn from the model's output
    on the window, up to rounding.
    """
    if len(prompt) == 0:
        reject("prompt", prompt.tolist(), "there is nothing to go on from", "Pass at least one token.")
    model.eval()
    read = _read_cached(model) if cached and unreadable(model) is None else _read_whole(model)
    return _sample(read, prompt.tolist(), sampling, window, generator_of(seed))


_Reader = Callable[[list[int], int], Tensor]
"""The logits after the last of some tokens, of which the window shows those from a place on."""


def _sample(
    read: _Reader, tokens: list[int], sampling: Sampling, window: Window, generator: torch.Generator
) -> Iterator[int]:
    start = 0
    while True:
        start = window.start(start, len(tokens))
        tokens.append(sampling.draw(read(tokens, start), generator))
        yield tokens[-1]


def _read_whole(model: ContinuousTransformer) -> _Reader:
    @torch.no_grad()
    def read(tokens: list[int], start: int) -> Tensor:
        return model(torch.tensor([tokens[start:]]))[0, -1]

    return read


def _read_cached(model: ContinuousTransformer) -> _Reader:
    reading, began = Reading(model), 0

    def read(tokens: list[int], start: int) -> Tensor:
        nonlocal began
        if start != began:
            reading.forget()  # every state has seen the token that left the window
            began = start
        return reading.read(torch.tensor([tokens[start + reading.length :]]))[0, -1]

    return read
