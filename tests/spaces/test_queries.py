"""Listeners: tokens that are present without mass - they attend, and nobody attends to them."""

import math

import pytest
import torch

from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import Attention, Binding, FeedForward, LayerNorm, PreNorm, Subset, draw_theta, map_leaves
from continua.solve import Adaptive, Checkpointed, Direct, Fixed, integrate
from continua.spaces import CausalTrapezoid, Cloud

WIDTH = 4
each_causality = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def observed(tied: bool = False) -> Cloud:
    """Two sequences, the second shorter; times from 1 on."""
    times = 1.0 + draw(2, 6).abs().cumsum(-1)
    if tied:
        times[:, 3] = times[:, 2]
    mass = 0.1 + draw(2, 6, seed=1).abs()
    mass[1, 4:] = 0.0
    return Cloud(draw(2, 6, WIDTH, seed=2), mass, times)


def flow_of(causal: bool, **options) -> Flow:
    generator = torch.Generator().manual_seed(5)
    attention = PreNorm(LayerNorm(), Attention(2, 2, causal=causal, **options))
    operators = (attention, PreNorm(LayerNorm(), FeedForward(8)))
    return Flow([Part(f, Constant(f.spec(WIDTH), generator)) for f in operators]).double().eval()


def solved(flow: Flow, cloud: Cloud, controller=Fixed(4), gradient=Direct()):
    bound = flow.bind(cloud)
    return integrate(bound, bound.initial(), (0.0, 1.0), controller=controller, gradient=gradient)


def at(points: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return points.take_along_dim(where.unsqueeze(-1), 1)


def others(where: torch.Tensor, tokens: int) -> torch.Tensor:
    """The places of the tokens that are no queries, in order."""
    free = torch.ones(where.shape[0], tokens, dtype=torch.bool).scatter(1, where, False)
    return torch.stack([row.nonzero()[:, 0] for row in free])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-13)


TIMES = torch.tensor([[9.0, 0.5, 2.0], [1.9, 0.2, 1.9]], dtype=torch.float64)
"""Unsorted; some before every token, some after."""


@each_causality
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("integral", [{}, {"integral": Subset(3)}], ids=["exact", "subset"])
def test_a_query_changes_nothing_for_the_others(causal, tied, integral):
    cloud, flow = observed(tied), flow_of(causal, **integral)
    wider, where = cloud.with_queries(draw(2, 3, WIDTH, seed=3), TIMES)
    alone, heard = solved(flow, cloud), solved(flow, wider)
    tokens = others(where, 9)
    for sequence, count in enumerate((6, 4)):
        close(heard.x[sequence, tokens[sequence]][:count], alone.x[sequence, :count])


@each_causality
def test_a_query_does_not_change_the_grid(causal):
    cloud, flow = observed(), flow_of(causal)
    wider, _ = cloud.with_queries(100.0 * draw(2, 3, WIDTH, seed=3), TIMES)
    grids = [solved(flow, c, Adaptive(1e-6, 1e-6)).stats.grid for c in (cloud, wider)]
    assert len(grids[0]) > 4
    torch.testing.assert_close(torch.tensor(grids[0]), torch.tensor(grids[1]), rtol=0.0, atol=1e-9)


@each_causality
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_queries_do_not_see_each_other(causal, tied):
    cloud, flow, states = observed(tied), flow_of(causal), draw(2, 3, WIDTH, seed=3)
    wider, where = cloud.with_queries(states, TIMES)
    together = at(solved(flow, wider).x, where)
    for j in range(3):
        single, place = cloud.with_queries(states[:, j : j + 1], TIMES[:, j : j + 1])
        close(at(solved(flow, single).x, place), together[:, j : j + 1])


def attention(cloud: Cloud, causal: bool, **options) -> torch.Tensor:
    operator = Attention(1, 2, causal=causal, biased=False, **options)
    theta = map_leaves(lambda x: x.double(), draw_theta(operator.spec(WIDTH), torch.Generator().manual_seed(0)))
    return operator.bind(Binding(cloud)).velocity(theta, cloud)


@pytest.mark.parametrize("integral", [{}, {"integral": Subset(3)}], ids=["exact", "subset"])
def test_a_causal_query_before_every_token_sees_the_empty_measure(integral):
    cloud = observed()
    wider, where = cloud.with_queries(draw(2, 3, WIDTH, seed=3), TIMES)
    found = at(attention(wider, True, **integral), where)
    assert wider.measure.early
    assert cloud.positions is not None and bool((found[cloud.positions[:, :1] > TIMES] == 0).all())
    assert integral or bool((found[cloud.positions[:, :1] <= TIMES] != 0).all())
    assert bool((at(attention(wider, False, **integral), where) != 0).all())


