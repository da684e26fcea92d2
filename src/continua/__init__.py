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
    Part,
    TokenEmbedding,
    VectorEmbedding,
    load,
    save,
)
from continua.operators import Attention, Damping, Dropout, FeedForward, LayerNorm, PostNorm, PreNorm, RMSNorm, Sum
from continua.solve import (
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Fixed,
    Given,
    Observer,
    Solver,
    integrate,
)
from continua.spaces import Cloud

__version__ = version("continua")

__all__ = [
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
    "Expansion",
    "FeedForward",
    "Fixed",
    "Flow",
    "Given",
    "LayerNorm",
    "Observer",
    "Part",
    "PiecewiseConstant",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "ReconstructionWarning",
    "SolveError",
    "Solver",
    "Sum",
    "TokenEmbedding",
    "VectorEmbedding",
    "integrate",
    "load",
    "save",
]
