"""Floor 1: operators act at one depth - attention on measures, feed-forward, damping, norms, and their sums."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.operators.attention import Attention, AttentionTheta, Rotary
from continua.operators.cache import CachedIntegral, KVCache, why_not_cacheable
from continua.operators.compose import (
    Cross, Dropout, Sum, attention_weights, lay_out, with_heads, with_integral, with_nodes,
)  # fmt: skip
from continua.operators.estimates import (
    AbstractDraw, ControlVariate, Debiased, Independent, Lattice, LogTokens, Nystrom, Sobol, Subset, draw_level,
    nodes_for,
)  # fmt: skip
from continua.operators.feedforward import Activation, Damping, FeedForward, FeedForwardTheta
from continua.operators.integral import AbstractTokenIntegral, Exact, KeyValues, Queries
from continua.operators.kernels import AbstractKernel, Convolution, Dense, Spectral, linear
from continua.operators.norms import (
    AbstractNorm, LayerNorm, NormedTheta, NormTheta, PostNorm, PreNorm, RMSNorm, Unnormalised,
)  # fmt: skip
from continua.operators.operator import (
    AbstractOperator, AbstractPointwise, Binding, Filled, NoTheta, Orthonormal, Role, Spec, Structure, Theta,
    draw_theta, leaves, map_leaves, rebuild,
)  # fmt: skip
from continua.operators.compose import SpectrallyNormed, spectral_norm

__all__ = [
    "AbstractDraw", "AbstractKernel", "AbstractNorm", "AbstractOperator", "AbstractPointwise",
    "AbstractTokenIntegral", "Activation", "Attention", "AttentionTheta", "Binding", "CachedIntegral", "ControlVariate",
    "Convolution", "Cross", "Damping", "Debiased", "Dense", "Dropout", "Exact", "FeedForward", "FeedForwardTheta",
    "Filled", "Independent", "KVCache", "KeyValues", "Lattice", "LayerNorm", "LogTokens", "NoTheta", "NormTheta",
    "NormedTheta", "Nystrom", "Orthonormal", "PostNorm", "PreNorm", "Queries", "RMSNorm", "Role",
    "Rotary", "Sobol", "Spec", "Spectral", "SpectrallyNormed", "Structure", "Subset", "Sum", "Theta",
    "Unnormalised", "attention_weights", "draw_level",
    "draw_theta", "lay_out", "leaves", "linear", "map_leaves", "nodes_for", "rebuild",
    "spectral_norm", "why_not_cacheable", "with_heads", "with_integral", "with_nodes",
]  # fmt: skip
