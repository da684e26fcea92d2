import math

import pytest
import torch

from continua.fields import Constant, Expansion, Hypernetwork, PiecewiseConstant, join_layers
from continua.model import Depth, transformer
from continua.operators import Attention, FeedForward, draw_theta, leaves, map_leaves
from continua.spaces import Cloud, Legendre

OPERATOR = FeedForward(hidden=3)
SPEC = OPERATOR.spec(4)


def theta(seed: int):
    return draw_theta(SPEC, torch.Generator().manual_seed(seed))


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(one), leaves(other), strict=True))


def test_a_constant_field_is_the_same_at_every_depth():
    field = Constant(SPEC)
    assert field.breaks == () and equal(field(0.0), field(7.0))
    assert all(a is b for (_, a), (_, b) in zip(leaves(field(0.0)), leaves(field(7.0)), strict=True))


def test_layers_have_thickness_one():
    field = PiecewiseConstant.layers(SPEC, 4)
    assert field.edges == (0.0, 1.0, 2.0, 3.0, 4.0) and field.breaks == (1.0, 2.0, 3.0)
    assert PiecewiseConstant.layers(SPEC, 1).breaks == ()


def test_fill_takes_over_values_and_not_tensors():
    given = theta(1)
    field = Constant(SPEC)
    assert field.fill(given) is field and equal(field(0.3), given)
    for _, leaf in leaves(given):
        leaf += 1.0
    assert not equal(field(0.3), given)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in field.parameters())


def test_fill_gives_every_piece_its_own():
    field = PiecewiseConstant(SPEC, (0.0, 0.5, 3.0))
    assert field.fill([theta(1), theta(2)]) is field
    assert equal(field(0.0), theta(1)) and equal(field(0.49), theta(1))
    assert equal(field(0.5), theta(2)) and equal(field(3.0), theta(2))
    assert equal(field(0.5, 0.4), theta(1)) and equal(field(0.5, 0.6), theta(2))


def test_beyond_the_edges_the_nearest_piece_is_read():
    field = PiecewiseConstant(SPEC, (0.0, 1.0, 2.0)).fill([theta(1), theta(2)])
    assert equal(field(-1e-9), theta(1)) and equal(field(2.0 + 1e-9), theta(2))


def test_a_step_touches_the_gradient_of_its_own_piece_alone():
    field = PiecewiseConstant.layers(SPEC, 3)
    OPERATOR.act(field(1.0, 1.5), torch.ones(1, 2, 4)).sum().backward()
    touched = [[p.grad is not None for p in piece.parameters()] for piece in field.pieces]
    assert touched == [[False] * 4, [True] * 4, [False] * 4]


def test_sequences_at_depths_of_their_own_touch_their_own_pieces():
    field = PiecewiseConstant.layers(SPEC, 3)
    OPERATOR.act(field(torch.tensor([0.5, 2.5])), torch.ones(2, 2, 4)).sum().backward()
    grads = [piece["w1"].grad for piece in field.pieces]  # pyright: ignore[reportIndexIssue]
    assert [bool((grad != 0).any()) for grad in grads] == [True, False, True]


