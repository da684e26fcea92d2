"""Optimisers on the simplex: invariance, the vertex, and multiplicative weights in closed form."""

import math

import pytest
import torch
from torch import nn

from continua.fields import ContinuousHeads
from continua.operators import Attention
from continua.optim import DualAveraging, MirrorAdam
from continua.spaces import GaussLegendre, SimplexSpace

DTYPE = torch.float64
MAKERS = {
    "MirrorAdam": lambda p, **o: MirrorAdam([p], lr=0.1, **o),
    "MirrorAdam, not adaptive": lambda p, **o: MirrorAdam([p], lr=0.1, adaptive=False, **o),
    "DualAveraging": lambda p, **o: DualAveraging([p], lr=0.3, **o),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def even(*shape):
    return nn.Parameter(torch.zeros(shape, dtype=DTYPE))


def gradients(count, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=DTYPE) for _ in range(count)]


def logits(p):
    return nn.Parameter(torch.log(p))


def run(optimiser, l, grads, axis=-1):
    """The masses after updates of the logits l on J with dJ/dp = g, one of `grads` after the other."""
    for g in grads:
        (l.grad,) = torch.autograd.grad((l.softmax(axis) * g).sum(), l)
        optimiser.step()
    return l.detach().softmax(axis)


@each_maker
def test_a_constant_added_to_the_gradient_changes_nothing(make):
    plain, shifted = even(3, 5), even(3, 5)
    grads = gradients(60, (3, 5))
    p = run(make(plain), plain, grads)
    moved = [g + 7.0 * (k % 3 - 1) * torch.arange(1, 4)[:, None] for k, g in enumerate(grads)]
    torch.testing.assert_close(p, run(make(shifted), shifted, moved), rtol=0, atol=1e-11)


@each_maker
def test_a_constant_added_to_the_logits_changes_nothing(make):
    """Of the starting point too only the masses count."""
    plain, shifted = even(3, 5), nn.Parameter(torch.full((3, 5), 4.0, dtype=DTYPE))
    grads = gradients(60, (3, 5))
    torch.testing.assert_close(run(make(plain), plain, grads), run(make(shifted), shifted, grads), rtol=0, atol=1e-11)


@each_maker
def test_masses_remain_masses(make):
    l = even(3, 5)
    for g in gradients(300, (3, 5)):
        p = run(optimiser := make(l), l, [100.0 * g])
        assert float((p.sum(-1) - 1.0).abs().max()) < 1e-14 and float(p.min()) > 0.0
        assert optimiser.space == SimplexSpace()


@each_maker
def test_the_vertex_of_a_linear_objective_is_reached(make):
    """J = <(1, 2, 3), p>: a second moment for each coordinate would not move at all."""
    l = even(3)
    p = run(make(l), l, 600 * [torch.tensor([1.0, 2.0, 3.0], dtype=DTYPE)])
    assert float(p[0]) > 1.0 - 1e-3
    reached = p @ torch.tensor([1.0, 2.0, 3.0], dtype=DTYPE)
    assert float(reached) == pytest.approx(1.0, abs=2e-3)


def test_without_momentum_it_is_multiplicative_weights():
    p0 = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], dtype=DTYPE)
    grads, eta = gradients(50, (2, 4)), 0.07
    expected = p0 * torch.exp(-eta * sum(grads))
    expected /= expected.sum(-1, keepdim=True)
    l = logits(p0)
    p = run(MirrorAdam([l], lr=eta, betas=(0.0, 0.9), adaptive=False), l, grads)
    torch.testing.assert_close(p, expected, rtol=1e-12, atol=0)
    l = logits(p0)
    p = run(DualAveraging([l], lr=eta, power=0.0), l, grads)
    torch.testing.assert_close(p, expected, rtol=1e-12, atol=0)


def test_with_a_second_moment_and_no_memory_each_gradient_is_scaled_by_its_deviation():
    p0 = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DTYPE)
    grads, eta, log_p = gradients(20, (4,)), 0.1, torch.log(p0)
    for g in grads:
        p = torch.softmax(log_p, 0)
        log_p = log_p - eta * g / (p @ (g - p @ g) ** 2).sqrt()
    l = logits(p0)
    q = run(MirrorAdam([l], lr=eta, betas=(0.0, 0.0), eps=0.0), l, grads)
    torch.testing.assert_close(q, torch.softmax(log_p, 0), rtol=1e-11, atol=0)


def test_dual_averaging_forgets_nothing():
    """The order of gradients does not matter to where it ends."""
    grads = gradients(30, (5,))
    ends = []
    for order in (grads, grads[::-1]):
        l = even(5)
        ends.append(run(DualAveraging([l], lr=0.3), l, order))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=0)
    expected = torch.softmax(-0.3 * 30**-0.5 * sum(grads), 0)
    torch.testing.assert_close(ends[0], expected, rtol=1e-12, atol=0)


def test_columns_are_a_simplex_where_the_space_says_so():
    rows, columns = even(4, 5), even(5, 4)
    grads = gradients(40, (4, 5))
    p = run(MirrorAdam([rows]), rows, grads)
    q = run(MirrorAdam([columns], space=SimplexSpace(-2)), columns, [g.T for g in grads], axis=-2)
    torch.testing.assert_close(p, q.T, rtol=1e-13, atol=0)


@each_maker
def test_a_mass_of_zero_stays_zero_and_no_other_becomes_zero(make):
    l = logits(torch.tensor([0.5, 0.5, 0.0]))
    g = torch.tensor([-1e4, 1e4, -1e4])
    p = run(make(l), l, 50 * [g])
    assert float(p[2]) == 0.0 and 0.0 < float(p[1]) < 1e-6
    p = run(make(l), l, 50 * [torch.tensor([1e4, -1e4, 0.0])])
    assert bool(torch.isfinite(p).all()) and float(p[1]) > 0.5, "a mass comes back"


def test_every_start_is_a_point_of_the_simplex():
    l = nn.Parameter(torch.tensor([3.0, -40.0, 0.0]))
    MirrorAdam([l])
    assert torch.equal(l, torch.tensor([3.0, -40.0, 0.0]))
    with pytest.raises(ValueError, match=r"power = 1\.0"):
        DualAveraging([even(3)], power=1.0)


@pytest.mark.parametrize(
    ("sign", "holds"), [(1.0, True), (0.0, False), (-1.0, False)], ids=["entropy", "none", "wrong"]
)
def test_an_entropy_term_keeps_a_density_of_heads_from_collapsing(sign, holds):
    """J = <g, p> + sign int rho log rho: with the right sign an optimum inside, with the other one a collapse."""
    operator = Attention(heads=6, key_size=2, head_masses=True)
    field = ContinuousHeads(operator.spec(4)).double()
    c = field.coefficients["p"]
    optimiser = MirrorAdam([c], lr=0.05, space=SimplexSpace(-2))
    om = GaussLegendre().nodes(6)[1].double()
    g = torch.linspace(0.0, 0.5, 6, dtype=DTYPE)
    for _ in range(400):
        optimiser.zero_grad()
        p = field.masses(0.4)
        (p @ g + sign * torch.special.xlogy(p, p / om).sum()).backward()
        optimiser.step()
    assert float(field.masses(0.4).detach().min()) > 0.0
    heads = field.effective_heads(0.4)
    collapsed = 6.0 * math.exp(0.75) / 4.0  # rho = 4 (1 - h)^3, all that a density of degree 3 can do
    assert heads > 5.5 if holds else heads < 1.05 * collapsed
