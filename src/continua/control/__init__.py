"""Floor 4: training as optimal control - objectives of whole solves, and what a model owes to its resolution."""

from continua.control.debiased import DebiasedObjective, Objective
from continua.control.resolution import Loss, Resolutions, resolution_report
from continua.control.resolution_table import LeftOut, ResolutionReport, ResolutionRow
from continua.control.twins import with_token_integral

__all__ = [
    "DebiasedObjective",
    "LeftOut",
    "Loss",
    "Objective",
    "ResolutionReport",
    "ResolutionRow",
    "Resolutions",
    "resolution_report",
    "with_token_integral",
]
