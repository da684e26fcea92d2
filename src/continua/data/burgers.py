"""Burgers' equation: from the state at time 0 to the state at a later time, at any resolution."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.checks import at_least, fraction
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.sampling import roll
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_FINE = 256
"""Points of the grid on which the equation is solved; resolutions divide it."""
_WAVES = 6
"""Waves of the first states."""
_SPACING = 1.0 / 24.0
"""What counts as near: a quarter of the shortest first wave. Positions are told apart by waves of this length at most,
about ten in the circle, which a grid of 32 points still resolves; by those of the 64 points it is trained on, 25 in the
circle, the same integrals on 32 points would be aliased."""


@final
@dataclasses.dataclass(frozen=True)
class Burgers(AbstractTask):
    """u_t + u u_x = nu u_xx on the circle [0, 1): given u(x, 0), predict u(x, `until`).

    A token is a point of the grid, its value u(x, 0). Token time is the place x in [0, 1]. The grid has `points`
    intervals, both ends of [0, 1] among its points, so that the trapezoid masses are exact for the circle. Solved here
    by a Fourier method (`burgers_solution`). The equation commutes with shifts, so training batches are rolled.
    """

    points: int = 64
    examples: int = 512
    viscosity: float = 0.02
    until: float = 0.3

    name = "burgers"

    def __post_init__(self) -> None:
        at_least(10, examples=self.examples)
        if self.points < 8 or _FINE % self.points:
            cure = "Pass 8, 16, 32, 64, 128 or 256."
            reject("points", self.points, f"the equation is solved on {_FINE} points, and the grid is a part", cure)
        if not self.viscosity >= 0.005:
            reject("viscosity", self.viscosity, "shocks would be thinner than the grid", "Pass 0.005 or more.")
        fraction(2.0, none=False, until=self.until)

    @property
    def form(self) -> Form:
        wording = Wording(names=(f"u(x, {self.until:g})",), time="place x")
        return Form(outputs=1, question=Question.FUNCTION, features=1, spacing=_SPACING, wording=wording)

    def count(self, split: Split) -> int:
        return self.examples if split is Split.TRAIN else max(8, self.examples // 4)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        states = _solutions(self.count(split), self.viscosity, self.until, split)
        before, after = (u[index, :: _FINE // self.points, None] for u in states)
        x = torch.linspace(0.0, 1.0, self.points + 1).expand(len(index), -1)
        return Batch((before, x), after)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        before, x = batch.inputs
        assert before is not None and batch.targets is not None
        # both ends are one point of the circle: it is rolled once, and doubled again afterwards
        both = roll(torch.cat([before, batch.targets], -1)[:, :-1], generator)
        before, after = torch.cat([both, both[:, :1]], 1).split(1, -1)
        return Batch((before, x), after)

    def details(self) -> dict[str, Any]:
        return {"points": self.points, "augmentation": "shifts on the circle by a random number of samples"}

    def variants(self) -> Mapping[str, AbstractTask]:
        other = [n for n in (self.points // 2, 2 * self.points, 4 * self.points) if 16 <= n <= _FINE]
        return {f"{n} points": dataclasses.replace(self, points=n) for n in other}


def burgers_solution(
    initial: Float[Tensor, "batch points"], viscosity: float, until: float, steps: int
) -> Float[Tensor, "batch points"]:
    """u(x, until) on an equispaced grid of the circle [0, 1), from u(x, 0).

    Fourier in x with the 2/3 rule against aliasing. With k the wave numbers and E = exp(-nu k^2 dt), the stiff part is
    exact (integrating factor) and u u_x = (u^2/2)_x is advanced by the classical Runge-Kutta method of order 4.
    """
    points = initial.shape[-1]
    k = 2 * math.pi * torch.fft.rfftfreq(points, 1.0 / points, dtype=initial.dtype)
    # products of waves below a third of the sampling rate alias only onto waves that are cut off here
    resolved = k <= 2 * math.pi * points / 3
    dt = until / steps
    half = torch.exp(-viscosity * k**2 * dt / 2)

    def flux(v: Tensor) -> Tensor:
        return -0.5j * k * resolved * torch.fft.rfft(torch.fft.irfft(v, points) ** 2)

    v = torch.fft.rfft(initial) * resolved
    for _ in range(steps):
        # stages in the variable exp(nu k^2 t) v, each moved to its own time by powers of `half`: no growing exponential
        a = flux(v)
        b = flux(half * (v + dt / 2 * a))
        c = flux(half * v + dt / 2 * b)
        d = flux(half**2 * v + dt * half * c)
        v = half**2 * v + dt / 6 * (half**2 * a + 2 * half * (b + c) + d)
    return torch.fft.irfft(v, points)


@functools.lru_cache(maxsize=8)
def _solutions(samples: int, viscosity: float, until: float, split: Split) -> tuple[Tensor, Tensor]:
    """First states, sums of a few waves with falling random amplitudes, and the later ones, in float32.

    Always on the fine grid, so that all resolutions are of the same functions, and with the values at both ends of
    [0, 1], which are one point of the circle.
    """
    generator = generator_of(1 + list(Split).index(split))
    x = torch.arange(_FINE, dtype=torch.float64) / _FINE
    waves = torch.arange(1, _WAVES + 1, dtype=torch.float64)
    drawn = torch.randn(2, samples, _WAVES, generator=generator, dtype=torch.float64) / (1.0 + waves)
    phase = 2 * math.pi * waves[:, None] * x
    before = drawn[0] @ phase.cos() + drawn[1] @ phase.sin()
    after = burgers_solution(before, viscosity, until, steps=max(1, math.ceil(400 * until)))
    before, after = (torch.cat([u, u[:, :1]], 1).float() for u in (before, after))
    return before, after
