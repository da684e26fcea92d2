"""What is known exactly about clusters: integrals and special functions, without a solver of equations."""

import math

import numpy as np

from continua.core.shapes import Float

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


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


def exact_rates(beta: float, modes: int) -> Float[np.ndarray, " modes"]:
    """lambda_k = k^2 I_k(beta) / (beta I_0(beta)), k = 1, ..., modes.

    The Bessel functions come from Miller's downward recurrence I_{k-1} = I_{k+1} + (2k/beta) I_k; their common factor
    cancels in the quotient. Reference implementation: `scipy.special.ive`.
    """
    start = 2 * modes + 40 + math.ceil(9.0 * math.sqrt(beta))
    after, here = 0.0, 1e-280
    values = np.zeros(start + 1)
    values[start] = here
    for k in range(start, 0, -1):
        after, here = here, after + (2.0 * k / beta) * here
        values[k - 1] = here
        if here > 1e250:  # the recurrence grows without bound; only quotients of its values count
            values, after, here = values * 1e-250, after * 1e-250, here * 1e-250
    k = np.arange(1, modes + 1)
    return k**2 * values[1 : modes + 1] / (beta * values[0])
