"""K-FAC against the Gauss-Newton matrix written out by autograd."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from continua.fields import Constant, ContinuousHeads, Expansion, Hypernetwork
from continua.model import Flow, Part
from continua.operators import Attention, Dense, FeedForward, Spectral, SpectrallyNormed
from continua.operators.kernels import by_transforms
from continua.optim import KFAC, AbstractLikelihood, Categorical, Gaussian, Recipe, Watch, use
from continua.solve import Backsolve, Checkpointed, Direct, Euler, Fixed, integrate
from continua.spaces import Axis, BSpline, Cloud, Cosine, FlatSpace, GaussLegendre, Legendre, SpectralSpace

DTYPE = torch.float64


def inputs(rows=12, size=3):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(0), dtype=DTYPE)


def linear(bias=False):
    torch.manual_seed(0)
    return nn.Linear(3, 2, bias=bias, dtype=DTYPE)


def gauss_newton(outputs, parameters, hessian):
    """J^T H J, rows of J by autograd."""
    output = outputs()
    rows = [torch.autograd.grad(y, parameters, retain_graph=True) for y in output.flatten()]
    J = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    return J.T @ hessian(output.detach()) @ J


def categorical_hessian(output):
    p = torch.softmax(output, -1)
    blocks = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / output.shape[0]
    return torch.block_diag(*blocks)


HESSIANS = {
    Gaussian(): lambda o: 2.0 / o.numel() * torch.eye(o.numel(), dtype=DTYPE),
    Categorical(): categorical_hessian,
}
each_likelihood = pytest.mark.parametrize("likelihood", HESSIANS, ids=lambda x: type(x).__name__)
LOSSES = {
    Gaussian(): lambda o: F.mse_loss(o, torch.zeros_like(o)),
    Categorical(): lambda o: F.cross_entropy(o, torch.zeros(o.shape[0], dtype=torch.long)),
}


@each_likelihood
def test_the_hessian_is_that_of_torchs_loss(likelihood):
    output = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    exact = torch.autograd.functional.hessian(LOSSES[likelihood], output).view(20, 20)
    torch.testing.assert_close(HESSIANS[likelihood](output), exact, rtol=1e-10, atol=1e-12)
    j = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=DTYPE)
    bend = likelihood.curvature(output, j)
    torch.testing.assert_close(bend, j.flatten() @ exact @ j.flatten(), rtol=1e-10, atol=1e-12)
    generator = torch.Generator().manual_seed(3)
    draws = torch.stack([likelihood.draw(output, generator).flatten() for _ in range(4_000)])
    assert float((draws.T @ draws / 4_000 - exact).abs().max()) < 0.1 * float(
        exact.abs().max()
    )  # 4 deviations of the largest entry


@dataclasses.dataclass(frozen=True)
class EachOutput(AbstractLikelihood):
    """The Gaussian with cotangents that are not random: signs, orthogonal over 2^n draws."""

    def draw(self, output, generator):
        place = EachOutput.place
        EachOutput.place += 1
        signs = torch.tensor([1.0 if bin(place & code).count("1") % 2 == 0 else -1.0 for code in range(output.numel())])
        return signs.to(output).view_as(output) * (2.0 / output.numel()) ** 0.5

    def curvature(self, output, j):
        return Gaussian().curvature(output, j)


def test_the_factors_of_one_linear_map_are_its_gauss_newton_matrix():
    """With one constant Hessian for all rows the Kronecker product is exact."""
    layer, x = linear(), inputs(rows=4)
    EachOutput.place = 0
    optimiser = KFAC([layer.weight])
    optimiser.observe(lambda: layer(x), EachOutput(), draws=8)
    state = optimiser.state[layer.weight]
    exact = gauss_newton(lambda: layer(x), [layer.weight], HESSIANS[Gaussian()])
    torch.testing.assert_close(torch.kron(state["B"], state["A"]), exact, rtol=1e-10, atol=1e-12)


def test_a_linear_regression_is_solved_in_a_few_updates():
    layer, x = linear(), inputs()
    target = x @ torch.randn(3, 2, generator=torch.Generator().manual_seed(5), dtype=DTYPE)
    optimiser = KFAC([layer.weight], damping=1e-10)
    for seed in range(4):
        optimiser.zero_grad()
        F.mse_loss(layer(x), target).backward()
        optimiser.observe(lambda: layer(x), Gaussian(), draws=200, generator=torch.Generator().manual_seed(seed))
        optimiser.step()
    assert float(F.mse_loss(layer(x), target).detach()) < 1e-6


@each_likelihood
def test_the_step_is_rescaled_by_the_exact_curvature(likelihood):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False)).to(DTYPE)
    x, weights, damping = inputs(), [model[0].weight, model[2].weight], 1e-2
    optimiser = KFAC(weights, damping=damping)
    LOSSES[likelihood](model(x)).backward()
    optimiser.observe(lambda: model(x), likelihood, generator=torch.Generator().manual_seed(0))
    before = torch.cat([w.detach().flatten() for w in weights]).clone()
    G = gauss_newton(lambda: model(x), weights, HESSIANS[likelihood])
    g = torch.cat([w.grad.flatten() for w in weights])
    optimiser.step()
    step = torch.cat([w.detach().flatten() for w in weights]) - before
    # a step -alpha d with alpha = <g, d>/<d, (G + lam) d> minimises the quadratic model along itself
    slope = g @ step + step @ G @ step + damping * step @ step
    assert abs(float(slope)) < 1e-6 * float(g.norm() * step.norm())
    assert float(g @ step) < 0.0


def test_a_flow_of_dense_kernels_is_trained():
    torch.manual_seed(2)
    operators = (Attention(2, 3, biased=False), FeedForward(5, biased=False))
    flow = Flow([Part(f, Constant(f.spec(4))) for f in operators]).double()
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    target = torch.tanh(x.flip(-1))

    def outputs():
        bound = flow.bind(Cloud(x))
        return integrate(bound, bound.initial(), (0.0, 1.0), Euler(), Fixed(2), Direct()).x

    optimiser = KFAC(list(flow.named_parameters()), lr=0.5)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = F.mse_loss(outputs(), target)
        loss.backward()
        optimiser.observe(outputs, Gaussian(), generator=torch.Generator().manual_seed(0))
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0] and max(losses) == losses[0]
    with Watch(flow.parameters()) as watch:
        outputs().sum().backward()
    assert watch.met.keys() == set(flow.parameters())  # q, k, v, o joined over heads, w1 and w2


def test_as_a_member_of_the_composite_it_observes_and_resumes():
    def trained(parts):
        torch.manual_seed(3)
        model, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(DTYPE), inputs()
        optimiser = Recipe(flat=use(KFAC, lr=0.5)).build(model)
        (kfac,) = (member for member in optimiser.members.values() if isinstance(member, KFAC))
        for part in parts:
            for step in part:
                optimiser.zero_grad()
                model(x).square().mean().backward()
                kfac.observe(lambda: model(x), Gaussian(), generator=torch.Generator().manual_seed(step))
                optimiser.step()
            optimiser.load_state_dict(optimiser.state_dict())
        return model, float(model(x).square().mean().detach())

    whole, left = trained([range(8)])
    parts, _ = trained([range(3), range(3, 8)])
    assert left < 0.05
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(p, q)


def one_evaluation(flow, x):
    """The flow's state after one step of Euler: one evaluation."""

    def outputs():
        bound = flow.bind(Cloud(x))
        return integrate(bound, bound.initial(), (0.0, 1.0), Euler(), Fixed(1), Direct()).x

    return outputs


