"""The Bogacki-Shampine pair of orders 3 and 2."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_TABLEAU = Tableau(
    order=3,
    a=((), (1 / 2,), (0.0, 3 / 4)),
    b=(2 / 9, 1 / 3, 4 / 9),
    c=(0.0, 1 / 2, 3 / 4),
    e=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
    error_order=2,
)


@dataclasses.dataclass(frozen=True)
class BogackiShampine(AbstractRungeKutta):
    """Three stages of order 3 with an embedded order 2, for loose tolerances and rough fields.

    P. Bogacki and L. F. Shampine, A 3(2) pair of Runge-Kutta formulas, Appl. Math. Lett. 2 (1989). The pair of
    `scipy.integrate.RK23`.
    """

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
