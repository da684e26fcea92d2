"""Floor 5: training - models that fit a task, the loop, evaluation, generation."""

from continua.train.evaluation import anytime, evaluated, resolutions, solver_gap
from continua.train.interruption import Interrupted, Listening
from continua.train.learner import Learner, Row, TrainingError
from continua.train.loop import Training
from continua.train.models import check_sizes, continuous, parameters_of, standard
from continua.train.objectives import objective_of
from continua.train.optimisers import by_space, decayed, optimiser_name
from continua.train.plan import Plan
from continua.train.portrait import depth, keep_portrait, portrait, prediction_section, resolution_section
from continua.train.presets import PRESETS, Preset, Stepping, presets_of
from continua.train.reporter import AbstractReporter, Bar, Events, JsonLines, Silent, Together

__all__ = [
    "AbstractReporter", "Bar", "Events", "Interrupted", "JsonLines", "Learner", "Listening", "PRESETS", "Plan",
    "Preset", "Row", "Silent", "Stepping", "Together", "Training", "TrainingError", "anytime", "by_space",
    "check_sizes", "continuous", "decayed", "depth", "evaluated", "keep_portrait", "objective_of", "optimiser_name",
    "parameters_of", "portrait", "prediction_section", "presets_of", "resolution_section", "resolutions",
    "solver_gap", "standard",
]  # fmt: skip
