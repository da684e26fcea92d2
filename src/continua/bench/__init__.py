"""Floor 5: what the library costs, as ratios to peers measured side by side. Only the command line imports it."""

from continua.bench.attention import AttentionCost, EstimatorCost
from continua.bench.benchmark import AbstractBenchmark, BenchResult, Ratio, write_result
from continua.bench.decoding import DecodingCost
from continua.bench.flows import Sizes
from continua.bench.memory import MemoryCost
from continua.bench.optimisers import RecipeCost, SpectralGain
from continua.bench.overhead import FieldCostRatio, Overhead
from continua.bench.speed import Speed

__all__ = [
    "AbstractBenchmark", "AttentionCost", "BenchResult", "DecodingCost", "EstimatorCost", "FieldCostRatio",
    "MemoryCost", "Overhead", "Ratio", "RecipeCost", "Sizes", "SpectralGain", "Speed", "write_result",
]  # fmt: skip
