"""`Direct` and `Checkpointed` are the gradient of the discrete solve, on every grid, by every stepper."""

import itertools

import pytest
import torch

from continua.solve import (
    RK4,
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Fixed,
    Given,
    PerSequence,
    Projected,
    State,
    Tsitouras,
    integrate,
)
from continua.spaces import Sphere
from gradients import AT, assert_same, gradients_of, loss_of, solved
from problems import Inputs, Written, attention_flow, rotation, spinning
from registries import all_controls, all_methods

segments = pytest.mark.parametrize("gradient", [Checkpointed(), Checkpointed(segment=0.6, steps=3)], ids=repr)


def pair(flow, inputs, controller, gradient, stepper=DormandPrince(), save_at=()):
    """Gradients by `Direct` and by another strategy, and the statistics of the latter."""
    direct = gradients_of(solved(flow, inputs, Direct(), controller, stepper, save_at), flow, inputs)
    solution = solved(flow, inputs, gradient, controller, stepper, save_at)
    return direct, gradients_of(solution, flow, inputs), solution.stats


@pytest.mark.parametrize("controller", all_controls, ids=repr)
@pytest.mark.parametrize("field", ["constant", "layers", "smooth"])
@segments
def test_checkpointed_is_direct(controller, field, gradient, unchecked):
    """With dropout, cross-attention to an encoder's tokens, masses, a running cost and a trajectory."""
    own = isinstance(controller, PerSequence)
    flow, inputs = attention_flow(field, dropout=0.3, cross=True), Inputs.drawn(encoded=True)
    flow.train(not (own and field == "layers"))  # masks of layers need one depth for all sequences
    direct, replayed, stats = pair(flow, inputs, controller, gradient, save_at=() if own else AT)
    names = [*("points", "mass", "encoded"), *(name for name, _ in flow.named_parameters())]
    silent = [name for name, g in zip(names, direct, strict=True) if g.abs().max() < 1e-6]
    assert all(name.endswith("bk") for name in silent), "a gradient that is zero shows nothing"  # softmax drops b_k
    assert_same(replayed, direct, atol=1e-12)
    assert stats.backward_evaluations > 0
    assert stats.segments <= stats.accepted


@pytest.mark.parametrize("stepper", all_methods, ids=repr)
def test_checkpointed_is_direct_for_every_method(stepper, unchecked):
    flow, inputs = attention_flow("layers", dropout=0.3), Inputs.drawn()
    save_at = (0.2, 0.3, 1.0)
    direct, replayed, _ = pair(flow, inputs, Fixed(3), Checkpointed(segment=1.0, steps=2), stepper, save_at)
    assert_same(replayed, direct, atol=1e-12)
    if stepper.error_order is not None:
        for controller in (Adaptive(1e-4, 1e-4), PerSequence(1e-4, 1e-4)):
            direct, replayed, _ = pair(flow.eval(), inputs, controller, Checkpointed(), stepper)
            assert_same(replayed, direct, atol=1e-12)


# --- against finite differences


def derivative_along(direction, tensor, loss, step: float = 1e-5) -> float:
    """(J(x + h d) - J(x - h d)) / 2h."""
    kept = tensor.detach().clone()
    values = []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            tensor.copy_(kept + sign * step * direction)
            values.append(float(loss()))
        tensor.copy_(kept)
    return (values[0] - values[1]) / (2.0 * step)


@pytest.mark.parametrize("controller", [Fixed(2), Adaptive(1e-3, 1e-3)], ids=repr)
@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
def test_gradient_is_that_of_finite_differences(controller, gradient, unchecked):
    """On the recorded grid and with the same randomness: parameters, points, masses, encoded tokens."""
    flow, inputs = attention_flow("layers", dropout=0.3, cross=True), Inputs.drawn(encoded=True)
    solution = solved(flow, inputs, gradient, controller, save_at=AT)
    found = gradients_of(solution, flow, inputs)
    grid = Given(tuple(solution.stats.grid))
    generator = torch.Generator().manual_seed(11)
    for tensor, g in zip([*inputs.tensors, *flow.parameters()], found, strict=True):
        direction = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        if tensor is inputs.mass:
            direction = direction * (tensor.detach() > 0)
        along = derivative_along(direction, tensor, lambda: loss_of(solved(flow, inputs, Direct(), grid, save_at=AT)))
        assert along == pytest.approx(float((g * direction).sum()), abs=1e-6)


