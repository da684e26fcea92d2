"""Floor 4: training as optimal control - losses, running costs, objectives, conditions of optimality, resolution."""

from continua.control.costs import (
    AbstractRunningCost,
    AtRandomDepth,
    FieldSize,
    HeadNegentropy,
    KineticEnergy,
    Length,
    trains_heads,
)
from continua.control.debiased import Criterion, DebiasedObjective, with_token_integral
from continua.control.hamiltonian import (
    Extremal,
    HamiltonianValue,
    extremal,
    free_parameters,
    l2_costate,
    terminal_adjoint,
)
from continua.control.jacobian import JacobianFrobenius, JacobianSpectral
from continua.control.losses import AbstractLoss, CrossEntropy, MaskedToken, MeanSquaredError, NextToken, RelativeL2
from continua.control.norms import L2, AbstractStateNorm, Sobolev
from continua.control.objective import Objective, Terms, source_and_target
from continua.control.pontryagin import PontryaginReport, pontryagin
from continua.control.resolution import LeftOut, ResolutionReport, ResolutionRow, Resolutions, resolution_report
from continua.control.setting import Setting
from continua.control.successive import Approximations, SuccessiveApproximations
from continua.core.batch import Batch

__all__ = [
    "AbstractLoss", "AbstractRunningCost", "AbstractStateNorm", "Approximations", "AtRandomDepth", "Batch",
    "Criterion", "CrossEntropy", "DebiasedObjective", "Extremal", "FieldSize", "HamiltonianValue", "HeadNegentropy",
    "JacobianFrobenius", "JacobianSpectral", "KineticEnergy", "L2", "LeftOut", "Length", "MaskedToken",
    "MeanSquaredError", "NextToken", "Objective", "PontryaginReport", "RelativeL2", "ResolutionReport",
    "ResolutionRow", "Resolutions", "Setting", "Sobolev", "SuccessiveApproximations", "Terms", "extremal",
    "free_parameters", "l2_costate", "pontryagin", "resolution_report", "source_and_target", "terminal_adjoint",
    "trains_heads", "with_token_integral",
]  # fmt: skip
