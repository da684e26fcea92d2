"""The Hamiltonian: conserved where it must be, its derivatives those of J; costates and the terminal adjoint."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from continua.control import (
    Batch,
    CrossEntropy,
    FieldSize,
    JacobianFrobenius,
    KineticEnergy,
    MeanSquaredError,
    Objective,
    SuccessiveApproximations,
    free_parameters,
    pontryagin,
    trace_costates,
)
from continua.fields import Constant, Expansion, parameter_spaces
from continua.model import (
    CloudEmbedding,
    ContinuousTransformer,
    Flow,
    Layers,
    MeanReadout,
    NormReadout,
    Part,
    VectorEmbedding,
    encoder_decoder,
)
from continua.operators import Attention, Dense, FeedForward, LayerNorm, PreNorm, Unnormalised, leaves
from continua.solve import (
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    Fixed,
    PerSequence,
    Projected,
    Solver,
    State,
    Step,
    Strang,
    Tsitouras,
)
from continua.spaces import BSpline, Cloud, Legendre, Sphere
from objectives import CLASSES, WIDTH, batch_of, model_of

LOSS = CrossEntropy()
PRICED = Objective(LOSS, (KineticEnergy(), FieldSize()), (0.2, 0.01))


def plain_model(field, gradient=Checkpointed(), rtol: float = 1e-9, normed: bool = True):
    """Attention and a feed-forward behind a mean readout, on trapezoid masses, with one token absent."""
    torch.manual_seed(0)
    attention = Attention(2, 2)
    operators = [PreNorm(LayerNorm(), attention) if normed else attention, FeedForward(6)]
    parts = [Part(f, field(f.spec(WIDTH))) for f in operators]
    solver = Solver(Tsitouras(), Adaptive(rtol, rtol))
    model = ContinuousTransformer(
        VectorEmbedding(2, WIDTH), Flow(parts), MeanReadout(WIDTH, CLASSES, Unnormalised()), solver, gradient
    )
    return model.double()


def smooth(spec):
    return Expansion(spec, Legendre(3))


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed(), Backsolve()], ids=repr)
def test_an_autonomous_field_conserves_it(gradient, unchecked):
    model, batch = plain_model(Constant, gradient), batch_of(LOSS)
    report = pontryagin(model, batch, PRICED)
    assert report.autonomous and report.drift < 1e-7 and np.abs(report.hamiltonian).min() > 1e-3
    assert report.terminal_mismatch < 1e-12 and report.defect < 1e-5
    coarse = pontryagin(model.at(rtol=1e-4), batch, PRICED)
    assert 1e-9 < coarse.drift < 1e-2  # to solver tolerance, and no better


def test_a_field_that_moves_does_not(unchecked):
    report = pontryagin(plain_model(smooth), batch_of(LOSS), PRICED)
    assert not report.autonomous and report.drift > 1e-3
    assert "what a richer field would gain" in str(report) and f"{report.projected_gradient:.3e}" in str(report)
    assert report.hamiltonian.shape == (len(report.depths), 2)


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
def test_costates_are_those_of_autograd_divided_by_the_weights(gradient, unchecked):
    """At the depths of `save_at`, by solving the rest of the way anew from there."""
    model, batch, save_at = plain_model(smooth, gradient, 1e-3), batch_of(LOSS), (0.23, 0.61)
    path = trace_costates(model, batch, PRICED, save_at)
    mass = model.embedding(*batch.inputs).mass
    assert set(save_at) <= set(path.depths) and mass[1, -1] == 0.0
    for z in save_at:
        index = path.depths.index(z)
        x = path.points[index].clone().requires_grad_(True)
        cloud = path.setting.cloud
        rates = [cost.bind(path.setting, place) for place, cost in enumerate(PRICED.costs)]
        bound = model.flow.bind(cloud, rates=rates, random=False)
        state = State(x, tuple(torch.zeros(2, dtype=torch.float64) for _ in PRICED.costs))
        for start, end in zip(path.depths[index:-1], path.depths[index + 1 :], strict=True):
            state = Tsitouras().step(bound, Step(start, end - start), state).state
        loss = F.cross_entropy(model.readout(cloud.at(state.x)), batch.targets)
        total = loss + sum(w * c.mean() for w, c in zip(PRICED.coefficients, state.costs, strict=True))
        (autograd,) = torch.autograd.grad(total, x)
        expected = torch.where(mass[..., None] > 0, 2 * autograd / mass[..., None].clamp_min(1e-30), 0.0)
        torch.testing.assert_close(path.costates[index], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(path.cotangents[index], autograd, rtol=0.0, atol=1e-13)


def test_the_size_of_costates_is_their_mean_square_over_the_batch_in_l2(unchecked):
    model, batch = plain_model(smooth, rtol=1e-2), batch_of(LOSS)
    path, report = trace_costates(model, batch, PRICED), pontryagin(model, batch, PRICED)
    mass = model.embedding(*batch.inputs).mass
    squares = (mass[..., None] * path.costates.square()).sum((-1, -2))
    np.testing.assert_allclose(report.costate_norms, squares.mean(-1).sqrt().numpy(), rtol=1e-12)


def test_the_terminal_adjoint_is_the_softmax_residual(unchecked):
    """Behind logits W X: a(Z) = W^T (softmax - onehot), of norm at most sqrt(2) |W|."""
    model, batch = plain_model(smooth), batch_of(LOSS)
    path = trace_costates(model, batch, Objective(LOSS))
    W, mass = model.readout.linear.weight.detach(), model.embedding(*batch.inputs).mass
    residual = path.terms.output.softmax(-1) - F.one_hot(batch.targets, CLASSES)
    # the readout takes the mean under the masses, and so the density of its derivative has their total below it
    expected = (residual @ W / mass.sum(-1, keepdim=True))[:, None, :].expand(-1, mass.shape[1], -1)
    expected = torch.where(mass[..., None] > 0, expected, 0.0)
    for found in (path.costates[-1], path.costate(path.terminal_cotangent)):
        assert float((found - expected).abs().max()) < 1e-12 * float(expected.abs().max())
    whole = (path.cotangents[-1] * 2).sum(1)  # of the mean itself, which is what the logits read
    torch.testing.assert_close(whole, residual @ W, rtol=0.0, atol=1e-12)
    assert bool((whole.norm(dim=-1) <= math.sqrt(2) * torch.linalg.matrix_norm(W, 2)).all())


def quadrature_of_gradient(model, batch, objective, sign: float = 1.0, seen: bool = True) -> dict:
    """int (dtheta/dphi)^T d/dtheta ( <a, f> + sign sum_c lambda_c r_c ) dz by Simpson's rule on the grid.

    With the opposite sign the costate, too, obeys the wrong equation: it is that of an objective that earns its costs.
    Without `seen` the cost's own derivative by theta is left out.
    """
    priced = objective if sign > 0 else signed(objective)
    path = trace_costates(model, batch, priced)
    names = dict(model.flow.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in names.items()}
    evaluate = path.evaluator()
    if not seen:
        object.__setattr__(path, "objective", Objective(objective.loss))
        evaluate = path.evaluator()
    for i, z in enumerate(path.depths):
        weight = (1.0 if i in (0, len(path.depths) - 1) else 4.0 if i % 2 else 2.0) / (3.0 * (len(path.depths) - 1))
        by_theta = evaluate(z, path.points[i], path.cotangents[i], path.side(i)).by_parameters
        for index, part in enumerate(model.flow.parts):
            theta = part.field(z)
            theta_here = {f"parts.{index}.field.{n}": x for n, x in leaves(theta)}
            outputs = sum((by_theta[n] * x).sum() for n, x in theta_here.items())
            mine = [n for n in names if n.startswith(f"parts.{index}.")]
            for n, g in zip(mine, torch.autograd.grad(outputs, [names[n] for n in mine]), strict=True):
                total[n] += weight * g
    return total


def signed(objective: Objective) -> Objective:
    """The objective with its costs earned instead of paid, which the constructor refuses."""
    other = Objective(objective.loss, objective.costs, objective.coefficients)
    object.__setattr__(other, "coefficients", tuple(-w for w in objective.coefficients))
    return other


@pytest.mark.slow
def test_the_gradient_is_the_integral_of_its_derivative_and_the_opposite_sign_is_off(unchecked):
    """The error is that of Simpson's rule, of order four; that of the wrong signs stays."""
    objective, batch = Objective(LOSS, (KineticEnergy(),), (0.5,)), batch_of(LOSS)

    def error(steps: int, **settings) -> float:
        model = plain_model(smooth, normed=False).at(steps=steps)
        exact = trace_costates(model, batch, objective).gradients
        found = quadrature_of_gradient(model, batch, objective, **settings)
        size = sum(float(g.square().sum()) for g in exact.values()) ** 0.5
        return sum(float((found[n] - exact[n]).square().sum()) for n in exact) ** 0.5 / size

    coarse, fine = error(20), error(40)
    assert fine < coarse / 12 and fine < 1e-3
    assert error(20, sign=-1.0) > 0.1  # H = <a, f> - lambda |f|^2
    assert error(20, seen=False) > 0.05  # without d(lambda |f|^2)/dtheta