@pytest.mark.parametrize("stepper", all_methods, ids=repr)
def test_every_method_against_finite_differences(stepper):
    """x' = A x - sin(z) x |x|^2, in two parts, with respect to A and the start."""
    generator = torch.Generator().manual_seed(4)
    matrix = 0.5 * torch.randn(3, 3, dtype=torch.float64, generator=generator)
    start = spinning().start.clone()
    weights = torch.randn(start.shape, dtype=torch.float64, generator=generator)
    for tensor in (matrix, start):
        tensor.requires_grad_(True)

    def solve(gradient):
        linear = lambda z, x, _: x @ matrix  # noqa: E731
        cubic = lambda z, x, _: -torch.sin(torch.as_tensor(z)) * x * x.square().sum(-1, keepdim=True)  # noqa: E731
        bound = Written(linear, cubic, tensors=[matrix])
        return (weights * integrate(bound, State(start), (0.0, 1.0), stepper, Fixed(3), gradient).x).sum()

    for gradient in (Direct(), Checkpointed()):
        found = torch.autograd.grad(solve(gradient), [matrix, start])
        for tensor, g in zip((matrix, start), found, strict=True):
            direction = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
            along = derivative_along(direction, tensor, lambda: solve(Direct()))
            assert along == pytest.approx(float((g * direction).sum()), abs=1e-6)


# --- second derivatives


def test_second_derivatives_are_those_of_finite_differences(unchecked):
    """The derivative of |dJ/dx|^2, as gradient penalties need it."""
    flow, inputs = attention_flow("smooth"), Inputs.drawn()
    wanted = [inputs.points, *flow.parameters()]

    def penalty():
        solution = solved(flow, inputs, Direct(second_derivatives=True), Fixed(2))
        with torch.enable_grad():
            (g,) = torch.autograd.grad(loss_of(solution), [inputs.points], create_graph=True)
            return g.square().sum()

    def value():
        with torch.enable_grad():
            return penalty()

    found = torch.autograd.grad(penalty(), wanted)
    generator = torch.Generator().manual_seed(1)
    for tensor, g in zip(wanted, found, strict=True):
        direction = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        along = derivative_along(direction, tensor, value)
        assert along == pytest.approx(float((g * direction).sum()), rel=1e-6, abs=1e-6)


def test_checkpointed_refuses_second_derivatives():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    solution = solved(flow, inputs, Checkpointed(), Fixed(1))
    with pytest.raises(RuntimeError, match=r"Checkpointed gives first derivatives only.*second_derivatives=True"):
        torch.autograd.grad(loss_of(solution), [inputs.points], create_graph=True)


# --- what a replay may and may not do


def test_refined_replays_tend_to_the_adjoint_of_the_ode():
    """x' = A x and a linear loss: a(0) = e^{A^T} a(1), whatever grid the forward solve took."""
    matrix = torch.tensor([[0.3, 1.0], [-2.0, 0.1]], dtype=torch.float64)
    exact = torch.linalg.matrix_exp(matrix)
    errors = []
    for refine in (1, 2, 4, 8):
        start = rotation().start.clone().requires_grad_(True)
        bound = Written(lambda z, x, _: x @ matrix)
        points = integrate(bound, State(start), (0.0, 1.0), RK4(), Fixed(2), Checkpointed(refine=refine)).x
        (found,) = torch.autograd.grad(points.sum(), start)
        errors.append((found - exact.sum(1)).abs().max().item())
    ratios = [before / after for before, after in itertools.pairwise(errors)]
    assert all(12 < ratio < 20 for ratio in ratios), ratios  # of order 4


def test_refined_replays_keep_trajectories_and_costs():
    flow, inputs = attention_flow("layers"), Inputs.drawn()
    tight = gradients_of(solved(flow, inputs, Direct(), Fixed(12), RK4(), AT), flow, inputs)
    plain, refined = (
        gradients_of(solved(flow, inputs, Checkpointed(refine=r), Fixed(4), RK4(), AT), flow, inputs) for r in (1, 3)
    )
    gap = lambda found: max((g - t).abs().max().item() for g, t in zip(found, tight, strict=True))  # noqa: E731
    assert gap(refined) < gap(plain)


