"""Uniform tokens on the circle: which perturbation grows fastest, and how fast."""

import dataclasses
import math
from typing import final

import numpy as np
import torch

from continua.core.shapes import Float, Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.clusters.equiangular import check_beta
from continua.lab.flows import identity_theta
from continua.operators import Attention
from continua.spaces import Cloud, Sphere


@final
@dataclasses.dataclass(frozen=True)
class CircleModes(AbstractCell):
    """Rates at which modes cos(k theta) grow on a ring of tokens, Q = K = V = I.

    The velocity of the particles is differentiated with respect to their angles (autograd). By symmetry its Jacobian
    is circulant, so one row tells all: the rates are the Fourier coefficients of that row. A ring of twice as many
    tokens says how far this is from a continuum.
    """

    beta: float

    def __post_init__(self) -> None:
        check_beta(self.beta)

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
    velocity = Attention(heads=1, key=2, beta=beta, biased=False).velocity(identity_theta(2), Cloud(points))
    return (tangents * Sphere().tangent(points, velocity)).sum(-1)


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
        if here > 1e250:
            values, after, here = values * 1e-250, after * 1e-250, here * 1e-250
    k = np.arange(1, modes + 1)
    return k**2 * values[1 : modes + 1] / (beta * values[0])
