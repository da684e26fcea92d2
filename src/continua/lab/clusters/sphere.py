"""Beyond symmetric starts: how long clusters last, and how random tokens collapse into one."""

import dataclasses
from typing import final

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Points
from continua.lab.cells import AbstractCell, Row
from continua.lab.clusters.equiangular import exact_half_time
from continua.lab.flows import on_sphere


@final
@dataclasses.dataclass(frozen=True)
class Metastable(AbstractCell):
    """The time at which equiangular tokens have come half-way, found along the path of the particles."""

    tokens: int
    beta: float

    def measure(self) -> Row:
        exact = exact_half_time(self.tokens, self.beta)
        times = [exact * f for f in (0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1)]
        start = torch.eye(self.tokens, dtype=torch.float64)[None]
        path = on_sphere(start, self.beta, times[-1], times, rtol=1e-10).xs
        assert path is not None
        overlaps = (path[:, 0, 0] * path[:, 0, 1]).sum(-1).tolist()
        return {"tokens": self.tokens, "beta": self.beta, "exact": exact, "time": _crossing(times, overlaps, 0.5)}


@final
@dataclasses.dataclass(frozen=True)
class Collapse(AbstractCell):
    """Random tokens on the sphere of R^width: the largest angle over time, for several seeds at once."""

    tokens: int
    width: int
    beta: float
    depth: float
    seeds: int

    def measure(self) -> Row:
        times = [self.depth * i / 40 for i in range(41)]
        path = on_sphere(
            random_tokens(self.seeds, self.tokens, self.width, 0), self.beta, self.depth, times, rtol=1e-10
        )
        assert path.xs is not None
        x = path.xs
        gaps = (1.0 - (x @ x.mT).amin((-1, -2))).clamp_min(0.0)  # (times, seeds)
        return dataclasses.asdict(self) | {"times": times, "gaps": gaps.mT.tolist()}


@final
@dataclasses.dataclass(frozen=True)
class Film(AbstractCell):
    """Tokens on the circle, for the eye: clusters form fast and merge late."""

    tokens: int
    beta: float
    depth: float

    def measure(self) -> Row:
        times = [self.depth * (i / 48) ** 2 for i in range(49)]
        path = on_sphere(random_tokens(1, self.tokens, 2, 3), self.beta, self.depth, times, rtol=1e-8).xs
        assert path is not None
        return dataclasses.asdict(self) | {"times": times, "points": path[:, 0].tolist()}


def random_tokens(batch: int, tokens: int, width: int, seed: int) -> Points:
    """Independent uniform tokens on the unit sphere."""
    x = torch.randn(batch, tokens, width, generator=generator_of(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def _crossing(times: list[float], values: list[float], level: float) -> float:
    """Where the polynomial through all points, as a function of the value, meets the level (inverse interpolation)."""
    total = 0.0
    for i, (t, v) in enumerate(zip(times, values, strict=True)):
        weight = 1.0
        for j, u in enumerate(values):
            if j != i:
                weight *= (level - u) / (v - u)
        total += weight * t
    return total
