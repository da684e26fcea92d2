"""How far an update can go: the bounds, against adversaries, and their failure where b1 > b2."""

import math

import pytest
import torch
from torch import nn

from continua.optim import BlockwiseAdamW, Entrywise, Frobenius, parameter_bound, update_bound
from continua.spaces import FlatSpace

BETAS = [(0.9, 0.999), (0.5, 0.9), (0.0, 0.9), (0.95, 0.95)]
SEQUENCES, UPDATES = 1000, 60


def largest_update(betas) -> float:
    """The supremum over all gradients and updates, (1 - b1)/sqrt((1 - b2)(1 - b1^2/b2)), for b1 <= b2.

    Approached by gradients that grow like (b2/b1)^k, the equality of Cauchy and Schwarz.
    """
    b1, b2 = betas
    return (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2))


def adversaries(betas, generator, size):
    """(updates, sequences, size): noise of wild sizes, signs that flip, spikes, and the equality of the proof."""
    shape = (UPDATES, SEQUENCES, size)
    g = torch.randn(shape, generator=generator, dtype=torch.float64)
    kind = torch.arange(SEQUENCES) % 5
    g[:, kind == 1] *= (
        10.0 ** (6.0 * torch.rand(g[:, kind == 1].shape[:2], generator=generator).double() - 3.0)[..., None]
    )
    g[:, kind == 2] *= (torch.rand(g[:, kind == 2].shape, generator=generator) < 0.1).double()
    growth = (betas[1] / max(betas[0], 0.1)) ** torch.arange(UPDATES, dtype=torch.float64)
    g[:, kind == 3] = growth[:, None, None] * g[:1, kind == 3]  # equality in Cauchy and Schwarz
    rates = torch.rand(1, int((kind == 4).sum()), 1, generator=generator).double() * 2.0
    g[:, kind == 4] = (0.2 + rates) ** torch.arange(UPDATES, dtype=torch.float64)[:, None, None] * g[:1, kind == 4]
    return g


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("block", [Entrywise(), Frobenius()], ids=lambda b: type(b).__name__)
def test_no_adversary_exceeds_the_bounds(betas, block):
    """Every row is a sequence of its own, with a step of 1 from zero and full decay: theta IS minus the update."""
    p = nn.Parameter(torch.zeros(SEQUENCES, 3, dtype=torch.float64))
    space = FlatSpace(1)
    optimiser = BlockwiseAdamW([p], lr=1.0, betas=betas, eps=0.0, weight_decay=1.0, block=block, space=space)
    worst = 0.0
    for k, g in enumerate(adversaries(betas, torch.Generator().manual_seed(5), 3), start=1):
        p.grad = g + 1e-100  # 0/0 is no update
        optimiser.step()
        reached = float(block.size(p.detach(), space).max())
        assert reached <= update_bound(betas, k) * (1 + 1e-12)
        assert reached <= largest_update(betas) * (1 + 1e-12)
        worst = max(worst, reached)
    assert largest_update(betas) <= update_bound(betas) * (1 + 1e-12)
    assert (
        worst > 0.9 * largest_update(betas) if betas != (0.9, 0.999) else worst > 1.5
    )  # the adversaries are no straw men


def test_the_supremum_is_approached():
    betas, updates = (0.9, 0.999), 6000
    k = torch.arange(updates, dtype=torch.float64)
    g = torch.exp((k - updates) * math.log(betas[1] / betas[0]))
    m = (1 - betas[0]) * (betas[0] ** (updates - 1 - k) * g).sum() / (1 - betas[0] ** updates)
    v = (1 - betas[1]) * (betas[1] ** (updates - 1 - k) * g * g).sum() / (1 - betas[1] ** updates)
    assert float(m / v.sqrt()) == pytest.approx(largest_update(betas), rel=3e-3)
    assert largest_update(betas) == pytest.approx(7.2702, rel=1e-4) and update_bound(betas) == pytest.approx(10.0)


@pytest.mark.parametrize("block", [Entrywise(), Frobenius()], ids=lambda b: type(b).__name__)
def test_parameters_stay_within_their_bound(block):
    betas, decay = (0.8, 0.95), 0.5
    generator = torch.Generator().manual_seed(6)
    start = 8.0 * torch.randn(SEQUENCES, 3, generator=generator, dtype=torch.float64)
    p, space = nn.Parameter(start.clone()), FlatSpace(1)
    optimiser = BlockwiseAdamW([p], lr=0.7, betas=betas, eps=0.0, weight_decay=decay, block=block, space=space)
    sizes = block.size(start, space)
    bound = torch.tensor([parameter_bound(betas, decay, float(s)) for s in sizes.flatten()]).view_as(sizes)
    for g in adversaries(betas, generator, 3):
        p.grad = g + 1e-100
        optimiser.step()
        assert bool((block.size(p.detach(), space) <= bound * (1 + 1e-12)).all())


def test_with_b1_above_b2_the_bound_fails():
    """C would be 0.447, and a gradient that never changes moves by 1."""
    betas = (0.9, 0.5)
    p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimiser = BlockwiseAdamW([p], lr=1.0, betas=betas, eps=0.0, weight_decay=1.0)
    for _ in range(UPDATES):
        p.grad = torch.ones(1, dtype=torch.float64)
        optimiser.step()
    assert float(p.detach().abs()) == pytest.approx(1.0) and math.sqrt(0.1 / 0.5) < 0.45
    # one large gradient, long forgotten by v and not by m: no constant at all bounds it
    p.grad = torch.full((1,), 1e12, dtype=torch.float64)
    optimiser.step()
    p.grad = torch.full((1,), 1e-12, dtype=torch.float64)
    reached = []
    for _ in range(40):
        optimiser.step()
        reached.append(float(p.detach().abs()))
    assert max(reached) > 20.0
    with pytest.raises(ValueError, match="b1 <= b2"):
        update_bound(betas)


def test_without_decay_there_is_no_parameter_bound():
    with pytest.raises(ValueError, match="weight_decay = 0"):
        parameter_bound((0.9, 0.999), 0.0, 1.0)


@pytest.mark.parametrize(("betas", "k", "words"), [((0.9, 0.999), 0, "k = 0"), ((0.9, 0.999), -1, "k = -1")])
def test_updates_are_counted_from_one(betas, k, words):
    assert update_bound(betas, 1) == pytest.approx(1.0)
    with pytest.raises(ValueError, match=words):
        update_bound(betas, k)


def test_bounds_of_betas_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"betas\[1\] = 1.0"):
        update_bound((0.9, 1.0))
