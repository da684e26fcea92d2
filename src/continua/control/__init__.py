"""Floor 4: training as optimal control - objectives of whole solves."""

from continua.control.debiased import DebiasedObjective, Objective
from continua.control.twins import with_token_integral

__all__ = ["DebiasedObjective", "Objective", "with_token_integral"]