def test_a_parameter_changed_in_place_is_noticed():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    solution = solved(flow, inputs, Checkpointed(), Fixed(1))
    with torch.no_grad():
        next(flow.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss_of(solution).backward()


@pytest.mark.parametrize("gradient", [Checkpointed(), Backsolve()], ids=repr)
def test_a_tensor_that_a_running_cost_hides_raises(gradient):
    flow, inputs = attention_flow("constant").eval(), Inputs.drawn()
    price = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    bound = inputs.bind(flow, rates=(lambda z, x, velocity: price * velocity.square().sum((-1, -2)),))
    solution = integrate(bound, bound.initial(), (0.0, 1.0), gradient=gradient)
    with pytest.raises(ValueError, match="depends on a tensor that was not found"):
        solution.costs[0].sum().backward()


def test_segments_are_let_go_after_the_backward_pass():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    loss = loss_of(solved(flow, inputs, Checkpointed(), Fixed(1)))
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_without_gradients_no_segment_is_kept():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    with torch.no_grad():
        solution = solved(flow, inputs, Checkpointed(), Fixed(2))
    assert solution.stats.segments == 0 and not solution.x.requires_grad
    frozen = Inputs.drawn(asking=False)
    solution = solved(flow.requires_grad_(False), frozen, Checkpointed(), Fixed(2))
    assert solution.stats.segments == 0 and not solution.x.requires_grad


def test_only_what_is_asked_for_gets_a_gradient():
    flow, inputs = attention_flow("constant"), Inputs.drawn(asking=False)
    some = next(flow.requires_grad_(False).parameters()).requires_grad_(True)
    found = []
    for gradient in (Direct(), Checkpointed()):
        loss_of(solved(flow, inputs, gradient, Fixed(2))).backward()
        found.append(some.grad.clone())
        some.grad = None
    assert_same(found[1:], found[:1], atol=1e-12)
    assert all(p.grad is None for p in flow.parameters()) and inputs.points.grad is None


def test_costs_that_a_solve_starts_from_keep_their_gradient():
    problem = rotation()
    cost = torch.ones(2, dtype=torch.float64, requires_grad=True)
    bound = Written(*problem.bound().velocities, rates=[lambda z, x, v: x.sum((-1, -2))])
    solution = integrate(bound, State(problem.start, (cost,)), (0.0, 1.0), RK4(), Fixed(3), Checkpointed())
    (found,) = torch.autograd.grad(3.0 * solution.costs[0].sum(), cost)
    assert torch.equal(found, torch.full((2,), 3.0, dtype=torch.float64))


def test_the_replay_runs_under_the_autocast_of_the_solve():
    flow, inputs = attention_flow("constant").float(), Inputs.drawn()
    inputs = Inputs(inputs.points.detach().float().requires_grad_(True), inputs.mass.detach().float())
    found = []
    for gradient in (Direct(), Checkpointed()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            solution = solved(flow, inputs, gradient, Fixed(2))
        found.append(torch.autograd.grad(loss_of(solution), inputs.points)[0])
    assert torch.equal(*found)  # in full precision the replay would differ by a hundredth


# --- sequences that stand still


def test_a_refused_step_that_overflowed_leaves_no_trace(monkeypatch):
    """0 * inf = nan: what a refused try computed may not stay in the graph."""
    monkeypatch.setattr("continua.solve.controllers.first_lengths", lambda *_: ([1.0, 0.02], None))
    rate = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    found = []
    for gradient in (Direct(), Checkpointed()):
        start = torch.tensor([3.0, 0.5], dtype=torch.float64).view(2, 1, 1).requires_grad_(True)
        bound = Written(lambda z, x, _: -rate * x**5, tensors=[rate])
        solution = integrate(bound, State(start), (0.0, 1.0), controller=PerSequence(), gradient=gradient)
        assert solution.stats.rejected > 0
        found.append(torch.autograd.grad(solution.x.sum(), [start, rate]))
    assert all(torch.isfinite(g).all() for g in found[0])
    assert_same(found[1], found[0], atol=1e-12)


@pytest.mark.parametrize("sub", [DormandPrince(), Tsitouras()], ids=repr)
def test_standing_still_is_not_projected(sub, monkeypatch):
    """A token that starts off the manifold and waits for its first good step is replayed where it was."""
    monkeypatch.setattr("continua.solve.controllers.first_lengths", lambda *_: ([1.0, 0.02], None))
    problem = spinning(speed=8.0)
    found = []
    for gradient in (Direct(), Checkpointed()):
        start = (1.5 * problem.start).requires_grad_(True)
        stepper = Projected(sub, Sphere(), tangent=True)
        solution = integrate(problem.bound(), State(start), (0.0, 0.3), stepper, PerSequence(1e-5, 1e-5), gradient)
        assert solution.stats.rejected > 0
        found.append(torch.autograd.grad(solution.x.square().sum() + solution.x[..., 0].sum(), start))
    assert_same(found[1], found[0], atol=1e-12)
