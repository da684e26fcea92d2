"""The explicit midpoint step."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_TABLEAU = Tableau(order=2, a=((), (0.5,)), b=(0.0, 1.0), c=(0.0, 0.5))


@dataclasses.dataclass(frozen=True)
class Midpoint(AbstractRungeKutta):
    """x' = x + dz f(z + dz/2, x + dz/2 f(z, x)), of order 2. Reference implementation: torchdiffeq's `midpoint`."""

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
