"""The explicit Euler step: a residual layer."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_TABLEAU = Tableau(order=1, a=((),), b=(1.0,), c=(0.0,))


@dataclasses.dataclass(frozen=True)
class Euler(AbstractRungeKutta):
    """x' = x + dz f(z, x), of order 1: with dz = 1 the residual step of every Transformer.

    Reference implementation: torchdiffeq's `euler`.
    """

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
