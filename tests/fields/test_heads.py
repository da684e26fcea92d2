"""Continuous heads: theta(h, z) and rho(h, z) at any number of nodes."""

import math

import pytest
import torch

from continua.core.arguments import arguments_of
from continua.fields import ContinuousHeads, Expansion, HeadHypernetwork
from continua.model import (
    ContinuousTransformer,
    Flow,
    MeanReadout,
    Part,
    VectorEmbedding,
    load,
    save,
)
from continua.operators import Attention, Dense, FeedForward, LayerNorm, PreNorm, Role, Sum, leaves
from continua.optim import Recipe
from continua.solve import Direct, Euler, Fixed, Solver
from continua.spaces import (
    BSpline,
    Chebyshev,
    ClenshawCurtis,
    Cloud,
    Cosine,
    GaussLegendre,
    Legendre,
    MidpointRule,
    ScaledBasis,
)
from models import adaptive_model

OPERATOR = PreNorm(LayerNorm(), Attention(heads=6, key_size=4, head_masses=True))
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
            c.copy_(torch.randn(c.shape, generator=generator, dtype=torch.float64))
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
    rho = 4 * bernstein @ heads.coefficients["inner_p"].softmax(0) @ BSpline(4).evaluate(0.35, torch.float64)
    torch.testing.assert_close(heads.masses(0.7), om * rho, rtol=0, atol=1e-14)


def test_effective_heads_count_an_even_density_and_see_a_collapse(float64):
    heads = ContinuousHeads(SPEC, degree=5)
    assert heads.effective_heads(0.3) == pytest.approx(6.0, abs=1e-12)
    counts = []
    for sharpness in (0.0, 2.0, 5.0, 20.0):
        c = sharpness * torch.arange(6.0, dtype=torch.float64)
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


