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
    """Kutta's four stages of order 4, without an error estimate."""

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
