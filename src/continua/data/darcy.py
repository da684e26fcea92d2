"""Darcy flow: from the conductivity of a medium to the pressure in it, at any resolution of the plane."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.checks import at_least, fraction, positive
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.sampling import fourier_features
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_FINE = 64
"""Intervals a side of the grid on which the equation is solved, and whose nodes hold the centres of up to 32 cells a
side; 64 cells have twice as many intervals, and the same media."""
_WAVES = 6
"""Waves of the conductivity along each side."""
_FEATURES = 4
"""Waves of a place along each side (`fourier_features`)."""
_HIGHEST = 0.0736713
"""The highest pressure in the medium a = 1, which answers are measured in."""
_MOST = 500
"""Iterations after which a solve is given up."""


@final
@dataclasses.dataclass(frozen=True)
class Darcy(AbstractTask):
    """-div(a grad u) = 1 on the unit square, u = 0 on its border: given a, predict u / max u for a = 1.

    log a = `deviation` g with g a smooth Gaussian field of variance 1 (`log_conductivities`); u by finite volumes
    (`darcy_solution`). A token is the centre of one of `points` x `points` cells, its features log a, its place (x, y)
    in [-1, 1]^2 and the waves of this place (`fourier_features`). Tokens are a set: their places say all, token time
    nothing, and each has the same mass, so that more points are a finer sum of the same integral. The equation commutes
    with the eight symmetries of the square, which training batches are turned by; their points lie anywhere in the
    cells, at one place in all of them.
    """

    points: int = 16
    examples: int = 256
    deviation: float = 0.7

    name = "darcy"

    def __post_init__(self) -> None:
        at_least(10, examples=self.examples)
        if self.points not in (4, 8, 16, 32, 64):
            why = "the centres of the cells are nodes of the grid on which the equation is solved"
            reject("points", self.points, why, "Pass 4, 8, 16, 32 or 64.")
        fraction(1.5, none=False, deviation=self.deviation)

    @property
    def form(self) -> Form:
        wording = Wording(names=("pressure u",), plane=True)
        return Form(1, Question.FUNCTION, features=3 + 4 * _FEATURES, ordered=False, wording=wording)

    def count(self, split: Split) -> int:
        return self.examples if split is Split.TRAIN else max(8, self.examples // 4)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        fields = torch.stack(self._solve(split), 1)[index]
        return self._sample(fields, index, torch.zeros(len(index), 2, dtype=torch.long))

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        assert batch.index is not None
        size, reach = len(batch.index), self._half - 1
        kinds = torch.randint(8, (size,), generator=generator).tolist()
        moves = torch.randint(-reach, reach + 1, (size, 2), generator=generator)
        both = torch.stack(self._solve(Split.TRAIN), 1)[batch.index]
        turned = [torch.rot90(one.mT if k > 3 else one, k % 4, (1, 2)) for one, k in zip(both, kinds, strict=True)]
        return self._sample(torch.stack(turned), batch.index, moves)

    @property
    def _intervals(self) -> int:
        return max(_FINE, 2 * self.points)

    @property
    def _half(self) -> int:
        """Fine intervals from the border of a cell to its centre."""
        return self._intervals // (2 * self.points)

    def _solve(self, split: Split) -> tuple[Tensor, Tensor]:
        return _solutions(self.count(split), self.deviation, split, self._intervals)

    def _sample(self, fields: Tensor, index: Tensor, moves: Int[Tensor, "size 2"]) -> Batch:
        """Medium and pressure (size, 2, nodes, nodes) at the centres of the cells, or so many fine intervals beside."""
        cell = torch.cartesian_prod(*2 * [torch.arange(self.points)])
        node = self._half * (2 * cell + 1) + moves.unsqueeze(1)
        x, y = node.unbind(-1)
        found = fields[torch.arange(len(fields)).unsqueeze(1), :, x, y]
        place = node / self._intervals
        values = torch.cat([found[..., :1], 2.0 * place - 1.0, fourier_features(place, _FEATURES)], -1)
        return Batch((values,), found[..., 1:], index=index)

    def details(self) -> dict[str, Any]:
        changed = "random flips and turns of the square, points that lie anywhere in their cells"
        return {"points a side": self.points, "unit of pressure": _HIGHEST, "augmentation": changed}

    def variants(self) -> Mapping[str, AbstractTask]:
        other = [n for n in (self.points // 2, 2 * self.points, 4 * self.points) if 8 <= n <= 64]
        return {f"{n} x {n} points": dataclasses.replace(self, points=n) for n in other}


def log_conductivities(
    samples: int, generator: torch.Generator, intervals: int = _FINE
) -> Float[Tensor, "samples nodes nodes"]:
    """Gaussian fields at the nodes of so many intervals a side, of mean 0 and, averaged over the square, variance 1.

    g(x, y) = sum_kl c_kl xi_kl cos(pi k x) cos(pi l y) ,   c_kl ~ 1/(1 + k^2 + l^2) ,   c_00 = 0
    """
    k = torch.arange(_WAVES, dtype=torch.float64)
    x = torch.linspace(0.0, 1.0, intervals + 1, dtype=torch.float64)
    size = 1.0 / (1.0 + k[:, None] ** 2 + k**2)
    size[0, 0] = 0.0
    power = torch.where(k > 0, 0.5, 1.0)  # the mean square of cos(pi k x)
    size /= (size.square() * power[:, None] * power).sum().sqrt()
    drawn = size * torch.randn(samples, _WAVES, _WAVES, generator=generator, dtype=torch.float64)
    wave = torch.cos(math.pi * k[:, None] * x)
    return wave.T @ drawn @ wave


@functools.lru_cache(maxsize=8)
def _solutions(samples: int, deviation: float, split: Split, intervals: int) -> tuple[Tensor, Tensor]:
    """log a and u / max at the nodes of the fine grid, in float32: all resolutions are of the same media."""
    medium = deviation * log_conductivities(samples, generator_of(1 + list(Split).index(split)), intervals)
    pressure = darcy_solution(medium.exp(), torch.ones_like(medium[:, 1:-1, 1:-1]), tolerance=1e-8)
    return medium.float(), (pressure / _HIGHEST).float()


def darcy_solution(
    conductivity: Float[Tensor, "batch nodes nodes"],
    source: Float[Tensor, "batch inner inner"],
    tolerance: float = 1e-10,
) -> Float[Tensor, "batch nodes nodes"]:
    """u with -div(a grad u) = f on the unit square and u = 0 on its border, at the nodes of an equispaced grid.

    `conductivity` a is given at all nodes, `source` f at the inner ones. The flux between neighbours i and j is
    a_ij (u_i - u_j)/h with the harmonic mean a_ij = 2 a_i a_j/(a_i + a_j); its error is O(h^2) where a is smooth.

    Solved for all of the batch at once by conjugate gradients until |r| <= tolerance |f|, preconditioned by
    a^{-1/2} L^{-1} a^{-1/2}, L the operator for a = 1, which sine transforms invert: the number of iterations hardly
    depends on the grid. After P. Concus and G. H. Golub, Use of fast direct methods for the efficient numerical
    solution of nonseparable elliptic equations (1973).
    """
    if conductivity.dtype != torch.float64 or source.dtype != torch.float64:
        reject("conductivity", conductivity.dtype, "rounding would stop the solve early", "Pass both as .double().")
    positive(conductivity=float(conductivity.min()), largest_conductivity=float(conductivity.max()))
    a = conductivity
    root = a[:, 1:-1, 1:-1].sqrt()
    sines, spectrum = _sines(a.shape[-1] - 1, a.dtype)
    # a sequence that is solved before the others goes on with r = 0: its steps are then 0 / tiny, and not 0 / 0
    tiny = torch.finfo(a.dtype).tiny

    def precondition(r: Tensor) -> Tensor:
        return sines @ (sines @ (r / root) @ sines / spectrum) @ sines / root

    u = torch.zeros_like(source)
    r = source.clone()
    z = precondition(r)
    p, product = z, _inner(r, z)
    goal = tolerance * _inner(source, source).sqrt()
    for _ in range(_MOST):
        if bool((_inner(r, r).sqrt() <= goal).all()):
            return torch.nn.functional.pad(u, (1, 1, 1, 1))
        image = _apply(a, p)
        step = product / _inner(p, image).clamp_min(tiny)
        u, r = u + step * p, r - step * image
        z = precondition(r)
        before, product = product, _inner(r, z)
        p = z + product / before.clamp_min(tiny) * p
    contrast = float(a.max() / a.min())
    reject("conductivity", f"contrast {contrast:.3g}", f"{_MOST} iterations were too few", "Pass a smaller contrast.")


def _apply(a: Float[Tensor, "batch nodes nodes"], u: Float[Tensor, "batch inner inner"]) -> Tensor:
    """The sum of the fluxes out of each inner node's cell, over its area."""
    u = torch.nn.functional.pad(u, (1, 1, 1, 1))
    total = torch.zeros_like(u[:, 1:-1, 1:-1])
    for axis in (1, 2):
        size = a.shape[axis] - 1
        left, right = a.narrow(axis, 0, size), a.narrow(axis, 1, size)
        # the harmonic mean: the conductivity of two half cells in series
        flux = 2 * left * right / (left + right) * u.diff(dim=axis)
        total -= flux.diff(dim=axis).narrow(3 - axis, 1, size - 1)
    return total * (a.shape[-1] - 1) ** 2


def _sines(intervals: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The orthonormal symmetric matrix of sine waves, and the eigenvalues of L on their products."""
    k = torch.arange(1, intervals, dtype=dtype)
    sines = math.sqrt(2.0 / intervals) * torch.sin(math.pi * k[:, None] * k / intervals)
    once = (2 * intervals * torch.sin(math.pi * k / (2 * intervals))) ** 2
    return sines, once[:, None] + once


def _inner(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum((1, 2), keepdim=True)
