"""Floor 5: training - models that fit a task, the loop, validation, diagnostics."""

from continua.train.counting import update_memory
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
from continua.train.models import (
    STEPPERS,
    BaselineName,
    build_baseline,
    build_continuous,
    check_sizes,
    count_parameters,
    objective_of,
    stepper_of,
)
from continua.train.presets import PRESETS, CostOptions, DepthOptions, ModelOptions, Plan, Preset, TrainingOptions
from continua.train.ranks import LostRankError, Ranks, name_lost
from continua.train.reporter import AbstractReporter, Bar, Events, JsonLines, measures_shown
from continua.train.series_answers import reference_errors, warnings_of
from continua.train.settling import settle_outputs
from continua.train.trained import (
    AbstractTrained,
    FilledSeries,
    SeriesFiller,
    TrainedLabels,
    TrainedSeries,
    TrainedText,
    load,
    transform_files,
)

__all__ = [
    "AbstractReporter", "AbstractTrained", "Bar", "BaselineName", "CostOptions", "DepthOptions", "DivergedError",
    "Events", "FilledSeries", "Interrupted", "JsonLines", "Learner", "LostRankError", "ModelOptions", "PRESETS",
    "Plan", "Preset", "Ranks", "Row", "STEPPERS", "SeriesFiller", "StopRequest", "TrainedLabels", "TrainedSeries",
    "TrainedText", "Training", "TrainingError", "TrainingGrids", "TrainingOptions", "build_baseline",
    "build_continuous", "check_sizes", "count_parameters", "count_tokens", "diagnose", "evaluate",
    "evaluate_depth_steps", "evaluate_resolutions", "evaluate_samplings", "keep_diagnostics", "load", "measures_shown",
    "name_lost", "objective_of", "place", "prediction_section", "reference_errors", "resolution_section",
    "settle_outputs", "solver_error", "stepper_of", "transform_files", "update_memory", "warnings_of",
]  # fmt: skip