def test_a_causal_query_sees_the_tokens_of_its_time_and_none_later():
    cloud = observed()
    assert cloud.positions is not None
    points = cloud.points.clone().requires_grad_()
    movable = Cloud(points, cloud.mass, cloud.positions)
    wider, where = movable.with_queries(draw(2, 1, WIDTH, seed=3), cloud.positions[:, 2:3])
    assert not wider.measure.tied, "a query after the token of its time leaves the fused path open"
    (g,) = torch.autograd.grad(at(attention(wider, True), where).sum(), points)
    seen = (g != 0).any(-1)
    assert bool(seen[:, :3].all()) and not bool(seen[:, 3:].any())


@each_causality
def test_a_query_at_a_tokens_state_and_time_answers_like_it(causal):
    """Not causal, a token and its double see the same measure; causal, where times are not tied."""
    cloud = observed()
    assert cloud.positions is not None
    wider, where = cloud.with_queries(cloud.points[:, 1:3], cloud.positions[:, 1:3])
    found = attention(wider, causal)
    close(at(found, where), at(found, others(where, 8))[:, 1:3])


@each_causality
def test_gradients_flow_and_checkpointed_is_direct(causal, unchecked):
    flow, states, cloud = flow_of(causal), draw(2, 3, WIDTH, seed=3).requires_grad_(), observed()
    points, mass = cloud.points.clone().requires_grad_(), cloud.mass.clone().requires_grad_()
    wanted = [states, points, mass, *flow.parameters()]
    found = []
    for gradient in (Direct(), Checkpointed(segment=1.0, steps=2)):
        wider, where = Cloud(points, mass, cloud.positions).with_queries(states, TIMES)
        loss = at(solved(flow, wider, gradient=gradient).x, where).square().sum()
        found.append(torch.autograd.grad(loss, wanted))
    assert all(bool(g.abs().max() > 1e-6) for g in found[0][:3])
    for g, e in zip(*found, strict=True):
        torch.testing.assert_close(g, e, rtol=0.0, atol=1e-12)


def test_without_positions_time_is_the_index():
    cloud = Cloud(draw(1, 3, WIDTH))
    wider, where = cloud.with_queries(draw(1, 2, WIDTH), torch.tensor([[1.5, -1.0]], dtype=torch.float64))
    assert wider.positions is not None and wider.positions.tolist() == [[-1.0, 0.0, 1.0, 1.5, 2.0]]
    assert where.tolist() == [[3, 0]] and wider.mass is not None and wider.mass.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.0]]
    assert wider.present is None and wider.measure.early and not wider.measure.suffix


def test_a_mask_that_repeats_the_masses_makes_no_query():
    mass = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    times = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    own = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert Cloud(draw(1, 3, WIDTH), mass, times, own, present=mass > 0).measure.suffix


@pytest.mark.parametrize(
    ("points", "times", "match"),
    [
        (draw(2, 3, WIDTH), TIMES[:1], "2 sequences"),
        (draw(2, 2, WIDTH), TIMES, "as wide as the tokens"),
        (draw(2, 3, WIDTH + 1), TIMES, "as wide as the tokens"),
        (draw(2, 3, WIDTH), TIMES.float(), "float32"),
        (draw(2, 3, WIDTH).float(), TIMES, "float32"),
        (draw(2, 3, WIDTH), TIMES.masked_fill(TIMES > 8, math.inf), "finite time"),
        (draw(2, 3, WIDTH), TIMES.masked_fill(TIMES > 8, math.nan), "finite time"),
    ],
)
def test_mistakes_are_named(points, times, match, unchecked):
    with pytest.raises(ValueError, match=match):
        observed().with_queries(points, times)


def test_own_masses_are_refused():
    times = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    rule = CausalTrapezoid()
    cloud = Cloud(draw(1, 3, WIDTH), rule.mass(times), times, rule.own(times))
    with pytest.raises(ValueError, match="next time"):
        cloud.with_queries(draw(1, 1, WIDTH), times[:, :1])
    with pytest.raises(ValueError, match="queries have no mass"):
        mass = rule.mass(times) * torch.tensor([1.0, 1.0, 0.0])
        own = rule.own(times) * torch.tensor([1.0, 1.0, 0.0])
        Cloud(draw(1, 3, WIDTH), mass, times, own, present=torch.ones(1, 3, dtype=torch.bool))


def test_a_token_with_mass_is_present():
    with pytest.raises(ValueError, match="a token with mass is present"):
        Cloud(draw(1, 2, WIDTH), present=torch.tensor([[True, False]]))
