"""Writing on: tokens drawn one after the other from a causal model."""

import dataclasses
import math
from collections.abc import Iterator
from typing import final

import torch

from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.model import ContinuousTransformer


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


@torch.no_grad()
def generated(
    model: ContinuousTransformer, prompt: Int[Tensor, " tokens"], sampling: Sampling, context: int, seed: int
) -> Iterator[int]:
    """Token after token, without end, each drawn after the prompt and all before it; the model sees the last `context`.

    The grid of depth is the model's own; with a fixed one the output depends on nothing but prompt and seed.
    """
    if len(prompt) == 0:
        reject("prompt", prompt.tolist(), "there is nothing to go on from", "Pass at least one token.")
    generator, tokens = generator_of(seed), prompt.tolist()
    model.eval()
    while True:
        window = torch.tensor([tokens[-context:]], dtype=torch.long)
        tokens.append(sampling.draw(model(window)[0, -1], generator))
        yield tokens[-1]
