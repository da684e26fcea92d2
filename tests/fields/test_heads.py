"""Continuous heads: theta(h, z) and rho(h, z) at any number of nodes."""

import math

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.fields import ContinuousHeads, Expansion
from continua.model import (
    ContinuousTransformer,
    Flow,
    MeanReadout,
    Part,
    VectorEmbedding,
    load,
    save,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Role, Sum, leaves
from continua.optim import Recipe
from continua.spaces import BSpline, ClenshawCurtis, Cloud, GaussLegendre, Legendre, MidpointRule
from models import adaptive_model

OPERATOR = PreNorm(LayerNorm(), Attention(heads=6, key=4, measured=True))
SPEC = OPERATOR.spec(8)
POINTS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def field(degree: int = 3, seed: int = 0) -> ContinuousHeads:
    """A field whose density is not even, and whose theta is smooth: higher modes over h are smaller."""
    made = ContinuousHeads(SPEC, 2.0, degree=degree, generator=torch.Generator().manual_seed(seed)).double()
    generator = torch.Generator().manual_seed(seed)
    decay = torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)
    for name, leaf in leaves(SPEC):
        c = made.coefficients[name.replace(".", "_")].data
        if leaf.role is Role.HEAD_MASS:
            c.copy_(torch.softmax(torch.randn(c.shape, generator=generator, dtype=torch.float64), 0))
        elif leaf.role is Role.HEAD:
            c *= decay.view(-1, *(1 for _ in c.shape[1:]))
    return made


def test_the_output_converges_spectrally_in_the_nodes():
    heads = field()
    exact = OPERATOR.velocity(heads.at_nodes(64)(0.7), Cloud(POINTS))
    found = [OPERATOR.velocity(heads.at_nodes(n)(0.7), Cloud(POINTS)) for n in (3, 6, 12, 24)]
    errors = [float((v - exact).detach().abs().max()) for v in found]
    assert errors[1] < errors[0] / 10 and errors[2] < errors[1] / 50
    assert errors[2] < 1e-5 and errors[3] < 1e-10


