"""The classical Runge-Kutta step."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_TABLEAU = Tableau(
    order=4,
    a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
    b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    c=(0.0, 0.5, 0.5, 1.0),
)


@dataclasses.dataclass(frozen=True)
class RK4(AbstractRungeKutta):
    """x' = x + dz/6 (k_1 + 2 k_2 + 2 k_3 + k_4), of order 4, without an error estimate.

    W. Kutta, Beitrag zur naeherungsweisen Integration totaler Differentialgleichungen, Z. Math. Phys. 46 (1901); the
    `rk4` of torchdiffeq is his other one, the 3/8 rule.
    """

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
