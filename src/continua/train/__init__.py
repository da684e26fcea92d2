"""Floor 5: training - models that fit a task, the loop, evaluation, diagnostics."""

from continua.train.diagnostics import diagnose, keep_diagnostics, resolution_section
from continua.train.evaluation import anytime, evaluate, prediction_section, resolutions, solver_gap
from continua.train.learner import Learner, Row, TrainingError
from continua.train.loop import Interrupted, StopRequest, Training
from continua.train.models import check_sizes, continuous, objective_of, parameters_of, standard
from continua.train.presets import PRESETS, Plan, Preset, Stepping, presets_of
from continua.train.reporter import AbstractReporter, Bar, Events, JsonLines

__all__ = [
    "AbstractReporter", "Bar", "Events", "Interrupted", "JsonLines", "Learner", "PRESETS", "Plan", "Preset", "Row",
    "Stepping", "StopRequest", "Training", "TrainingError", "anytime", "check_sizes", "continuous", "diagnose",
    "evaluate", "keep_diagnostics", "objective_of", "parameters_of", "prediction_section", "presets_of",
    "resolution_section", "resolutions", "solver_gap", "standard",
]  # fmt: skip
