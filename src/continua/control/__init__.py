"""Floor 4: training as optimal control - losses, running costs, objectives, conditions of optimality, resolution."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.control.costs import (
    AbstractRunningCost, AtRandomDepth, FieldSize, HeadNegentropy, KineticEnergy, PathLength,
)  # fmt: skip
from continua.control.debiased import Criterion, DebiasedObjective, with_token_integral
from continua.control.hamiltonian import CostateTrace, HamiltonianValue, free_parameters, trace_costates
from continua.control.jacobian import JacobianFrobenius, JacobianSpectral
from continua.control.losses import (
    AbstractLoss, CrossEntropy, MaskedToken, MeanSquaredError, NextToken, RelativeL2, SeriesScore,
)  # fmt: skip
from continua.control.norms import L2, Sobolev
from continua.control.objective import Objective, Terms, call_model, unwrap
from continua.control.pontryagin import PontryaginReport, pontryagin
from continua.control.resolution import LeftOut, ResolutionReport, ResolutionRow, Resolutions, resolution_report
from continua.control.successive import Approximations, SuccessiveApproximations
from continua.core.batch import Batch

__all__ = [
    "AbstractLoss", "AbstractRunningCost", "Approximations", "AtRandomDepth", "Batch", "Criterion", "CrossEntropy",
    "DebiasedObjective", "CostateTrace", "FieldSize", "HamiltonianValue", "HeadNegentropy", "JacobianFrobenius",
    "JacobianSpectral", "KineticEnergy", "L2", "LeftOut", "MaskedToken", "MeanSquaredError", "NextToken", "Objective",
    "PathLength", "PontryaginReport", "RelativeL2", "ResolutionReport", "ResolutionRow", "Resolutions", "SeriesScore",
    "Sobolev", "SuccessiveApproximations", "Terms", "call_model", "trace_costates", "free_parameters", "pontryagin",
    "resolution_report", "unwrap", "with_token_integral",
]  # fmt: skip