def test_fields_give_free_parameters_within_and_their_own_again_after(unchecked):
    flow = plain_model(smooth).flow
    with free_parameters(flow) as thetas:
        first, second = flow.parts[1].field(0.3), flow.parts[1].field(0.3)
        assert first.w1 is second.w1 and first.w1.is_leaf and first.w1.requires_grad
        assert "parts.1.field.w1" in thetas
    assert not flow.parts[1].field(0.3).w1.is_leaf


def test_costs_with_second_derivatives_are_reported(unchecked):
    model, batch = model_of(LOSS, rtol=0.1).eval(), batch_of(LOSS)
    objective = Objective(LOSS, (JacobianFrobenius(),), (0.1,))
    reports = [pontryagin(model, batch, objective, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert reports[0].objective == reports[1].objective and reports[0].unprojected_gradient > 0


def test_refusals(unchecked):
    model, batch = plain_model(Constant), batch_of(LOSS)
    with pytest.raises(ValueError, match="a grid of its own"):
        trace_costates(model.at(solver=Solver(Tsitouras(), PerSequence())), batch, PRICED)
    with pytest.raises(ValueError, match="tangent spaces"):
        pontryagin(model.at(solver=Solver(Projected(Tsitouras(), Sphere()), Fixed(2))), batch, PRICED)
    splitting = Solver(Strang(Projected(Tsitouras(), Sphere())), Fixed(2))
    with pytest.raises(ValueError, match="tangent spaces"):
        pontryagin(model.at(solver=splitting), batch, PRICED)
    for z in (2.0, math.nan):
        with pytest.raises(ValueError, match=rf"save_at = \({z},\)"):
            trace_costates(model, batch, PRICED, save_at=(z,))
    with pytest.raises(ValueError, match="no ContinuousTransformer"):
        trace_costates(torch.nn.Linear(1, 1), Batch((1,), None), PRICED)


@pytest.mark.parametrize(
    "ask", [trace_costates, pontryagin, SuccessiveApproximations()], ids=["trace_costates", "report", "msa"]
)
def test_what_is_no_problem_of_control_is_named(ask, unchecked):
    model, batch = plain_model(Constant), batch_of(LOSS)
    both, _, _ = translator()
    for arguments, named in (
        ((both, batch, PRICED), "model = 'EncoderDecoder'.*its decoder with encoded="),
        ((model, (batch.inputs, batch.targets), PRICED), "batch = 'tuple': this is no Batch"),
        ((model, batch, LOSS), "objective = 'CrossEntropy': this is no Objective"),
    ):
        with pytest.raises(ValueError, match=named):
            ask(*arguments)


def test_a_depth_that_is_named_twice_is_there_once(unchecked):
    path = trace_costates(
        plain_model(Constant, rtol=1e-2), batch_of(LOSS), PRICED, save_at=(0.3, 0.3, 0.3 + 1e-15, 0.0)
    )
    assert sum(abs(z - 0.3) < 1e-9 for z in path.depths) == 1 and path.depths[0] == 0.0


def translator():
    """An encoder-decoder in float64, a source and a target."""
    torch.manual_seed(0)
    both = (Layers(1, 4, 2, 8), Layers(1, 4, 2, 8))
    model = encoder_decoder(both, (CloudEmbedding(4), CloudEmbedding(4)), NormReadout(4)).double().eval()
    source, target = (Cloud(torch.randn(2, tokens, 4, dtype=torch.float64)) for tokens in (3, 2))
    return model, source, target


def test_a_decoder_is_reported_on_what_it_reads(unchecked):
    model, source, target = translator()
    targets, objective = torch.zeros(2, 2, 4, dtype=torch.float64), Objective(MeanSquaredError())
    encoded = model.encode(source)
    whole = objective(model, Batch(((source,), (target,)), targets))
    whole.total.backward()
    path = trace_costates(model.decoder, Batch((target,), targets), objective, encoded=encoded)
    assert float(path.terms.total) == pytest.approx(whole.total.item(), rel=1e-12)
    for name, p in model.decoder.flow.named_parameters():
        torch.testing.assert_close(path.gradients[name], p.grad, rtol=1e-9, atol=1e-12)
    report = pontryagin(model.decoder, Batch((target,), targets), objective, encoded=encoded)
    assert report.objective == pytest.approx(whole.total.item(), rel=1e-12) and report.terminal_mismatch < 1e-12
    rule = SuccessiveApproximations(iterations=2, inner=3)
    found = rule(model.decoder, Batch((target,), targets), objective, encoded=encoded)
    assert found.values[0] == pytest.approx(whole.total.item(), rel=1e-12)
    assert objective(model, Batch(((source,), (target,)), targets)).total.item() == pytest.approx(min(found.values))
    assert min(found.values) < found.values[0]


def within_spaces(flow: Flow) -> ContinuousTransformer:
    """A model whose parameters are in their spaces to double precision."""
    model = ContinuousTransformer(VectorEmbedding(2, WIDTH), flow, MeanReadout(WIDTH, CLASSES)).double()
    spaces = parameter_spaces(flow)
    with torch.no_grad():
        for name, p in flow.named_parameters():
            p.copy_(spaces[name].project(p + 0.1 * torch.rand_like(p)))
    return model.at(steps=2)


@pytest.mark.parametrize("field", [Constant, lambda spec: Expansion(spec, BSpline(3, 1))], ids=["constant", "splines"])
def test_gradients_by_masses_are_those_along_the_simplex(field, unchecked):
    """A constant added to the gradient of masses moves nothing: in the mean under p it is zero.

    By the logits that a field holds, p times that, whose sum is zero.
    """
    torch.manual_seed(0)
    operator = Attention(3, 2, head_masses=True)
    flow = Flow([Part(operator, field(operator.spec(WIDTH)))])
    path = trace_costates(within_spaces(flow), batch_of(LOSS), Objective(LOSS))
    (name,) = [n for n, _ in flow.named_parameters() if n.split(".")[-1] == "p"]
    g = path.gradients[name]
    assert float(g.abs().max()) > 1e-6 and float(g.sum(-1).abs().max()) < 1e-15
    g, p = by_parameters_at_start(path)["parts.0.field.p"], flow.parts[0].field(0.0).p.detach()
    assert float(g.abs().max()) > 1e-6 and float((p * g).sum(-1).abs().max()) < 1e-15


def by_parameters_at_start(path):
    return path.evaluator()(0.0, path.points[0], path.cotangents[0], path.side(0)).by_parameters


def orthonormal_model() -> ContinuousTransformer:
    torch.manual_seed(0)
    operator = FeedForward(WIDTH, kernel=Dense(orthonormal=True))
    flow = Flow([Part(operator, Constant(operator.spec(WIDTH)))])
    return within_spaces(flow)


def test_gradients_by_orthonormal_kernels_are_tangent(unchecked):
    model = orthonormal_model()
    path = trace_costates(model, batch_of(LOSS), Objective(LOSS))
    at_start = by_parameters_at_start(path)
    for name in ("w1", "w2"):
        U = model.flow.parts[0].field.values[name].detach()
        for g in (path.gradients[f"parts.0.field.values.{name}"], at_start[f"parts.0.field.{name}"]):
            turned = U.mT @ g
            assert float(g.norm()) > 1e-6 and float((turned + turned.mT).abs().max()) < 1e-14


def test_successive_approximations_refuse_parameters_on_a_manifold_by_name(unchecked):
    with pytest.raises(ValueError, match=r"model\.flow\.parts\.0\.field\.\w+\.w1 = .*L-BFGS would leave"):
        SuccessiveApproximations()(orthonormal_model(), batch_of(LOSS), Objective(LOSS))
