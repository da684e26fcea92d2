"""Floor 5: the lab - claims about the continuous Transformer, measured."""

from continua.lab.ceiling import Mnist1dCeiling
from continua.lab.cells import AbstractCell, Shelf
from continua.lab.clusters import Clusters, FastestMode, Overlap
from continua.lab.depth_limit import DepthLimit
from continua.lab.engines import AbstractEngine, Local, Ray
from continua.lab.experiment import AbstractExperiment, Findings, Finished
from continua.lab.lions import LionsDerivative
from continua.lab.lipschitz import AttentionLipschitz
from continua.lab.mean_field import MeanField
from continua.lab.post_norm import PostNorm
from continua.lab.rms_scaling import RMSScaling
from continua.lab.sde_scaling import SDEScaling
from continua.lab.training import AdamWCompactness, AdamWLimit, DimensionFree
from continua.lab.verdicts import Judgement, Word

__all__ = [
    "AbstractCell", "AbstractEngine", "AbstractExperiment", "AdamWCompactness", "AdamWLimit", "AttentionLipschitz",
    "Clusters", "DepthLimit", "DimensionFree", "FastestMode", "Findings", "Finished", "Judgement",
    "LionsDerivative", "Local", "MeanField", "Mnist1dCeiling", "Overlap", "PostNorm", "RMSScaling", "Ray",
    "SDEScaling", "Shelf", "Word",
]  # fmt: skip
