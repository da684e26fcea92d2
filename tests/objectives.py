"""Small control problems: models with every kind of part, batches for every loss, all losses and running costs."""

import torch
from torch import Tensor

from continua.control import (
    AbstractLoss,
    Batch,
    CrossEntropy,
    FieldSize,
    HeadNegentropy,
    JacobianFrobenius,
    JacobianSpectral,
    KineticEnergy,
    MaskedToken,
    MeanSquaredError,
    NextToken,
    Objective,
    PathLength,
    RelativeL2,
    Sobolev,
)
from continua.fields import ContinuousHeads, Expansion
from continua.model import ContinuousTransformer, Flow, MeanReadout, Part, TokenEmbedding, TokenReadout, VectorEmbedding
from continua.operators import Attention, Dropout, FeedForward, LayerNorm, PreNorm, RMSNorm
from continua.solve import Adaptive, BogackiShampine, Checkpointed, Solver
from continua.spaces import BSpline, Chebyshev, Trapezoid

WIDTH, CLASSES, TOKENS = 4, 3, 4

all_losses: list[AbstractLoss] = [
    CrossEntropy(),
    CrossEntropy(smoothing=0.1),
    NextToken(),
    MaskedToken(),
    MeanSquaredError(),
    RelativeL2(),
    RelativeL2(Trapezoid()),
]

all_costs = [
    KineticEnergy(),
    KineticEnergy(Sobolev(time=2)),
    PathLength(),
    JacobianFrobenius(),
    JacobianSpectral(iterations=2),
    HeadNegentropy(),
    FieldSize(),
]


def flow_of(dropout: float = 0.0, causal: bool = False) -> Flow:
    """Attention over continuous heads and a feed-forward, both smooth in depth."""
    generator = torch.Generator().manual_seed(3)
    attention = PreNorm(LayerNorm(), Attention(4, 2, head_masses=True, causal=causal))
    feedforward = PreNorm(RMSNorm(), FeedForward(6))
    heads = ContinuousHeads(attention.spec(WIDTH), over_z=BSpline(3, 2), generator=generator)
    logits = heads.coefficients["inner_p"].data  # an even density is where its negentropy has no slope
    logits.copy_(torch.cos(torch.arange(float(logits.numel()))).view_as(logits))
    smooth = Expansion(feedforward.spec(WIDTH), Chebyshev(3), generator=generator)
    return Flow([Part(Dropout(attention, dropout) if dropout else attention, heads), Part(feedforward, smooth)])


def model_of(loss: AbstractLoss, gradient=Checkpointed(), dropout: float = 0.0, rtol: float = 1e-4):
    """The model that a loss asks for, in float64; the same weights at every call."""
    torch.manual_seed(5)
    if isinstance(loss, NextToken | MaskedToken):
        embedding, readout = TokenEmbedding(CLASSES, WIDTH), TokenReadout(WIDTH, CLASSES)
    else:
        embedding = VectorEmbedding(2, WIDTH)
        readout = MeanReadout(WIDTH, CLASSES) if isinstance(loss, CrossEntropy) else TokenReadout(WIDTH, CLASSES)
    flow = flow_of(dropout, causal=isinstance(loss, NextToken))
    model = ContinuousTransformer(embedding, flow, readout, gradient=gradient).double()
    if isinstance(embedding, TokenEmbedding):  # states of order one, as the norms of the flow expect them
        torch.nn.init.normal_(embedding.table)
    return model.at(solver=Solver(BogackiShampine(), Adaptive(rtol, rtol)))


def batch_of(loss: AbstractLoss) -> Batch:
    """Two sequences, the second one token shorter; what stands at the absent token is nonsense."""
    generator = torch.Generator().manual_seed(7)
    present = torch.ones(2, TOKENS, dtype=torch.bool)
    present[1, -1] = False
    times = torch.rand(2, TOKENS, generator=generator, dtype=torch.float64).sort(-1).values
    labels = torch.randint(CLASSES, (2, TOKENS), generator=generator)
    labels[1, -1] = -100
    if isinstance(loss, NextToken | MaskedToken):
        mask = torch.tensor([[True, False, True, True], [False, True, True, True]])
        return Batch((labels, times, present), labels, mask if isinstance(loss, MaskedToken) else None)
    values = torch.randn(2, TOKENS, 2, generator=generator, dtype=torch.float64)
    values[1, -1] = torch.nan
    if isinstance(loss, CrossEntropy):
        return Batch((values, times, present), labels[:, 0])
    targets = torch.randn(2, TOKENS, CLASSES, generator=generator, dtype=torch.float64)
    targets[1, -1] = torch.nan
    return Batch((values, times, present), targets)


def value_of(objective: Objective, model, batch: Batch) -> Tensor:
    """J with the randomness frozen."""
    return objective(model, batch, torch.Generator().manual_seed(11)).total


def gradient_of(objective: Objective, model, batch: Batch) -> list[Tensor]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(value_of(objective, model, batch), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def slope_along(objective: Objective, model, batch: Batch, direction: list[Tensor], step: float = 2e-4) -> float:
    """dJ along a direction of the parameters: central differences, extrapolated to order four."""

    def value(shift: float) -> float:
        with torch.no_grad():
            for p, v in zip(model.parameters(), direction, strict=True):
                p.add_(v, alpha=shift)
            found = float(value_of(objective, model, batch))
            for p, v in zip(model.parameters(), direction, strict=True):
                p.add_(v, alpha=-shift)
        return found

    near, far = ((value(h) - value(-h)) / (2 * h) for h in (step, 2 * step))
    return (4 * near - far) / 3


def directions(model, seed: int = 0) -> list[Tensor]:
    """A direction in which every number of every parameter moves."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]