def moved(flow):
    """All parameters moved, so that nothing that starts at zero hides what stands behind it."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return flow


SPECTRAL = Spectral(Axis(3, 2), Cosine(2))
FIELDS = {
    "constant": (Dense(), lambda spec: Constant(spec)),
    "expansion": (Dense(), lambda spec: Expansion(spec, Cosine(3))),
    "splines": (Dense(), lambda spec: Expansion(spec, BSpline(3, 2))),
    "hypernetwork": (Dense(), lambda spec: Hypernetwork(spec, frequencies=1, hidden=3)),
    "low rank": (Dense(), lambda spec: Hypernetwork(spec, frequencies=1, hidden=3, rank=1)),
    "spectral": (SPECTRAL, lambda spec: Constant(spec)),
    "spectral expansion": (SPECTRAL, lambda spec: Expansion(spec, Cosine(3))),
    "spectral hypernetwork": (SPECTRAL, lambda spec: Hypernetwork(spec, frequencies=1, hidden=2)),
}


@pytest.mark.parametrize("name", FIELDS)
def test_with_one_token_and_one_evaluation_the_factors_are_the_exact_fisher_matrix(name):
    """Each parameter against its block of J^T H J by autograd; and its step finds the least of the quadratic model."""
    kernel, field = FIELDS[name]
    torch.manual_seed(4)
    f = FeedForward(3 if kernel == Dense() else 1, biased=False, kernel=kernel)
    flow = moved(Flow([Part(f, field(f.spec(6)))]).double())
    outputs = one_evaluation(flow, inputs(1, 6).view(1, 1, 6))
    matrices = {n: p for n, p in flow.named_parameters() if p.ndim > 1}
    assert len(matrices) >= 2
    for which, p in matrices.items():
        flow.zero_grad()
        LOSSES[Gaussian()](outputs()).backward()
        exact, g = gauss_newton(outputs, [p], HESSIANS[Gaussian()]), p.grad.flatten()
        EachOutput.place = 0
        with by_transforms(), Watch([p]) as watch:  # as `KFAC.observe` does
            output = outputs()
            for _ in range(8):
                torch.autograd.grad(output, p, EachOutput().draw(output, None), retain_graph=True)
        factors, layout = watch.met[p].factors(8), watch.met[p].layout
        rows = torch.kron(factors["M"], torch.kron(factors["B"], factors["A"]))
        places = layout.split(torch.arange(p.numel(), dtype=DTYPE).view(p.shape)).flatten().long()
        ours = torch.empty_like(rows)
        ours[places[:, None], places] = rows
        assert float(exact.norm()) > 0
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12 * float(exact.norm()), msg=which)
        before, optimiser, EachOutput.place = p.detach().clone(), KFAC([p], damping=1e-12), 0
        optimiser.observe(outputs, EachOutput(), draws=8)
        optimiser.step()
        step = (p.detach() - before).flatten()
        p.data.copy_(before)
        gained = -(g @ step + 0.5 * step @ exact @ step)
        assert float(gained) > 0.99 * float(0.5 * g @ torch.linalg.pinv(exact) @ g), which


TRAINED = {
    "spectral": (Spectral(Axis(4, 2), Cosine(3)), lambda spec: Expansion(spec, BSpline(3, 2))),
    "hypernetwork": (Dense(), lambda spec: Hypernetwork(spec, hidden=8)),
    "heads in depth": (Dense(), lambda spec: Expansion(spec, Legendre(3))),
}


@pytest.mark.parametrize("name", TRAINED)
def test_spectral_flows_and_hypernetworks_learn_no_slower_than_by_adamw(name, unchecked):
    kernel, field = TRAINED[name]
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    target = torch.tanh(x.flip(-1)) + 0.3 * x.mean(1, keepdim=True)

    def train(make):
        torch.manual_seed(2)
        operators = (Attention(2, 2, biased=False, kernel=kernel), FeedForward(4, biased=False, kernel=kernel))
        flow = Flow([Part(f, field(f.spec(8))) for f in operators]).double()
        optimiser, losses = make([p for p in flow.parameters() if p.ndim > 1]), []

        def outputs():
            bound = flow.bind(Cloud(x))
            return integrate(bound, bound.initial(), (0.0, 1.0), Euler(), Fixed(3), Direct()).x

        for number in range(21):
            optimiser.zero_grad()
            loss = F.mse_loss(outputs(), target)
            loss.backward()
            if isinstance(optimiser, KFAC):
                optimiser.observe(outputs, Gaussian(), draws=4, generator=torch.Generator().manual_seed(number))
            optimiser.step()
            losses.append(float(loss.detach()))
        return losses

    ours = train(lambda p: KFAC(p, damping=1e-2))
    theirs = min(train(lambda p, lr=lr: torch.optim.AdamW(p, lr=lr))[-1] for lr in (1e-2, 3e-2, 1e-1))
    assert ours[-1] < 0.3 * ours[0] and ours[-1] < theirs


@pytest.mark.parametrize("kernel", [Dense(), Spectral(Axis(4, 2), Cosine(2))], ids=lambda k: type(k).__name__)
def test_continuous_heads_are_served_head_by_head(kernel, unchecked):
    """b is phi(h_k) (x) N(z) for each head: inputs, cotangents and modes against those of the heads' own maps."""
    torch.manual_seed(3)
    f = Attention(4, 2, biased=False, head_masses=True, kernel=kernel)
    field = ContinuousHeads(f.spec(8), over_h=Legendre(2), over_z=BSpline(3, 2)).double()
    outputs = one_evaluation(Flow([Part(f, field)]), inputs(5, 8).view(1, 5, 8))
    parameters = {n: p for n, p in field.coefficients.items() if n in "qkvo"}
    optimiser = KFAC(list(parameters.items()), space=FlatSpace(2) if kernel == Dense() else SpectralSpace())
    optimiser.observe(outputs, Gaussian(), draws=20, generator=torch.Generator().manual_seed(0))
    nodes, _ = GaussLegendre().nodes(4)
    b = torch.einsum("ka,b->kab", Legendre(2).evaluate(nodes), BSpline(3, 2).evaluate(0.0)).flatten(1)
    factors = {name: optimiser.state[p] for name, p in parameters.items()}
    for held in factors.values():
        torch.testing.assert_close(held["M"], b.mT @ b / 4, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(factors["q"]["A"], factors["v"]["A"], rtol=1e-12, atol=1e-12)  # they read one state
    if kernel == Dense():
        torch.testing.assert_close(factors["q"]["A"], inputs(5, 8).T @ inputs(5, 8) / 5, rtol=1e-10, atol=1e-12)
    loss = F.mse_loss(outputs(), torch.zeros(1, 5, 8, dtype=DTYPE))
    loss.backward()
    optimiser.step()
    assert float(F.mse_loss(outputs(), torch.zeros(1, 5, 8, dtype=DTYPE)).detach()) < 0.9 * float(loss.detach())


def test_weights_that_are_not_linear_in_their_parameters_are_refused():
    """Divided by their spectral norm, say; and one that is used as it is and transposed."""
    f = SpectrallyNormed(FeedForward(5, biased=False), limit=0.1)
    flow = Flow([Part(f, Expansion(f.spec(4), Cosine(3)))]).double()
    outputs = one_evaluation(flow, inputs(3, 4).view(1, 3, 4))
    with pytest.raises(ValueError, match=r"parts\.0\.field\.coefficients\.w1 = .*met in no linear map"):
        KFAC(list(flow.named_parameters())).observe(outputs, Gaussian())
    w = nn.Parameter(inputs(2, 3))
    for tied in (lambda: F.linear(F.linear(inputs(4), w), w.T), lambda: F.linear(F.linear(inputs(4, 2), w.T), w)):
        with pytest.raises(ValueError, match=r"parameter 0 = .*no linear part"):
            KFAC([w]).observe(tied, Gaussian())


def test_an_update_without_curvature_is_refused():
    layer = linear()
    layer(inputs()).square().mean().backward()
    with pytest.raises(ValueError, match="observe"):
        KFAC([layer.weight]).step()
    with pytest.raises(ValueError, match="damping = 0"):
        KFAC([layer.weight], damping=0.0)


def test_inputs_by_keyword_and_single_inputs_are_met():
    """As the same rows in one batch, by position."""
    x, w = inputs(4), nn.Parameter(inputs(2, 3))
    factors = []
    for outputs in (
        lambda: F.linear(x, w),
        lambda: F.linear(input=x, weight=w),
        lambda: F.linear(x, weight=w, bias=None),
        lambda: torch.stack([F.linear(row, w) for row in x]),
    ):
        optimiser = KFAC([w])
        optimiser.observe(outputs, Gaussian(), generator=torch.Generator().manual_seed(0))
        factors.append((optimiser.state[w]["A"], optimiser.state[w]["B"]))
    for a, b in factors[1:]:
        torch.testing.assert_close(a, factors[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(b, factors[0][1], rtol=1e-12, atol=1e-12)


def test_a_vector_as_the_weight_of_a_map_is_refused():
    w = nn.Parameter(inputs(1, 3)[0])
    with pytest.raises(ValueError, match="no linear map"):
        KFAC([w], space=FlatSpace(1)).observe(lambda: F.linear(inputs(4), w), Gaussian())


@pytest.mark.parametrize("gradient", [Checkpointed(), Backsolve()], ids=lambda g: type(g).__name__)
def test_gradients_that_keep_no_graph_are_named_with_their_cure(gradient, unchecked):
    operator = FeedForward(5)
    flow = Flow([Part(operator, Constant(operator.spec(3)))]).double()
    bound = flow.bind(Cloud(inputs(4).view(2, 2, 3)))

    def outputs():
        return integrate(bound, bound.initial(), (0.0, 1e-3), Euler(), Fixed(2), gradient).x

    with pytest.raises(ValueError, match=r"Checkpointed.*gradient=Direct\(\)"):
        KFAC([p for p in flow.parameters() if p.ndim == 2]).observe(outputs, Gaussian())
