"""Floor 1: operators act at one depth - attention on measures, feed-forward, damping, norms, and their sums."""

from continua.operators.attention import Attention, AttentionTheta
from continua.operators.compose import Cross, Dropout, Sum
from continua.operators.estimators import (
    AbstractDraw,
    Controlled,
    Debiased,
    Independent,
    Lattice,
    LogTokens,
    Nystrom,
    Sobol,
    Subset,
)
from continua.operators.estimators.levels import draw_level
from continua.operators.estimators.nodes import nodes_for
from continua.operators.feedforward import Activation, Damping, FeedForward, FeedForwardTheta
from continua.operators.integral import AbstractTokenIntegral, Exact, Memory, Queries
from continua.operators.kernels import AbstractKernel, Convolution, Dense, Spectral
from continua.operators.linear import linear
from continua.operators.norms import (
    AbstractNorm,
    LayerNorm,
    NormedTheta,
    NormTheta,
    PostNorm,
    PreNorm,
    RMSNorm,
    Unnormalised,
)
from continua.operators.operator import AbstractOperator, AbstractPointwise, Context, NoTheta
from continua.operators.parameters import (
    Filled,
    Orthonormal,
    Role,
    Spec,
    Theta,
    bias,
    count,
    draw_theta,
    leaves,
    map_leaves,
    rebuild,
)
from continua.operators.pullback import Pullback, pullback
from continua.operators.remembered import KVCache, CachedIntegral, why_not_cacheable
from continua.operators.resolution import with_nodes, with_heads, with_integral
from continua.operators.rotary import Rotary
from continua.operators.spectral_norm import SpectrallyNormed, spectral_norm
from continua.operators.tilted import Tilted, radial, radial_slope, wasserstein_bound
from continua.operators.weights import Watched, attention_kernels, attention_weights

__all__ = [
    "AbstractDraw", "AbstractKernel", "AbstractNorm", "AbstractOperator", "AbstractPointwise",
    "AbstractTokenIntegral", "Activation", "Attention", "AttentionTheta", "Context", "Controlled", "Convolution",
    "Cross", "Damping", "Debiased", "Dense", "Dropout", "Exact", "FeedForward", "FeedForwardTheta", "Filled",
    "Independent", "Lattice", "LayerNorm", "LogTokens", "Memory", "NoTheta", "NormTheta", "NormedTheta", "Nystrom",
    "Orthonormal", "Past", "PostNorm", "PreNorm", "Pullback", "Queries", "RMSNorm", "Remembered", "Role", "Rotary",
    "Sobol", "Spec", "Spectral", "SpectrallyNormed", "Subset", "Sum", "Theta", "Tilted", "Unnormalised", "Watched",
    "at_resolution", "attention_kernels", "attention_weights", "bias", "count", "drawn", "drawn_level", "leaves",
    "linear", "mapped", "nodes_for", "obstacle", "pullback", "radial", "radial_slope", "rebuilt", "spectral_norm",
    "wasserstein_bound", "with_heads", "with_integral",
]  # fmt: skip
