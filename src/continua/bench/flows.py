"""The flow that speed and memory are measured on: a pre-norm block whose weights depend on depth."""

import dataclasses

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Points
from continua.fields import Expansion
from continua.model import Flow, FlowVectorField, Part
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm
from continua.spaces import Chebyshev, Cloud

DEPTH, SPAN = 2.0, (0.5, 1.5)
"""The middle of a deeper flow is solved: torchdiffeq steps past the ends of a span and asks for velocities there."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a batch and of a block."""

    batch: int = 16
    tokens: int = 128
    width: int = 128
    heads: int = 4
    hidden: int = 512


def depth_dependent(sizes: Sizes, modes: int, seed: int = 0) -> Flow:
    """Causal attention and feed-forward, each weight a Chebyshev expansion over depth."""
    generator = generator_of(seed)
    attention = PreNorm(LayerNorm(), Attention(sizes.heads, sizes.width // sizes.heads, causal=True))
    feedforward = PreNorm(LayerNorm(), FeedForward(sizes.hidden))
    fields = (Expansion(f.spec(sizes.width), Chebyshev(modes), DEPTH, generator) for f in (attention, feedforward))
    return Flow([Part(f, field) for f, field in zip((attention, feedforward), fields, strict=True)], DEPTH)


def tokens(sizes: Sizes, seed: int = 0) -> Points:
    """Normal tokens, the same for the same seed."""
    return torch.randn(sizes.batch, sizes.tokens, sizes.width, generator=generator_of(seed))


def bound(flow: Flow, points: Points) -> FlowVectorField:
    """The flow on these tokens; a new one each time, as a training loop does it."""
    return flow.bind(Cloud(points), random=False)
