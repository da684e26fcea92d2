"""Floor 7: the lab - claims about the continuous Transformer, measured. Only the benchmarks import it."""

from continua.lab.ceiling import Mnist1dCeiling
from continua.lab.cheat_sheet import CheatSheet
from continua.lab.clusters.experiment import Clusters, FastestMode, Overlap
from continua.lab.clusters.particles import check_question
from continua.lab.depth_limit import DepthLimit, PostNormLimit
from continua.lab.estimator_bias import EstimatorBias
from continua.lab.experiment import AbstractExperiment, ExperimentResult, Findings
from continua.lab.gradient_accuracy import GradientAccuracy
from continua.lab.lions import LionsDerivative
from continua.lab.lipschitz import AttentionLipschitz
from continua.lab.mean_field import MeanField
from continua.lab.risk.optimal_values import OptimalValues
from continua.lab.risk.pathwise import Pathwise
from continua.lab.risk.sampling import RiskSampling
from continua.lab.risk.softmax_residual import SoftmaxResidual
from continua.lab.risk.transport import Transport
from continua.lab.sde_scaling import SDEScaling
from continua.lab.stacks.experiment import TrainedNetworks
from continua.lab.sweep import AbstractCell, AbstractEngine, CellStore, LocalProcesses, Progress, Ray, silent, sweep
from continua.lab.training.adamw_limit import AdamWLimit
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.compactness import AdamWCompactness
from continua.lab.training.problem import Problem, UpdateRule
from continua.lab.training.width import DimensionFree, RMSScaling
from continua.lab.variations.experiment import EulerLagrange
from continua.lab.variations.trajectory import TrajectoryQuestion
from continua.lab.verdicts import Judgement, Word

__all__ = [
    "AbstractCell", "AbstractEngine", "AbstractExperiment", "AdamWCompactness", "AdamWLimit", "AgainstLimit",
    "AttentionLipschitz", "CellStore", "CheatSheet", "Clusters", "DepthLimit", "DimensionFree", "EstimatorBias",
    "EulerLagrange", "ExperimentResult", "FastestMode", "Findings", "GradientAccuracy", "Judgement", "LionsDerivative",
    "LocalProcesses", "MeanField", "Mnist1dCeiling", "OptimalValues", "Overlap", "Pathwise", "PostNormLimit",
    "Problem", "Progress", "RMSScaling", "Ray", "SDEScaling", "RiskSampling", "SoftmaxResidual", "TrainedNetworks",
    "TrajectoryQuestion", "Transport", "UpdateRule", "Word", "check_question", "silent", "sweep",
]  # fmt: skip
