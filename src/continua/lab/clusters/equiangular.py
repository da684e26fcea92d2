"""Equiangular tokens: n orthonormal tokens whose common inner product obeys one scalar equation."""

import dataclasses
import math
from typing import final

import numpy as np
import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.flows import on_sphere

_MERGED = 1e-13
"""Tokens closer than this are one: the flow has no more to say in double precision."""


@final
@dataclasses.dataclass(frozen=True)
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
        overlap, spread = float(off.mean()), float(off.max() - off.min())
        return {"tokens": self.tokens, "beta": self.beta, "time": self.time} | {
            "overlap": overlap,
            "exact": exact,
            "spread": spread,
        }


def check_question(tokens: int | None, beta: float | None, time: float | None) -> None:
    """Refuses sizes for which the question has no meaning; what is `None` was not asked for."""
    if tokens is not None and tokens < 2:
        reject("tokens", tokens, "an inner product needs two tokens", "Pass 2 or more, such as --tokens 8.")
    if beta is not None:
        check_beta(beta)
    if time is not None and not (time >= 0 and math.isfinite(time)):
        reject("time", time, "the flow runs forward for a finite time", "Pass a number >= 0, such as --time 2.")


def check_beta(beta: float) -> None:
    """Refuses an inverse temperature that is not positive."""
    if not (beta > 0 and math.isfinite(beta)):
        reject("beta", beta, "the inverse temperature is positive and finite", "Pass a number > 0, such as --beta 4.")


def _gram(tokens: int, beta: float, time: float) -> Float[Tensor, "tokens tokens"]:
    """Inner products after `time`; the solve stops early where all tokens have merged."""
    points, left, piece = torch.eye(tokens, dtype=torch.float64)[None], time, 8.0
    while left > 0.0:
        span = min(left, piece)
        points = on_sphere(points, beta, span).x
        left, piece = left - span, 2.0 * piece
        if float((points @ points.mT).min()) > 1.0 - _MERGED:
            break
    return (points @ points.mT)[0]


def exact_overlap(tokens: int, beta: float, time: float) -> float:
    """g(t) of g' = 2 e^{beta g} (1-g) ((n-1)g+1) / (e^beta + (n-1) e^{beta g}), g(0) = 0, without an ODE solver.

    With g = 1 - e^{-Y} time is an explicit integral of a smooth function,

        t e^{-beta} = int_0^Y ( e^{-beta s} + (n-1) e^{-beta} ) / ( 2 ((n-1) s + 1) ) dy ,   s = 1 - e^{-y},

    summed by Gauss-Legendre panels until it passes t, and inverted within the last panel by bisection.
    """
    aim = time * math.exp(-beta)
    if aim == 0.0:
        return 0.0
    y, total = 0.0, 0.0
    while y < 40.0:  # 1 - e^{-40} is 1 in double precision
        width = _width(tokens, beta, y)
        piece = _panel(tokens, beta, y, y + width)
        if total + piece >= aim:
            break
        total, y = total + piece, y + width
    else:
        return 1.0
    low, high = y, y + width
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total + _panel(tokens, beta, y, middle) < aim else (low, middle)
    return -math.expm1(-0.5 * (low + high))


def _width(tokens: int, beta: float, y: float) -> float:
    """How far a panel may reach: e^{-beta s} varies over 1/beta, and 1/((n-1)s+1) has its pole 1/(n-1) before y = 0."""
    return min(0.25, math.exp(y) / (1.0 + beta), 2.0 * (1.0 / (tokens - 1) + y))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _panel(tokens: int, beta: float, a: float, b: float) -> float:
    s = -np.expm1(-(a + 0.5 * (b - a) * (_NODES + 1.0)))
    rest = (tokens - 1) * math.exp(-beta)
    return float(0.5 * (b - a) * (_WEIGHTS * (np.exp(-beta * s) + rest) / (2.0 * ((tokens - 1) * s + 1.0))).sum())


def exact_half_time(tokens: int, beta: float) -> float:
    """The time at which the common inner product is 1/2."""
    y, end, total = 0.0, math.log(2.0), 0.0
    while y < end:
        after = min(end, y + _width(tokens, beta, y))
        total, y = total + _panel(tokens, beta, y, after), after
    return total * math.exp(beta)
