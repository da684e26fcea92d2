"""Floor 1: operators act at one depth - attention on measures, feed-forward, damping, norms, and their sums."""

from continua.operators.attention import Attention, AttentionTheta
from continua.operators.compose import Cross, Dropout, Sum
from continua.operators.feedforward import Activation, Damping, FeedForward, FeedForwardTheta
from continua.operators.integral import AbstractTokenIntegral, Exact, Memory
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

__all__ = [
    "AbstractNorm",
    "AbstractOperator",
    "AbstractPointwise",
    "AbstractTokenIntegral",
    "Activation",
    "Attention",
    "AttentionTheta",
    "Context",
    "Cross",
    "Damping",
    "Dropout",
    "Exact",
    "FeedForward",
    "FeedForwardTheta",
    "LayerNorm",
    "Memory",
    "NoTheta",
    "NormTheta",
    "NormedTheta",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Sum",
    "Unnormalised",
]
