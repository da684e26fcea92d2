"""Floor 2: the depth solver - steppers, controllers, three gradients, statistics."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.solve.backsolve import Backsolve
from continua.solve.checkpointed import Checkpointed, StateBuffer
from continua.solve.controllers import AbstractGridController, Adaptive, Fixed, Given, PerSequence
from continua.solve.gradients import AbstractGradient, Direct
from continua.solve.integrate import AbstractSolver, Solver, integrate
from continua.solve.integration import AbstractController, Observer, Solution, Stats
from continua.solve.runge_kutta import (
    RK4, AbstractRungeKutta, AbstractStepper, BogackiShampine, DormandPrince, Euler, Heun, Midpoint, Step, Tsitouras,
)  # fmt: skip
from continua.solve.splitting import LieTrotter, Projected, Strang, manifold_of
from continua.solve.step_size import StepSizeState
from continua.solve.torchdiffeq import TorchdiffeqSolver
from continua.solve.vector_field import AbstractVectorField, State, per_sequence, within

__all__ = [
    "AbstractController", "AbstractGradient", "AbstractGridController", "AbstractRungeKutta", "AbstractSolver",
    "AbstractStepper", "AbstractVectorField", "Adaptive", "Backsolve", "BogackiShampine", "Checkpointed", "Direct",
    "DormandPrince", "Euler", "Fixed", "Given", "Heun", "LieTrotter", "Midpoint", "Observer", "PerSequence",
    "Projected", "RK4", "Solution", "Solver", "State", "StateBuffer", "Stats", "Step", "StepSizeState",
    "Strang", "TorchdiffeqSolver", "Tsitouras", "integrate", "manifold_of", "per_sequence", "within",
]  # fmt: skip
