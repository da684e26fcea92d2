"""The flows and models that are measured, all built here."""

import dataclasses
from collections.abc import Callable

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Points
from continua.fields import AbstractField, Constant, Expansion
from continua.model import (
    ContinuousTransformer,
    Flow,
    FlowVectorField,
    HeadMeasure,
    NormedEmbedding,
    Part,
    TokenEmbedding,
    TokenReadout,
    transformer,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Rotary, Spectral, Theta
from continua.solve import Direct, Fixed, Midpoint, Solver
from continua.spaces import Axis, Chebyshev, Cloud, Cosine, Legendre

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


def block_flow(sizes: Sizes, field: Callable[[Theta, torch.Generator], AbstractField], depth: float = 1.0) -> Flow:
    """A pre-norm block of causal attention and feed-forward, its weights the fields that `field` makes."""
    generator = generator_of(0)
    attention = PreNorm(LayerNorm(), Attention(sizes.heads, sizes.width // sizes.heads, causal=True))
    operators = (attention, PreNorm(LayerNorm(), FeedForward(sizes.hidden)))
    return Flow([Part(f, field(f.spec(sizes.width), generator)) for f in operators], depth)


def depth_dependent(sizes: Sizes, modes: int) -> Flow:
    """The block with each weight a Chebyshev expansion over depth."""
    return block_flow(sizes, lambda spec, g: Expansion(spec, Chebyshev(modes), DEPTH, g), DEPTH)


def tokens(sizes: Sizes) -> Points:
    """Normal tokens, the same for the same sizes."""
    return torch.randn(sizes.batch, sizes.tokens, sizes.width, generator=generator_of(0))


def bind(flow: Flow, points: Points) -> FlowVectorField:
    """The flow on these tokens; a new one each time, as a training loop does it."""
    return flow.bind(Cloud(points), random=False)


def text_model(width: int, heads: int, modes: int, vocabulary: int) -> ContinuousTransformer:
    """A model of the size of the text task's: two midpoint steps, weights of a few modes, rotary positions."""
    torch.manual_seed(0)
    attention = PreNorm(LayerNorm(), Attention(heads, width // heads, causal=True, rotary=Rotary(2.5, 0.05)))
    operators = (attention, PreNorm(LayerNorm(), FeedForward(4 * width)))
    parts = [Part(operator, Expansion(operator.spec(width), Legendre(modes))) for operator in operators]
    embedding = NormedEmbedding(TokenEmbedding(vocabulary, width), LayerNorm(affine=False))
    solver = Solver(Midpoint(), Fixed(2))
    return ContinuousTransformer(embedding, Flow(parts), TokenReadout(width, vocabulary), solver, Direct()).eval()


def signal_model(width: int, heads: int) -> ContinuousTransformer:
    """A model for signals whose heads are a measure with a trained density."""
    return transformer(width, 10, features=1, axis=1, heads=HeadMeasure(heads, key_size=width // heads), depth=1.0)


def spectral_flow(width: int) -> Flow:
    """A feed-forward whose kernels are spectral, on 8 nodes, with 8 modes."""
    kernel = Spectral(Axis(8, width // 8), Cosine(8))
    operator = FeedForward(4 * width // 8, kernel=kernel)
    return Flow([Part(operator, Constant(operator.spec(width), generator_of(0)))])
