"""Floor 2: the depth solver - steppers, controls, three gradients, statistics."""

from continua.solve.adaptive import Adaptive
from continua.solve.control import AbstractControl, Fixed, Given
from continua.solve.gradients import AbstractGradient, Backsolve, Checkpointed, Direct
from continua.solve.integrate import integrate
from continua.solve.methods import (
    RK4,
    AbstractMethod,
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
from continua.solve.peers import TorchdiffeqSolver
from continua.solve.per_sequence import PerSequence
from continua.solve.record import Observer, Solution, Stats, Trajectory
from continua.solve.solver import AbstractSolver, Solver
from continua.solve.state import AbstractBound, State

__all__ = [
    "RK4",
    "AbstractBound",
    "AbstractControl",
    "AbstractGradient",
    "AbstractMethod",
    "AbstractSolver",
    "Adaptive",
    "Backsolve",
    "BogackiShampine",
    "Checkpointed",
    "Direct",
    "DormandPrince",
    "Euler",
    "Fixed",
    "Given",
    "Heun",
    "LieTrotter",
    "Midpoint",
    "Observer",
    "PerSequence",
    "Projected",
    "Solution",
    "Solver",
    "State",
    "Stats",
    "Strang",
    "TorchdiffeqSolver",
    "Trajectory",
    "Tsitouras",
    "integrate",
]
