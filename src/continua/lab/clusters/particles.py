"""What is measured about clusters: particles on the sphere, moved by the project's attention and solver."""

import dataclasses
import math
from typing import final

import numpy as np
import torch

from continua.core.checks import at_least, not_negative, positive
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.clusters.exact import exact_half_time, exact_overlap, exact_rates
from continua.lab.flows import identity_theta, on_sphere
from continua.lab.sweep import AbstractCell, Row
from continua.operators import Attention
from continua.spaces import Cloud, Sphere

_MERGED = 1e-13
"""Tokens closer than this are one: the flow has no more to say in double precision."""


def check_question(tokens: int | None, beta: float | None, depth: float | None) -> None:
    """Refuses sizes for which the question has no meaning; what is `None` was not asked for."""
    at_least(2, tokens=tokens)
    positive(beta=beta)
    not_negative(depth=depth)


@final
class Equiangular(AbstractCell):
    """Tokens x_i(0) = e_i, Q = K = V = I, on the sphere: their inner products at one time, by particles and exactly."""

    tokens: int
    beta: float
    time: float

    def __post_init__(self) -> None:
        check_question(self.tokens, self.beta, self.time)

    def measure(self) -> Row:
        gram = _gram(self.tokens, self.beta, self.time)
        off = gram[~torch.eye(self.tokens, dtype=torch.bool)]
        exact = exact_overlap(self.tokens, self.beta, self.time)
        found = {"overlap": float(off.mean()), "exact": exact, "spread": float(off.max() - off.min())}
        return dataclasses.asdict(self) | found


def _gram(tokens: int, beta: float, time: float) -> Float[Tensor, "tokens tokens"]:
    """Inner products after `time`; the solve stops early where all tokens have merged."""
    # Pieces that double: a long time after the collapse costs one short piece, a long plateau before it few solves.
    points, left, piece = torch.eye(tokens, dtype=torch.float64)[None], time, 8.0
    while left > 0.0:
        span = min(left, piece)
        points = on_sphere(points, beta, span).x
        left, piece = left - span, 2.0 * piece
        if float((points @ points.mT).min()) > 1.0 - _MERGED:
            break
    return (points @ points.mT)[0]


@final
class CircleModes(AbstractCell):
    """Rates at which modes cos(k theta) grow on a ring of tokens, Q = K = V = I.

    The velocity of the particles is differentiated with respect to their angles (autograd). By symmetry its Jacobian
    is circulant, so one row tells all: the rates are the Fourier coefficients of that row. A ring of twice as many
    tokens says how far this is from a continuum.
    """

    beta: float

    def __post_init__(self) -> None:
        positive(beta=self.beta)

    def measure(self) -> Row:
        count = 64 + 32 * math.ceil(math.sqrt(self.beta))
        coarse, rates = ring_rates(self.beta, count), ring_rates(self.beta, 2 * count)
        formula = exact_rates(self.beta, count // 4)
        mode, exact = int(np.argmax(rates)) + 1, int(np.argmax(formula)) + 1
        return {"beta": self.beta, "particles": 2 * count, "mode": mode, "rate": float(rates[mode - 1])} | {
            "formula_mode": exact,
            "formula_rate": float(formula[exact - 1]),
            "grid_gap": float(np.abs(coarse[: count // 4] - rates[: count // 4]).max()),
            "rates": rates[:24].tolist(),
            "formula_rates": formula[:24].tolist(),
        }


def ring_rates(beta: float, count: int) -> Float[np.ndarray, " modes"]:
    """Growth rates of the modes 1, 2, ..., count/4 of `count` tokens, from the particles."""
    angles = (2.0 * math.pi / count) * torch.arange(count, dtype=torch.float64)
    angles.requires_grad_()
    (row,) = torch.autograd.grad(angular_velocity(angles[None], beta)[0, 0], angles)
    return np.fft.rfft(row.numpy()).real[1 : count // 4 + 1]


def angular_velocity(angles: Float[Tensor, "batch tokens"], beta: float) -> Float[Tensor, "batch tokens"]:
    """d(theta_i)/dt = <tau_i, P_{x_i} A(x_i)>, tau_i the unit tangent at x_i."""
    points = torch.stack([angles.cos(), angles.sin()], -1)
    tangents = torch.stack([-angles.sin(), angles.cos()], -1)
    velocity = Attention(heads=1, key_size=2, beta=beta, biased=False).velocity(identity_theta(2), Cloud(points))
    return (tangents * Sphere().tangent(points, velocity)).sum(-1)


@final
class Metastable(AbstractCell):
    """The time at which equiangular tokens have come half-way, found along the path of the particles."""

    tokens: int
    beta: float

    def measure(self) -> Row:
        exact = exact_half_time(self.tokens, self.beta)
        # Dense around the crossing, where the inverse interpolation must be good to the last digits.
        times = [exact * f for f in (0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1)]
        start = torch.eye(self.tokens, dtype=torch.float64)[None]
        path = _path(start, self.beta, times, 1e-10)
        overlaps = (path[:, 0, 0] * path[:, 0, 1]).sum(-1).tolist()
        return {"tokens": self.tokens, "beta": self.beta, "exact": exact, "time": _crossing(times, overlaps, 0.5)}


@final
class Collapse(AbstractCell):
    """Random tokens on the sphere of R^width: the largest angle over time, for several seeds at once."""

    tokens: int
    width: int
    beta: float
    depth: float
    seeds: int

    def measure(self) -> Row:
        times = [self.depth * i / 40 for i in range(41)]
        x = _path(random_tokens(self.seeds, self.tokens, self.width, 0), self.beta, times, 1e-10)
        gaps = (1.0 - (x @ x.mT).amin((-1, -2))).clamp_min(0.0)  # (times, seeds)
        return dataclasses.asdict(self) | {"times": times, "gaps": gaps.mT.tolist()}


@final
class Film(AbstractCell):
    """Tokens on the circle, for the eye: clusters form fast and merge late."""

    tokens: int
    beta: float
    depth: float

    def measure(self) -> Row:
        times = [self.depth * (i / 48) ** 2 for i in range(49)]  # denser at the start, where clusters form
        path = _path(random_tokens(1, self.tokens, 2, 3), self.beta, times, 1e-8)
        return dataclasses.asdict(self) | {"times": times, "points": path[:, 0].tolist()}


def _path(points: Points, beta: float, times: list[float], rtol: float) -> Float[Tensor, "times batch tokens width"]:
    """The tokens at some times, the last of which ends the solve."""
    xs = on_sphere(points, beta, times[-1], times, rtol).xs
    assert xs is not None
    return xs


def random_tokens(batch: int, tokens: int, width: int, seed: int) -> Points:
    """Independent uniform tokens on the unit sphere."""
    x = torch.randn(batch, tokens, width, generator=generator_of(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def _crossing(times: list[float], values: list[float], level: float) -> float:
    """Where the polynomial through all points, as a function of the value, meets the level (inverse interpolation)."""
    total = 0.0
    for t, v in zip(times, values, strict=True):
        total += t * math.prod((level - u) / (v - u) for u in values if u != v)
    return total
