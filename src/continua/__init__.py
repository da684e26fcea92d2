"""continua: the Transformer that is continuous in token time, embedding, heads and depth.

    data -> embedding -> cloud -> flow (fields give parameters, operators act) -> solve -> readout

The names below are enough for most users; every room (`continua.operators`, `continua.fields`, `continua.solve`, ...)
exports its own.
"""

from importlib.metadata import version

from continua.core.errors import ReconstructionWarning, SolveError
from continua.fields import Constant, Expansion, PiecewiseConstant
from continua.model import (
    ContinuousTransformer,
    Embedded,
    EncoderDecoder,
    Flow,
    Layers,
    LearnedPositions,
    MeanReadout,
    Normalised,
    Part,
    SinusoidalPositions,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
    bert,
    encoder_decoder,
    from_torch,
    gpt,
    load,
    macaron,
    parallel,
    save,
    sphere,
)
from continua.operators import Attention, Damping, Dropout, FeedForward, LayerNorm, PostNorm, PreNorm, RMSNorm, Sum
from continua.solve import (
    RK4,
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    LieTrotter,
    Midpoint,
    Observer,
    PerSequence,
    Projected,
    Solver,
    Strang,
    integrate,
)
from continua.spaces import Cloud

__version__ = version("continua")

__all__ = [
    "RK4",
    "Adaptive",
    "Attention",
    "Backsolve",
    "Checkpointed",
    "Cloud",
    "Constant",
    "ContinuousTransformer",
    "Damping",
    "Direct",
    "DormandPrince",
    "Dropout",
    "Embedded",
    "EncoderDecoder",
    "Euler",
    "Expansion",
    "FeedForward",
    "Fixed",
    "Flow",
    "Given",
    "LayerNorm",
    "Layers",
    "LearnedPositions",
    "LieTrotter",
    "MeanReadout",
    "Midpoint",
    "Normalised",
    "Observer",
    "Part",
    "PerSequence",
    "PiecewiseConstant",
    "PostNorm",
    "PreNorm",
    "Projected",
    "RMSNorm",
    "ReconstructionWarning",
    "SinusoidalPositions",
    "SolveError",
    "Solver",
    "Strang",
    "Sum",
    "TokenEmbedding",
    "TokenReadout",
    "VectorEmbedding",
    "bert",
    "encoder_decoder",
    "from_torch",
    "gpt",
    "integrate",
    "load",
    "macaron",
    "parallel",
    "save",
    "sphere",
]
