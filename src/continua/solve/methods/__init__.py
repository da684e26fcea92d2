"""One stepper per file; the recommended choice first."""

from continua.solve.methods.bogacki_shampine import BogackiShampine
from continua.solve.methods.dormand_prince import DormandPrince
from continua.solve.methods.euler import Euler
from continua.solve.methods.heun import Heun
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.methods.midpoint import Midpoint
from continua.solve.methods.projected import Projected
from continua.solve.methods.rk4 import RK4
from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau
from continua.solve.methods.splitting import AbstractSplitting, LieTrotter, Strang
from continua.solve.methods.tsitouras import Tsitouras

__all__ = [
    "AbstractMethod", "AbstractRungeKutta", "AbstractSplitting", "BogackiShampine", "DormandPrince", "Euler",
    "Heun", "LieTrotter", "Midpoint", "Projected", "RK4", "Stepped", "Strang", "Tableau", "Tsitouras",
]  # fmt: skip
