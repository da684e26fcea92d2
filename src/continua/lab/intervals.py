"""How sure a measured number is: intervals of confidence for slopes, from residuals or by resampling."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from continua.core.errors import reject
from continua.core.slopes import fitted_slope


class Interval(NamedTuple):
    """A measured value and the interval that holds the true one with the confidence that was asked for."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """With as many digits as tell one end from the other."""
        width, digits = self.high - self.low, 3
        if 0.0 < width < math.inf:
            digits = min(15, max(digits, 1 - math.floor(math.log10(width))))
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def slope_interval(sizes: Sequence[float | int], errors: Sequence[float], level: float = 0.95) -> Interval:
    """The slope of log(error) against log(size) with Student's interval.

        slope +- t sqrt( sum r_i^2 / (n - 2) / sum (log size_i - mean)^2 ) ,   r_i the residuals of the fit

    Reference implementation: `scipy.stats.linregress` with `scipy.stats.t.ppf`.
    """
    slope = fitted_slope(sizes, errors)
    if len(sizes) < 3:
        reject("sizes", sizes, "two points leave no residual to judge the slope by", "Give at least three sizes.")
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(errors, float))
    x, y = x - x.mean(), y - y.mean()
    deviation = math.sqrt(float(((y - slope * x) ** 2).sum()) / (len(x) - 2) / float((x**2).sum()))
    half = student_quantile(level, len(x) - 2) * deviation
    return Interval(slope, slope - half, slope + half)


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of a few draws with Student's interval, mean +- t s / sqrt(n)."""
    if len(values) < 2:
        reject("values", values, "one draw does not tell how draws differ", "Give at least two.")
    mean = float(np.mean(values))
    half = student_quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def bootstrap_slopes(
    sizes: Float[np.ndarray, "cells factors"],
    squares: Float[np.ndarray, "cells seeds"],
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    paired: bool = False,
) -> list[Interval]:
    """Slopes of log root-mean-square errors against the logarithms of several sizes, with bootstrap intervals.

        log sqrt(E error^2) = c + sum_f slope_f log size_f

    `squares` has the squared errors of each seed. Seeds are resampled within each cell (the same ones in all cells
    where they are `paired`), and percentiles of the refitted slopes are the interval (B. Efron, R. Tibshirani, An
    Introduction to the Bootstrap, section 13.3).
    """
    if sizes.shape[0] != squares.shape[0] or squares.shape[1] < 2:
        reject(
            "squares", squares.shape, "a bootstrap needs one row per cell, of at least two seeds", "Pass more seeds."
        )
    design = np.column_stack([np.ones(len(sizes)), np.log(sizes)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        reject("sizes", sizes.tolist(), "the sizes do not vary enough for these slopes", "Vary every size.")
    solve = np.linalg.pinv(design)[1:]  # (factors, cells)
    rng = np.random.default_rng(seed)
    picks = rng.integers(squares.shape[1], size=(draws, 1 if paired else len(squares), squares.shape[1]))
    resampled = np.take_along_axis(squares[None], picks, axis=2).mean(-1)  # (draws, cells)
    refitted = 0.5 * np.log(resampled) @ solve.T
    value = 0.5 * solve @ np.log(squares.mean(-1))
    low, high = np.quantile(refitted, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(v), float(a), float(b)) for v, a, b in zip(value, low, high, strict=True)]


def student_quantile(level: float, freedom: int) -> float:
    """The t with P(|T| <= t) = level for Student's T with `freedom` degrees of freedom.

    Bisection on the closed form for whole degrees of freedom (M. Abramowitz, I. Stegun, 26.7.3 and 26.7.4). Reference
    implementation: `scipy.stats.t.ppf((1 + level) / 2, freedom)`.
    """
    if not 0.0 < level < 1.0:
        reject("level", level, "a confidence lies between 0 and 1", "Pass level=0.95.")
    if freedom < 1:
        reject("freedom", freedom, "Student's law has at least one degree of freedom", "Give more points.")
    low, high = 0.0, 1.0
    while _central(high, freedom) < level:
        high *= 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _central(middle, freedom) < level else (low, middle)
    return 0.5 * (low + high)


def _central(t: float, freedom: int) -> float:
    """P(|T| <= t)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    return (angle + sine * total) * 2.0 / math.pi if odd else sine * total
