"""Floor 2: the depth solver - steppers, controls, three gradients, statistics."""

from continua.solve.adaptive import Adaptive
from continua.solve.control import AbstractControl, AbstractGridControl, Fixed, Given
from continua.solve.gradients import AbstractGradient, Backsolve, Checkpointed, Direct
from continua.solve.gradients.shelf import Shelf
from continua.solve.integrate import integrate
from continua.solve.methods import (
    RK4,
    AbstractMethod,
    AbstractRungeKutta,
    BogackiShampine,
    DormandPrince,
    Euler,
    Heun,
    LieTrotter,
    Midpoint,
    Projected,
    Strang,
    Tsitouras,
)
from continua.solve.methods.projected import manifold_of
from continua.solve.pace import Pace
from continua.solve.peers import TorchdiffeqSolver
from continua.solve.per_sequence import PerSequence
from continua.solve.record import Observer, Solution, Stats, Trajectory
from continua.solve.solver import AbstractSolver, Solver
from continua.solve.state import AbstractBound, State, within

__all__ = [
    "AbstractBound", "AbstractControl", "AbstractGradient", "AbstractGridControl", "AbstractMethod",
    "AbstractRungeKutta", "AbstractSolver", "Adaptive", "Backsolve", "BogackiShampine", "Checkpointed", "Direct",
    "DormandPrince", "Euler", "Fixed", "Given", "Heun", "LieTrotter", "Midpoint", "Observer", "Pace", "PerSequence",
    "Projected", "RK4", "Shelf", "Solution", "Solver", "State", "Stats", "Strang", "TorchdiffeqSolver",
    "Trajectory", "Tsitouras", "integrate", "manifold_of", "within",
]  # fmt: skip