@pytest.mark.parametrize("optimiser", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD], ids=lambda o: o.__name__)
def test_no_optimiser_drives_a_density_off_the_simplex(optimiser, tmp_path, unchecked):
    """200 updates at a high rate, on a loss that wants all heads at one end; then saved, loaded and trained on."""
    torch.manual_seed(0)
    trained, signal = model().float().at(solver=Solver(Euler(), Fixed(2)), gradient=Direct()), torch.randn(4, 7, 2)
    heads = trained.flow.parts[0].field
    before = float(heads.masses(0.7)[0].detach())
    steps = optimiser(trained.parameters(), lr=0.03)
    for _ in range(200):
        steps.zero_grad()
        (trained(signal).square().mean() - 20.0 * heads.masses(0.7)[0]).backward()
        steps.step()
    for nodes in (3, 6, 12):
        for z in (0.0, 0.31, 0.7, 2.0):
            p = heads.at_nodes(nodes).masses(z).detach()
            assert float(p.min()) > 0.0 and float(p.sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(heads.masses(0.7)[0].detach()) > 1.2 * before, "the density was trained"
    other = load(save(trained, tmp_path))
    assert torch.equal(other(signal), trained(signal))
    Recipe().build(other)


@pytest.mark.parametrize("over_z", [Cosine(3), Legendre(4), ScaledBasis(Legendre(3), 0.5), Chebyshev(2)], ids=repr)
def test_theta_varies_in_any_basis_and_the_density_in_splines(over_z):
    heads = ContinuousHeads(SPEC, 2.0, over_z=over_z, density_over_z=BSpline(3, 1)).double()
    assert heads.breaks == (1.0,) and heads.coefficients["inner_p"].shape == (4, 3)
    assert heads.coefficients["inner_q"].shape == (4, over_z.size, 4, 8)
    heads.coefficients["inner_p"].data.normal_(generator=torch.Generator().manual_seed(0))
    phi, psi = Legendre(4).evaluate(GaussLegendre().nodes(6)[0]), over_z.evaluate(0.35, torch.float64)
    expected = torch.einsum("ka,b,ab...->k...", phi, psi, heads.coefficients["inner_q"])
    torch.testing.assert_close(heads(0.7).inner.q, expected)
    for z in (0.0, 0.7, 1.0, 2.0):
        assert float(heads.masses(z).detach().sum()) == pytest.approx(1.0, abs=1e-14)
    assert ContinuousHeads(SPEC, over_z=over_z).density_over_z == BSpline(4)
    assert ContinuousHeads(SPEC, over_z=BSpline(6, 2)).density_over_z == BSpline(6, 2)


def test_a_hypernetwork_of_continuous_heads_trains_and_reads_at_other_nodes(tmp_path, unchecked):
    torch.manual_seed(0)
    operator = PreNorm(LayerNorm(), Attention(heads=6, key_size=4, head_masses=True))
    network = HeadHypernetwork(operator.spec(8), 2.0, hidden=16, over_h=ScaledBasis(Legendre(3), 0.4))
    flow = Flow([Part(operator, network)], 2.0)
    trained = ContinuousTransformer(VectorEmbedding(2, 8), flow, MeanReadout(8, 3)).at(steps=2)
    signal = torch.randn(24, 7, 2)
    labels = (signal[:, :, 0].mean(1) > 0).long() + (signal[:, :, 1].mean(1) > 0).long()
    steps, losses = Recipe().build(trained), []
    for _ in range(60):
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(trained(signal), labels)
        loss.backward()
        losses.append(float(loss.detach()))
        steps.step()
    assert losses[-1] < 0.7 * losses[0]
    assert float(torch.cat([m.whole.detach().flatten() for m in network.makers.values()]).abs().max()) > 1e-2
    outputs = {n: trained.at(head_nodes=n)(signal).detach() for n in (3, 6, 12, 24, 48)}
    errors = [float((outputs[n] - outputs[48]).abs().max()) for n in (3, 6, 12, 24)]
    assert errors[1] < errors[0] and errors[2] < 0.1 * errors[1] and errors[3] < 1e-4
    assert torch.equal(outputs[6], trained(signal))
    more = trained.at(head_nodes=12)
    assert {id(p) for p in more.parameters()} == {id(p) for p in trained.parameters()}
    assert torch.equal(load(save(more, tmp_path))(signal), outputs[12])
    assert network.at_nodes(12).effective_heads(0.3) < 12.0


def test_generated_heads_vary_along_h_and_z():
    network = HeadHypernetwork(SPEC, 2.0, hidden=8, generator=torch.Generator().manual_seed(0)).double()
    same = network(0.2).inner.q
    torch.testing.assert_close(network(1.9).inner.q, same)  # G = 0 at the start
    assert not torch.allclose(same[0], same[1])  # but base(h) is not constant
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double()
    assert not torch.allclose(network(1.9).inner.q, network(0.2).inner.q)
    assert not torch.allclose(network.masses(1.9), network.masses(0.2))
    assert not torch.allclose(network(1.9).norm.gain, network(0.2).norm.gain)
    with pytest.raises(ValueError, match=r"hidden = 0: .*Pass hidden >= 1"):
        HeadHypernetwork(SPEC, hidden=0)
    with pytest.raises(ValueError, match=r"q = StiefelSpace.*Expansion or ContinuousHeads"):
        HeadHypernetwork(Attention(6, 4, head_masses=True, kernel=Dense(orthonormal=True)).spec(8))


def test_bad_heads_are_named():
    with pytest.raises(ValueError, match=r"spec = .*no head has a mass.*head_masses=True"):
        ContinuousHeads(Attention(2, 3).spec(4))
    with pytest.raises(ValueError, match=r"head_nodes = 2: 2 nodes do not integrate a density of degree 5.*at least 3"):
        ContinuousHeads(Attention(2, 3, head_masses=True).spec(4), degree=5)
    with pytest.raises(ValueError, match=r"head_nodes = 1: "):
        field().at_nodes(1)
    with pytest.raises(ValueError, match=r"head_nodes = 4: 4 nodes do not integrate a density of degree 5"):
        ContinuousHeads(Attention(4, 3, head_masses=True).spec(4), degree=5, rule=ClenshawCurtis())
    with pytest.raises(ValueError, match=r"degree = -1: "):
        ContinuousHeads(SPEC, degree=-1)
    with pytest.raises(ValueError, match=r"depth = 0\.0: .*Pass depth > 0"):
        ContinuousHeads(SPEC, 0.0)
    with pytest.raises(ValueError, match=r"spec = .*one number of nodes.*a field of its own"):
        ContinuousHeads(Sum((Attention(2, 3, head_masses=True), Attention(4, 3, head_masses=True))).spec(4))
    assert ContinuousHeads(SPEC, degree=1, rule=MidpointRule()).masses(0.0).shape == (6,)


def model() -> ContinuousTransformer:
    feedforward = PreNorm(LayerNorm(), FeedForward(8))
    parts = [Part(OPERATOR, field()), Part(feedforward, Expansion(feedforward.spec(8), Legendre(2), 2.0))]
    return ContinuousTransformer(VectorEmbedding(2, 8), Flow(parts, 2.0), MeanReadout(8, 3)).double().at(steps=4)


def test_a_model_runs_with_other_numbers_of_heads(tmp_path):
    torch.manual_seed(0)
    trained, signal = model(), torch.randn(2, 7, 2, dtype=torch.float64)
    outputs = {n: trained.at(head_nodes=n)(signal).detach() for n in (6, 12, 24, 48)}
    assert torch.equal(outputs[6], trained(signal))
    errors = [float((outputs[n] - outputs[48]).abs().max()) for n in (6, 12, 24)]
    assert errors[1] < errors[0] / 30 and errors[2] < 1e-9
    more = trained.at(head_nodes=12)
    assert {id(p) for p in more.parameters()} == {id(p) for p in trained.parameters()}
    assert torch.equal(load(save(more, tmp_path))(signal), outputs[12])


def test_heads_that_are_counted_stay_as_they_are():
    counted = adaptive_model(width=8, outputs=3, features=2, heads=2)
    with pytest.raises(ValueError, match=r"head_nodes = 12: no part of the flow has continuous heads"):
        counted.at(head_nodes=12)
