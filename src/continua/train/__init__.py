"""Floor 5: training - models that fit a task, the loop, validation, diagnostics."""

from continua.train.diagnostics import diagnose, keep_diagnostics, resolution_section
from continua.train.evaluation import (
    evaluate,
    evaluate_depth_steps,
    evaluate_resolutions,
    evaluate_samplings,
    prediction_section,
    solver_error,
)
from continua.train.grids import TrainingGrids
from continua.train.learner import DivergedError, Learner, Row, TrainingError, count_tokens, place
from continua.train.loop import Interrupted, StopRequest, Training
from continua.train.memory import update_memory
from continua.train.models import (
    STEPPERS,
    RivalName,
    build_continuous,
    build_rival,
    check_sizes,
    count_parameters,
    objective_of,
)
from continua.train.presets import PRESETS, CostOptions, DepthOptions, ModelOptions, Plan, Preset, TrainingOptions
from continua.train.ranks import LostRankError, Ranks, name_lost
from continua.train.reporter import AbstractReporter, Bar, Events, JsonLines

__all__ = [
    "AbstractReporter", "Bar", "CostOptions", "DepthOptions", "DivergedError", "Events", "Interrupted", "JsonLines",
    "Learner", "LostRankError", "ModelOptions", "PRESETS", "Plan", "Preset", "Ranks", "RivalName", "Row", "STEPPERS",
    "StopRequest", "Training", "TrainingError", "TrainingGrids", "TrainingOptions", "build_continuous", "build_rival",
    "check_sizes", "count_parameters", "count_tokens", "diagnose", "evaluate", "evaluate_depth_steps",
    "evaluate_resolutions", "evaluate_samplings", "keep_diagnostics", "name_lost", "objective_of", "place",
    "prediction_section", "resolution_section", "solver_error", "update_memory",
]  # fmt: skip
