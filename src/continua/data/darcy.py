"""Darcy flow: from the conductivity of a medium to the pressure in it, at any resolution of the plane."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.darcy_solver import darcy_solution
from continua.data.hilbert import hilbert_curve
from continua.data.measures import relative_errors
from continua.data.task import AbstractTask, Form, Preset, Question, Split, Wording

_FINE = 64
"""Intervals a side of the grid on which the equation is solved; the centres of up to 32 cells a side are among it."""
_WAVES = 6
"""Waves of the conductivity along each side."""
_SPACING = 1.0 / 16.0
"""What counts as near in token time: the curve's stay in a sixteenth of the square. Finer places are told by (x, y), as
the time of a place is known only to the size of a cell, which differs between resolutions."""
_HIGHEST = 0.0736713
"""The highest pressure in the medium a = 1, which answers are measured in."""


@final
@dataclasses.dataclass(frozen=True)
class Darcy(AbstractTask):
    """-div(a grad u) = 1 on the unit square, u = 0 on its border: given a, tell u, in units of its maximum for a = 1.

    log a = `deviation` g with g a smooth Gaussian field of variance 1 (`log_conductivities`); u by finite volumes
    (`darcy_solution`). A token is the centre of one of `points` x `points` cells, its values log a and its place
    (x, y) in [-1, 1]^2. Token time is that of Hilbert's curve through the cells, so neighbours in time are neighbours
    in the plane, all tokens have one mass, and a place has one time at all resolutions, to the size of a cell. The
    equation commutes with the eight symmetries of the square, which training batches are turned by.
    """

    points: int = 16
    samples: int = 256
    deviation: float = 0.7

    def __post_init__(self) -> None:
        if self.points not in (4, 8, 16, 32):
            why = f"the curve needs a power of two, and the equation is solved on {_FINE} intervals"
            reject("points", self.points, why, "Pass 4, 8, 16 or 32.")
        if self.samples < 10:
            reject("samples", self.samples, "this is too few", "Pass 10 or more.")
        if not 0.0 < self.deviation <= 1.5:
            reject("deviation", self.deviation, "the medium varies, but not beyond the grid", "Pass one in (0, 1.5].")

    @property
    def name(self) -> str:
        return "darcy"

    @property
    def form(self) -> Form:
        return Form(outputs=1, question=Question.FUNCTION, features=3, span=1.0, spacing=_SPACING)

    @property
    def augmentation(self) -> str:
        return "random flips and turns of the square"

    def presets(self) -> Mapping[str, Preset]:
        demo = Preset(32, 4, 64, steps=3, updates=600, batch=8, decay=0.0)
        return {"demo": demo, "full": dataclasses.replace(demo, updates=6000)}

    def count(self, split: Split) -> int:
        return self.samples if split is Split.TRAIN else max(8, self.samples // 4)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        curve = hilbert_curve(self.points)
        x, y = (_FINE // (2 * self.points) * (2 * curve + 1)).unbind(1)
        medium, pressure = (field[index][:, x, y, None] for field in _solved(self, split))
        place = ((2 * curve + 1) / self.points - 1.0).expand(len(index), -1, -1)
        times = (torch.arange(len(curve)) + 0.5) / len(curve)
        return Batch((torch.cat([medium, place], -1), times.expand(len(index), -1)), pressure)

    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        values, times = batch.inputs
        assert batch.targets is not None
        turns = _turns(self.points)
        chosen = turns[torch.randint(len(turns), (len(values),), generator=generator)]
        medium, targets = (field.take_along_dim(chosen.unsqueeze(-1), 1) for field in (values[..., :1], batch.targets))
        return Batch((torch.cat([medium, values[..., 1:]], -1), times), targets)

    def measures(self, output: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
        return {"relative L2 error": relative_errors(output, targets)}

    @property
    def better(self) -> int:
        return -1

    @property
    def wording(self) -> Wording:
        return Wording(names=("pressure u",), plane=True)

    def facts(self) -> dict[str, Any]:
        sizes = {"training samples": self.samples, "test samples": self.count(Split.TEST)}
        return {**sizes, "points a side": self.points, "unit of pressure": _HIGHEST}

    def variants(self) -> Mapping[str, AbstractTask]:
        other = [n for n in (self.points // 2, 2 * self.points) if 8 <= n <= 32]
        return {f"{n} x {n} points": dataclasses.replace(self, points=n) for n in other}


def log_conductivities(samples: int, generator: torch.Generator) -> Float[Tensor, "samples nodes nodes"]:
    """Gaussian fields at the nodes of the fine grid, of mean 0 and, averaged over the square, variance 1.

    g(x, y) = sum_kl c_kl xi_kl cos(pi k x) cos(pi l y) ,   c_kl ~ 1/(1 + k^2 + l^2) ,   c_00 = 0
    """
    k = torch.arange(_WAVES, dtype=torch.float64)
    x = torch.linspace(0.0, 1.0, _FINE + 1, dtype=torch.float64)
    size = 1.0 / (1.0 + k[:, None] ** 2 + k**2)
    size[0, 0] = 0.0
    power = torch.where(k > 0, 0.5, 1.0)  # the mean square of cos(pi k x)
    size /= (size.square() * power[:, None] * power).sum().sqrt()
    drawn = size * torch.randn(samples, _WAVES, _WAVES, generator=generator, dtype=torch.float64)
    wave = torch.cos(math.pi * k[:, None] * x)
    return wave.T @ drawn @ wave


@functools.lru_cache(maxsize=8)
def _fields(samples: int, deviation: float, split: Split) -> tuple[Tensor, Tensor]:
    """log a and u / max at the nodes of the fine grid, in float32."""
    medium = deviation * log_conductivities(samples, generator_of(1 + list(Split).index(split)))
    pressure = darcy_solution(medium.exp(), torch.ones_like(medium[:, 1:-1, 1:-1]), tolerance=1e-8)
    return medium.float(), (pressure / _HIGHEST).float()


def _solved(task: Darcy, split: Split) -> tuple[Tensor, Tensor]:
    return _fields(task.count(split), task.deviation, split)


@functools.lru_cache(maxsize=4)
def _turns(points: int) -> Int[Tensor, "8 tokens"]:
    """For each symmetry of the square, the token whose place each token's place goes to."""
    curve = hilbert_curve(points)
    token = torch.empty(points, points, dtype=torch.long)
    token[curve[:, 0], curve[:, 1]] = torch.arange(len(curve))
    turned = [torch.rot90(grid, quarter) for grid in (token, token.T) for quarter in range(4)]
    return torch.stack([grid[curve[:, 0], curve[:, 1]] for grid in turned])