def test_heads_that_are_polynomials_in_h_are_integrated_exactly():
    """The mean of b_V over h, whatever the scores: a polynomial of degree 3 + 3 under rho."""
    heads = field()
    for name, c in heads.coefficients.items():
        if name in ("inner_v", "inner_o"):
            c.data.zero_()
    heads.coefficients["inner_o"].data[0] = 1.0
    velocities = [OPERATOR.velocity(heads.at_nodes(n)(0.7), Cloud(POINTS)) for n in (4, 6, 12)]
    torch.testing.assert_close(velocities[0], velocities[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(velocities[1], velocities[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", [0, 1, 3, 6])
def test_masses_are_positive_and_sum_to_one(degree):
    heads = field(degree)
    for nodes in range(max(1, math.ceil((degree + 1) / 2)), 13):
        for z in (0.0, 0.31, 2.0):
            p = heads.at_nodes(nodes).masses(z)
            assert p.shape == (nodes,) and float(p.detach().min()) > 0.0
            assert float(p.detach().sum()) == pytest.approx(1.0, abs=1e-14)


def test_masses_are_the_density_at_the_nodes():
    heads = field()
    h, om = GaussLegendre().nodes(6)
    bernstein = torch.stack([math.comb(3, a) * h**a * (1 - h) ** (3 - a) for a in range(4)], -1)
    rho = 4 * bernstein @ heads.coefficients["inner_p"] @ BSpline(4).evaluate(0.35, torch.float64)
    torch.testing.assert_close(heads.masses(0.7), om * rho, rtol=0, atol=1e-14)


def test_effective_heads_count_an_even_density_and_see_a_collapse(float64):
    heads = ContinuousHeads(SPEC, degree=5)
    assert heads.effective_heads(0.3) == pytest.approx(6.0, abs=1e-12)
    counts = []
    for sharpness in (0.0, 2.0, 5.0, 20.0):
        c = torch.softmax(sharpness * torch.arange(6.0, dtype=torch.float64), 0)
        heads.coefficients["inner_p"].data.copy_(c[:, None].expand(-1, 4))
        counts.append(heads.effective_heads(0.3))
    assert counts == sorted(counts, reverse=True) and counts[-1] < 3.5
    # of the density and not of its nodes: the share of effective heads converges
    shares = [heads.at_nodes(n).effective_heads(0.3) / n for n in (8, 16, 32)]
    assert abs(shares[2] - shares[1]) < abs(shares[1] - shares[0]) < 1e-3


def test_other_nodes_share_the_parameters():
    heads = field()
    other = heads.at_nodes(12)
    assert all(a is b for a, b in zip(heads.parameters(), other.parameters(), strict=True))
    assert heads.heads == 6 and heads(0.3).inner.q.shape[0] == 6 and other(0.3).inner.q.shape == (12, 4, 8)
    again = ContinuousHeads(**arguments_of(other)).double()
    again.load_state_dict(heads.state_dict())
    assert torch.equal(again(0.3).inner.v, other(0.3).inner.v)


@pytest.mark.parametrize("spoil", [lambda c: c * 1.1, lambda c: -c, lambda c: c * math.nan], ids=["sum", "sign", "nan"])
def test_a_density_off_the_simplex_is_refused(spoil):
    heads = field()
    state = heads.state_dict()
    bad = {**state, "coefficients.inner_p": spoil(state["coefficients.inner_p"])}
    with pytest.raises(ValueError, match=r"coefficients\.inner_p = .*sum p = 1.*SimplexSpace\(axis=-2\)\.project"):
        ContinuousHeads(**arguments_of(heads)).double().load_state_dict(bad)
    heads.check()
    heads.coefficients["inner_p"].data.copy_(bad["coefficients.inner_p"])
    with pytest.raises(ValueError, match=r"inner\.p = .*sum p = 1"):
        heads.check()


def test_rounding_is_no_reason_to_refuse():
    """Not even that of another dtype: thirds of float32 do not sum to one in float64."""
    heads = field().float()
    ContinuousHeads(**arguments_of(heads)).load_state_dict(heads.state_dict())
    thirds = ContinuousHeads(SPEC, degree=2).double()
    off = (thirds.coefficients["inner_p"].detach().sum(0) - 1.0).abs().max()
    assert float(off) > torch.finfo(torch.float64).eps ** 0.5
    thirds.check()
    ContinuousHeads(**arguments_of(thirds)).double().load_state_dict(thirds.state_dict())
    Recipe().build(thirds)


def test_bad_heads_are_named():
    with pytest.raises(ValueError, match=r"spec = .*no head has a mass.*measured=True"):
        ContinuousHeads(Attention(2, 3).spec(4))
    with pytest.raises(ValueError, match=r"heads = 2: 2 nodes do not integrate a density of degree 5 exactly.*more"):
        ContinuousHeads(Attention(2, 3, measured=True).spec(4), degree=5)
    with pytest.raises(ValueError, match=r"heads = 1: "):
        field().at_nodes(1)
    with pytest.raises(ValueError, match=r"heads = 4: 4 nodes do not integrate a density of degree 5"):
        ContinuousHeads(Attention(4, 3, measured=True).spec(4), degree=5, rule=ClenshawCurtis())
    with pytest.raises(ValueError, match=r"degree = -1: "):
        ContinuousHeads(SPEC, degree=-1)
    with pytest.raises(ValueError, match=r"depth = 0\.0: .*Pass depth > 0"):
        ContinuousHeads(SPEC, 0.0)
    with pytest.raises(ValueError, match=r"spec = .*one number of nodes.*a field of its own"):
        ContinuousHeads(Sum((Attention(2, 3, measured=True), Attention(4, 3, measured=True))).spec(4))
    assert ContinuousHeads(SPEC, degree=1, rule=MidpointRule()).masses(0.0).shape == (6,)


def model() -> ContinuousTransformer:
    feedforward = PreNorm(LayerNorm(), FeedForward(8))
    parts = [Part(OPERATOR, field()), Part(feedforward, Expansion(feedforward.spec(8), Legendre(2), 2.0))]
    return ContinuousTransformer(VectorEmbedding(2, 8), Flow(parts, 2.0), MeanReadout(8, 3)).double().at(steps=4)


def test_a_model_runs_with_other_numbers_of_heads(tmp_path):
    torch.manual_seed(0)
    trained, signal = model(), torch.randn(2, 7, 2, dtype=torch.float64)
    outputs = {n: trained.at(heads=n)(signal).detach() for n in (6, 12, 24, 48)}
    assert torch.equal(outputs[6], trained(signal))
    errors = [float((outputs[n] - outputs[48]).abs().max()) for n in (6, 12, 24)]
    assert errors[1] < errors[0] / 30 and errors[2] < 1e-9
    more = trained.at(heads=12)
    assert {id(p) for p in more.parameters()} == {id(p) for p in trained.parameters()}
    assert torch.equal(load(save(more, tmp_path))(signal), outputs[12])


def test_heads_that_are_counted_stay_as_they_are():
    counted = adaptive_model(width=8, outputs=3, features=2, heads=2)
    with pytest.raises(ValueError, match=r"heads = 12: no part of the flow has continuous heads"):
        counted.at(heads=12)
