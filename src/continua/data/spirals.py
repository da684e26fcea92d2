"""Spirals seen at irregular times, with points missing: where were they between, and where will they be?"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.checks import at_least, fraction
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_SEEN = 2.0 / 3.0
"""Observations end here; query times reach to 1."""


@final
@dataclasses.dataclass(frozen=True)
class Spirals(AbstractTask):
    """Spirals in the plane, turning either way, observed with noise at `tokens` irregular times of [0, 2/3].

        x(t) = r (cos phi, sin phi) ,   r = r0 + rate t ,   phi = phi0 +- 2 pi turns t

    Token time is t itself. Each observation is lost with a chance of up to `missing`. Predicted is the place, without
    noise, at `queries` times of [0, 2/3] (interpolation) and as many of [2/3, 1] (extrapolation). After R. T. Q. Chen
    et al., Neural ordinary differential equations (2018), section 5.1.
    """

    examples: int = 1000
    tokens: int = 40
    queries: int = 10
    missing: float = 0.5
    noise: float = 0.03

    name = "spirals"

    def __post_init__(self) -> None:
        at_least(10, examples=self.examples)
        at_least(4, tokens=self.tokens)
        at_least(1, queries=self.queries)
        fraction(0.8, missing=self.missing)

    @property
    def form(self) -> Form:
        spacing, wording = _SEEN / self.tokens, Wording(names=("x", "y"))
        return Form(outputs=2, features=2, question=Question.VALUE, queries=True, spacing=spacing, wording=wording)

    def count(self, split: Split) -> int:
        return self.examples if split is Split.TRAIN else max(10, self.examples // 5)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        values, times, present, queries, targets = (tensor[index] for tensor in _draw(self, split))
        longest = int(present.sum(1).max())
        return Batch((values[:, :longest], times[:, :longest], present[:, :longest]), targets, query_times=queries)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def details(self) -> dict[str, Any]:
        return {"seen until": _SEEN}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {
            "twice as many observations": dataclasses.replace(self, tokens=2 * self.tokens),
            "no observation missing": dataclasses.replace(self, missing=0.0),
        }


@functools.lru_cache(maxsize=8)
def _draw(task: Spirals, split: Split) -> tuple[Tensor, ...]:
    """Values, times and mask of the observations, query times and true places; missing points stand at the end."""
    generator = generator_of(list(Split).index(split))
    size = task.count(split)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    turn = torch.where(uniform(size, 1) < 0.5, -1.0, 1.0) * (1.0 + uniform(size, 1))
    start, radius, rate = 2 * math.pi * uniform(size, 1), 0.3 + 0.4 * uniform(size, 1), 0.3 + 0.7 * uniform(size, 1)

    def place(t: Float[Tensor, "size some"]) -> Float[Tensor, "size some 2"]:
        angle, distance = start + 2 * math.pi * turn * t, radius + rate * t
        return torch.stack([distance * angle.cos(), distance * angle.sin()], -1)

    # spirals and query times are drawn before the observations, so variants with other observations share both
    queries = torch.cat([_SEEN * uniform(size, task.queries), _SEEN + (1 - _SEEN) * uniform(size, task.queries)], 1)
    queries = queries.sort(1).values
    times = _SEEN * uniform(size, task.tokens).sort(1).values
    present = uniform(size, task.tokens) >= task.missing * uniform(size, 1)
    present[:, :2] = True
    order = torch.where(present, times, torch.inf).argsort(1)
    times, present = times.gather(1, order), present.gather(1, order)
    values = place(times) + task.noise * torch.randn(size, task.tokens, 2, generator=generator)
    times = torch.where(present, times, 0.0)
    return values * present.unsqueeze(-1), times, present, queries, place(queries)
