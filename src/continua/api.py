"""The names that `continua` itself gives: enough for most users; every room exports its own."""
# ruff: noqa: I001 - both lists of names are packed

from continua.control import (
    Batch, CrossEntropy, DebiasedObjective, FieldSize, HeadNegentropy, JacobianFrobenius, JacobianSpectral,
    KineticEnergy, MaskedToken, MeanSquaredError, NextToken, Objective, PathLength, RelativeL2, ResolutionReport,
    Resolutions, SuccessiveApproximations, trace_costates, pontryagin, resolution_report, with_token_integral,
)  # fmt: skip
from continua.core.errors import LostGradientWarning, ReconstructionWarning, SolveError
from continua.fields import (
    Constant, ContinuousHeads, Expansion, HeadHypernetwork, Hypernetwork, PiecewiseConstant, from_layers, to_layers,
)  # fmt: skip
from continua.model import (
    AnalysisReadout, BasisProfile, CachedDecoder, Clock, CloudEmbedding, ContinuousTransformer, Decoding, Depth,
    EmbeddingAxis, EncoderDecoder, Flow, FourierPositions, HypernetworkField, HeadMeasure, InterpolatedStem, Layers,
    LearnedPositions, LinearProfile, MeanReadout, NormedEmbedding, NormReadout, Part, Result,
    SinusoidalPositions, Stem, StemEmbedding, SynthesisEmbedding, TokenEmbedding, TokenReadout, TokenTime,
    VectorEmbedding, Window, at_budget, bert, citation, encoder, encoder_decoder, from_torch, generate, gpt,
    macaron, parallel, save, sphere, to_torch, transformer,
)  # fmt: skip
from continua.operators import (
    Attention, ControlVariate, Convolution, Damping, Debiased, Dense, Dropout, FeedForward, LayerNorm, LogTokens,
    Nystrom, PostNorm, PreNorm, RMSNorm, Rotary, Sobol, Spectral, Subset, Sum,
)  # fmt: skip
from continua.optim import BlockwiseAdamW, MirrorAdam, Recipe, RiemannianAdam, use
from continua.solve import (
    RK4, Adaptive, Backsolve, BogackiShampine, Checkpointed, Direct, DormandPrince, Euler, Fixed, Given, Heun,
    LieTrotter, Midpoint, Observer, PerSequence, Projected, Solver, Strang, Tsitouras, integrate,
)  # fmt: skip
from continua.spaces import (
    Axis, BackwardRectangle, BSpline, CausalTrapezoid, Chebyshev, Cloud, Cosine, Counting, Fourier, GaussLegendre,
    Legendre, PlateauBasis, Trapezoid, ScaledBasis,
)  # fmt: skip
from continua.train import load

__all__ = [
    "Adaptive", "AnalysisReadout", "Attention", "Axis", "BSpline", "Backsolve", "BackwardRectangle", "BasisProfile",
    "Batch", "BlockwiseAdamW", "BogackiShampine", "CachedDecoder", "CausalTrapezoid", "Chebyshev", "Checkpointed",
    "Clock", "Cloud", "CloudEmbedding", "Constant", "ContinuousHeads", "ContinuousTransformer", "ControlVariate",
    "Convolution", "Cosine", "Counting", "CrossEntropy", "Damping", "Debiased", "DebiasedObjective", "Decoding",
    "Dense", "Depth", "Direct", "DormandPrince", "Dropout", "EmbeddingAxis", "EncoderDecoder", "Euler", "Expansion",
    "FeedForward", "FieldSize", "Fixed", "Flow", "Fourier", "FourierPositions", "GaussLegendre", "Given",
    "HeadHypernetwork", "HeadMeasure", "HeadNegentropy", "Heun", "Hypernetwork", "HypernetworkField",
    "InterpolatedStem", "JacobianFrobenius", "JacobianSpectral", "KineticEnergy", "LayerNorm", "Layers",
    "LearnedPositions", "Legendre", "LieTrotter", "LinearProfile", "LogTokens", "LostGradientWarning", "MaskedToken",
    "MeanReadout", "MeanSquaredError", "Midpoint", "MirrorAdam", "NextToken", "NormReadout", "NormedEmbedding",
    "Nystrom", "Objective", "Observer", "Part", "PathLength", "PerSequence", "PiecewiseConstant", "PlateauBasis",
    "PostNorm", "PreNorm", "Projected", "RK4", "RMSNorm", "Recipe", "ReconstructionWarning", "RelativeL2",
    "ResolutionReport", "Resolutions", "Result", "RiemannianAdam", "Rotary", "ScaledBasis", "SinusoidalPositions",
    "Sobol", "SolveError", "Solver", "Spectral", "Stem", "StemEmbedding", "Strang", "Subset",
    "SuccessiveApproximations", "Sum", "SynthesisEmbedding", "TokenEmbedding", "TokenReadout", "TokenTime", "Trapezoid",
    "Tsitouras", "VectorEmbedding", "Window", "at_budget", "bert", "citation", "encoder", "encoder_decoder",
    "from_layers", "from_torch", "generate", "gpt", "integrate", "load", "macaron", "parallel", "pontryagin",
    "resolution_report", "save", "trace_costates", "sphere", "to_layers", "to_torch", "transformer", "use",
    "with_token_integral",
]  # fmt: skip
