"""Floor 5: what the library costs, as ratios to peers measured side by side in one run."""

from continua.bench.attention import AttentionCost
from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio
from continua.bench.estimators import EstimatorCost
from continua.bench.fields import FieldCostRatio
from continua.bench.flows import Sizes
from continua.bench.memory import Memory
from continua.bench.overhead import Overhead
from continua.bench.reading import ReadingCost
from continua.bench.recipe import RecipeCost
from continua.bench.results import written
from continua.bench.spectral import SpectralGain
from continua.bench.speed import Speed

__all__ = [
    "AbstractBenchmark", "AttentionCost", "EstimatorCost", "FieldCostRatio", "Memory", "Outcome", "Overhead",
    "Ratio", "ReadingCost", "RecipeCost", "Sizes", "SpectralGain", "Speed", "written",
]  # fmt: skip
