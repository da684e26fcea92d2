"""Floor 5: training - models that fit a task, the loop, validation, diagnostics."""

from continua.train.diagnostics import diagnose, keep_diagnostics, resolution_section
from continua.train.evaluation import evaluate, evaluate_depths, evaluate_samplings, prediction_section, solver_gap
from continua.train.learner import Learner, Row, TrainingError
from continua.train.loop import Interrupted, StopRequest, Training
from continua.train.models import build_continuous, build_standard, check_sizes, count_parameters, objective_of
from continua.train.presets import PRESETS, Plan, Preset, StepperKind, presets_of
from continua.train.reporter import AbstractReporter, Bar, Events, JsonLines

__all__ = [
    "AbstractReporter", "Bar", "Events", "Interrupted", "JsonLines", "Learner", "PRESETS", "Plan", "Preset", "Row",
    "StepperKind", "StopRequest", "Training", "TrainingError", "build_continuous", "build_standard", "check_sizes",
    "count_parameters", "diagnose", "evaluate", "evaluate_depths", "evaluate_samplings", "keep_diagnostics",
    "objective_of", "prediction_section", "presets_of", "resolution_section", "solver_gap",
]  # fmt: skip