def test_one_constant_is_shared_by_all_sequences():
    field = Constant(SPEC)
    OPERATOR.act(field(torch.tensor([0.5, 2.5])), torch.ones(2, 2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in field.parameters())
    assert dict(leaves(field(torch.tensor([0.5, 2.5]))))["w1"].shape == (2, 3, 4)


@pytest.mark.parametrize("edges", [(0.0,), (0.0, 1.0, 1.0), (0.0, 2.0, 1.0), (0.0, math.nan), (0.0, math.inf), ()])
def test_bad_edges_are_named(edges):
    with pytest.raises(ValueError, match=r"edges = \(.*\): edges must increase.*Pass \(0\.0, 1\.0, \.\.\., L\)"):
        PiecewiseConstant(SPEC, edges)


def test_no_layers_are_named():
    with pytest.raises(ValueError, match=r"edges = \[0\.0\]: "):
        PiecewiseConstant.layers(SPEC, 0)


def test_bad_values_are_named():
    field, pieces = Constant(SPEC), PiecewiseConstant.layers(SPEC, 2)
    with pytest.raises(ValueError, match=r"w1 = \(3, 5\): the field holds \(3, 4\)\. Pass theta of the same sizes"):
        field.fill(draw_theta(OPERATOR.spec(5)))
    bare = FeedForward(hidden=3, biased=False)
    with pytest.raises(ValueError, match=r"theta = \['w1', 'w2'\]: the field holds \['b1', 'b2', 'w1', 'w2'\]\. Pass"):
        field.fill(draw_theta(bare.spec(4)))
    with pytest.raises(ValueError, match=r"theta = \['b1', 'b2', 'w1', 'w2'\]: the field holds \['w1', 'w2'\]"):
        Constant(bare.spec(4)).fill(theta(0))
    with pytest.raises(ValueError, match=r"thetas = 1: the field has 2 pieces\. Pass one theta per piece"):
        pieces.fill([theta(0)])
    with pytest.raises(ValueError, match=r"w1 = \(1, 3, 4\)"):
        field.fill(map_leaves(lambda leaf: leaf[None], theta(0)))


# --- masses of heads

HEADS = Attention(heads=3, key_size=2, head_masses=True)
SPOILED = {"sum": [0.5, 0.5, 0.5], "sign": [1.5, -0.25, -0.25], "nan": [math.nan, 0.5, 0.5]}


@pytest.mark.parametrize("p", SPOILED.values(), ids=SPOILED.keys())
@pytest.mark.parametrize("layers", [0, 2], ids=["constant", "pieces"])
def test_masses_off_the_simplex_are_refused_when_filled(p, layers):
    spec = HEADS.spec(4)
    field = PiecewiseConstant.layers(spec, layers) if layers else Constant(spec)
    before = [parameter.clone() for parameter in field.parameters()]
    good = draw_theta(spec)
    bad = good._replace(p=torch.tensor(p))
    with pytest.raises(ValueError, match=r"p = \[.*\]: p >= 0 and sum p = 1.*Divide masses >= 0 by their sum"):
        field.fill([good, bad] if layers else bad)
    if not layers:  # refused before the first value is taken over
        assert all(torch.equal(a, b) for a, b in zip(field.parameters(), before, strict=True))
    field.fill([good, good] if layers else good).load_state_dict(field.state_dict())


@pytest.mark.parametrize("layers", [0, 2], ids=["constant", "pieces"])
@pytest.mark.parametrize("p", [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [1e-30, 0.5, 0.5]], ids=str)
def test_masses_are_held_as_logits(p, layers):
    """What is filled in is read again, a mass of zero but for the smallest number; what is loaded are logits."""
    spec = HEADS.spec(4)
    field = (PiecewiseConstant.layers(spec, layers) if layers else Constant(spec)).double()
    theta = draw_theta(spec)._replace(p=torch.tensor(p, dtype=torch.float64))
    field.fill(layers * [theta] if layers else theta)
    torch.testing.assert_close(field(0.5).p, theta.p, rtol=1e-14, atol=1e-300)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in field.parameters())
    name = "pieces.0.p" if layers else "values.p"
    field.load_state_dict({**field.state_dict(), name: torch.tensor([5.0, -3.0, 2.0])})
    torch.testing.assert_close(field(0.5).p, torch.tensor([5.0, -3.0, 2.0], dtype=torch.float64).softmax(0))


@pytest.mark.parametrize("make", [lambda s: Expansion(s, Legendre(3)), Hypernetwork], ids=["expansion", "network"])
def test_masses_that_are_expanded_or_generated_start_even_and_scale_attention(make):
    """Attention is linear in them."""
    field, cloud = make(HEADS.spec(4)), Cloud(torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)))
    for z in (0.0, 0.4, 1.0):
        torch.testing.assert_close(field(z).p.detach(), torch.full((3,), 1 / 3))
    theta = field(0.4)._replace(bo=None)
    double = HEADS.velocity(theta._replace(p=2 * theta.p), cloud)
    torch.testing.assert_close(double, 2 * HEADS.velocity(theta, cloud))


def test_joined_layers_are_means_and_steps_that_do_not_fit_are_refused():
    torch.manual_seed(0)
    model = transformer(8, 2, features=1, axis=1, heads=2, depth=Depth(4.0, 4)).eval()
    x = torch.randn(2, 5, 1)
    attention = model.flow.parts[0].field
    joined = join_layers(attention, 2)
    q = [dict(leaves(attention(z)))["inner.q"] for z in (0.5, 1.5, 2.5, 3.5)]
    for z, mean in ((1.0, (q[0] + q[1]) / 2), (3.0, (q[2] + q[3]) / 2)):
        torch.testing.assert_close(dict(leaves(joined(z)))["inner.q"], mean)
    assert joined.edges == (0.0, 2.0, 4.0)
    grids = {n: model.at(steps=n)(x, full=True).solution.stats.grid for n in (1, 2, 4, 8)}
    assert {n: len(grid) - 1 for n, grid in grids.items()} == {1: 1, 2: 2, 4: 4, 8: 8}
    with pytest.raises(
        ValueError, match=r"steps = 3: the parameters are those of 4 layers.*Pass steps from 1, 2, 4, 8"
    ):
        model.at(steps=3)
    smooth = transformer(8, 2, features=1, axis=1, heads=2)
    assert len(smooth.at(steps=3)(x, full=True).solution.stats.grid) == 4
