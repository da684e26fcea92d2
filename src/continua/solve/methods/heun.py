"""Heun's step: the explicit trapezoid."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_TABLEAU = Tableau(order=2, a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class Heun(AbstractRungeKutta):
    """x' = x + dz/2 (k_1 + k_2), k_2 taken at the Euler point, of order 2.

    Reference implementation: torchdiffeq's `heun2`.
    """

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
