"""What the demonstration solves: a causal continuous Transformer on signals that are sampled at irregular times."""

import dataclasses
import math
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from continua.core.errors import ReconstructionWarning
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Positions, Tensor
from continua.fields import Expansion, PiecewiseConstant
from continua.model import (
    ContinuousTransformer,
    Flow,
    Part,
    SinusoidalPositions,
    TokenReadout,
    VectorEmbedding,
    from_torch,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm
from continua.solve import AbstractGradient, Observer, Solution
from continua.spaces import CausalTrapezoid, Cloud, Legendre

_AHEAD = 0.05
"""How far ahead the model is asked to look, in token time."""


class Signals(NamedTuple):
    """Chirps at irregular times, and their values a moment later."""

    times: Positions
    values: Float[Tensor, "batch tokens 1"]
    later: Float[Tensor, "batch tokens 1"]


@dataclasses.dataclass(frozen=True)
class Differentiated:
    """One forward solve and its gradient: what was found, how long it took, what was seen on the way back."""

    gradient: AbstractGradient
    solution: Solution
    loss: float
    slopes: Float[Tensor, " parameters"]
    """The derivative of the loss with respect to all parameters of the flow, in one vector."""
    costates: list[tuple[float, Points]]
    seconds: float


def signals(batch: int, tokens: int, seed: int) -> Signals:
    """sin(2 pi (f t + g t^2)) at sorted random times of [0, 1]; frequencies differ from signal to signal."""
    generator = generator_of(seed)
    times = torch.rand(batch, tokens, generator=generator, dtype=torch.float64).sort(-1).values
    f, g = 0.5 + torch.rand(2, batch, 1, generator=generator, dtype=torch.float64)

    def chirp(t: Positions) -> Float[Tensor, "batch tokens 1"]:
        return torch.sin(2 * math.pi * (f * t + g * t**2)).unsqueeze(-1)

    return Signals(times, chirp(times), chirp(times + _AHEAD))


def jumping_model(width: int, depth: float, seed: int) -> ContinuousTransformer:
    """Causal attention, smooth in depth, and a feed-forward that jumps half-way; masses of the causal trapezoid."""
    torch.manual_seed(seed)
    attention = PreNorm(LayerNorm(), Attention(4, max(1, width // 4), causal=True))
    feedforward = PreNorm(LayerNorm(), FeedForward(4 * width))
    smooth = Part(attention, Expansion(attention.spec(width), Legendre(4), depth))
    jumps = Part(feedforward, PiecewiseConstant(feedforward.spec(width), (0.0, depth / 2, depth)))
    code = SinusoidalPositions(width, fastest=16.0, slowest=0.5)
    embedding = VectorEmbedding(1, width, code, CausalTrapezoid())
    return ContinuousTransformer(embedding, Flow([smooth, jumps], depth), TokenReadout(width, 1)).double()


def differentiated(
    model: ContinuousTransformer, cloud: Cloud, data: Signals, gradient: AbstractGradient, at: Sequence[float] = ()
) -> Differentiated:
    """A solve whose loss is the squared error of foretelling each signal, and its gradient; `at` asks for states."""
    seen: list[tuple[float, Points]] = []
    observer = Observer(costate=lambda z, _, a: seen.append((float(z), a)))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReconstructionWarning)  # the statistics tell as much
        solution = model.at(gradient=gradient).solve(cloud, at, [observer])
        loss = (model.readout(cloud.at(solution.x)) - data.later).square().mean()
        slopes = torch.autograd.grad(loss, list(model.flow.parameters()))
    seconds = time.perf_counter() - start
    return Differentiated(gradient, solution, loss.item(), torch.cat([g.flatten() for g in slopes]), seen, seconds)


@torch.no_grad()
def gap_to_torch(width: int, layers: int, seed: int) -> float:
    """The largest difference between torch's pre-norm causal encoder, which is that of GPT, and the same as a flow."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 16, width, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(16, dtype=torch.float64)
    flow = from_torch(encoder, causal=True)
    return float((flow(Cloud(x)) - encoder(x, mask=mask, is_causal=True)).abs().max())
