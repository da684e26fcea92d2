"""The entropy penalty keeps heads alive; with the opposite sign, as one finds it written, it kills them."""

import math

import pytest
import torch

from continua.control import Batch, HeadNegentropy, MeanSquaredError, Objective
from continua.fields import Constant, ContinuousHeads
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, NormReadout, Part, Setting
from continua.operators import Attention, Damping, Unnormalised
from continua.optim import MirrorAdam
from continua.solve import Direct, Euler, Fixed, Solver
from continua.spaces import BSpline, Cloud

WIDTH, HEADS = 3, 8


def model_of() -> tuple[ContinuousTransformer, ContinuousHeads, Batch]:
    """Eight head nodes under a density of degree 15, which can leave little more than one head alive."""
    torch.manual_seed(0)
    attention = Attention(HEADS, 2, biased=False, head_masses=True)
    field = ContinuousHeads(attention.spec(WIDTH), over_z=BSpline(1, 0), degree=15)
    parts = [Part(attention, field), Part(Damping(0.5), Constant(Damping(0.5).spec(WIDTH)))]
    readout = NormReadout(WIDTH, Unnormalised())
    model = ContinuousTransformer(
        CloudEmbedding(WIDTH), Flow(parts), readout, Solver(Euler(), Fixed(2)), Direct()
    ).double()
    points = torch.randn(4, 3, WIDTH, dtype=torch.float64)
    targets = 2.0 * points.roll(1, 0)  # whoever is nearest to it shall win
    return model, field, Batch((Cloud(points),), targets)


def effective_heads(price: float, loss_counts: bool = True, updates: int = 150) -> float:
    """Trains the density alone, by mirror steps on its simplex, and says how many heads are left at the middle."""
    model, field, batch = model_of()
    objective = Objective(MeanSquaredError(), (HeadNegentropy(),), (1.0,))
    logits = field.coefficients["p"]
    with torch.no_grad():  # not quite even, or nothing would ever prefer a head
        logits.copy_(torch.log(1.0 + 0.05 * torch.cos(torch.arange(16.0, dtype=logits.dtype)))[:, None])
    for _ in range(updates):
        terms = objective(model, batch)
        total = price * terms.running["head_negentropy"] + (terms.terminal if loss_counts else 0.0)
        (g,) = torch.autograd.grad(total, logits)
        with torch.no_grad():
            c = g / logits.softmax(0).clamp_min(1e-12)  # dJ/dp - <p, dJ/dp>
            logits.sub_(0.5 * c / c.abs().max().clamp_min(0.3))
            logits.copy_(torch.maximum(logits, logits.amax(0, keepdim=True) + math.log(1e-12)))
    return field.effective_heads(0.5)


def test_the_penalty_stops_a_density_from_collapsing(unchecked):
    alone, priced = effective_heads(0.0), effective_heads(2.0)
    assert alone < 0.45 * HEADS < 0.8 * HEADS < priced


def test_the_opposite_sign_makes_it_collapse(unchecked):
    """With no loss at all: the even density is where the penalty leads, and what its opposite flees."""
    assert effective_heads(1.0, loss_counts=False) > 0.99 * HEADS
    assert effective_heads(-1.0, loss_counts=False) < 0.25 * HEADS


def test_a_negative_coefficient_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"coefficients = -1.0.*rewards what the cost is there to prevent"):
        Objective(MeanSquaredError(), (HeadNegentropy(),), (-1.0,))


def test_a_dead_head_has_no_slope_and_spoils_no_other(unchecked):
    """The derivative is log(p_k/om_k) + 1 where p_k > 0; a mirror step keeps a mass of zero, whatever its slope."""
    attention = Attention(4, 2, head_masses=True)
    field = Constant(attention.spec(WIDTH)).double()
    flow = Flow([Part(attention, field)])
    p = field.values["p"]
    with torch.no_grad():
        p.copy_(torch.log(torch.tensor([0.75, 0.25, 0.0, 0.0])))
    points = torch.zeros(1, 1, WIDTH, dtype=torch.float64)
    rate = HeadNegentropy().bind(Setting(flow, Cloud(points), None, seed=0, random=False), 0)
    cost = rate(0.0, points, points)
    exact = torch.tensor([0.75 * math.log(3.0)], dtype=torch.float64)
    torch.testing.assert_close(cost.detach(), exact)
    (g,) = torch.autograd.grad(cost.sum(), p)
    by_masses = torch.tensor([math.log(3.0) + 1.0, 1.0], dtype=torch.float64)
    alive = torch.tensor([0.75, 0.25], dtype=torch.float64)
    torch.testing.assert_close(g[:2], alive * (by_masses - alive @ by_masses))
    assert g[2:].tolist() == [0.0, 0.0]
    p.grad = g
    MirrorAdam([p], lr=0.1).step()
    after = p.softmax(0).tolist()
    assert after[2:] == [0.0, 0.0] and 0.5 < after[0] < 0.75 and sum(after) == pytest.approx(1.0)
