"""`Backsolve`: the adjoint of the ODE, how far it is to be trusted, and what it refuses."""

import warnings

import pytest
import torch

from continua import ReconstructionWarning
from continua.solve import (
    RK4,
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    Fixed,
    PerSequence,
    State,
    Tsitouras,
    integrate,
)
from gradients import AT, assert_same, gradients_of, loss_of, solved
from problems import JUMPING, Inputs, Written, attention_flow, energy, rotation, twisting
from registries import all_methods


@pytest.mark.parametrize("field", ["layers", "smooth"])
def test_backsolve_is_the_gradient_of_a_flow_that_does_not_contract(field, unchecked):
    """Dropout, a running cost, masses and a trajectory included."""
    flow, inputs = attention_flow(field, dropout=0.3), Inputs.drawn()
    controller, stepper = Adaptive(1e-10, 1e-10), Tsitouras()
    direct = gradients_of(solved(flow, inputs, Direct(), controller, stepper, AT), flow, inputs)
    solution = solved(flow, inputs, Backsolve(), controller, stepper, AT)
    assert_same(gradients_of(solution, flow, inputs), direct, atol=1e-7)
    assert solution.stats.reconstruction_error < 1e-8
    assert solution.stats.backward_evaluations > solution.stats.evaluations / 2
    assert solution.stats.segments == 0


@pytest.mark.parametrize("stepper", [m for m in all_methods if m.reversible], ids=repr)
def test_on_a_grid_it_converges_with_the_order_of_the_method(stepper):
    """The exact gradient of |x(1)|^2 w.r.t. the start of a rotation is 2 x(0), jump or not."""
    problem = twisting(JUMPING, speed=0.5)
    errors = []
    for steps in (20, 40):
        start = problem.start.clone().requires_grad_(True)
        solution = integrate(problem.bound(), State(start), (0.0, 1.0), stepper, Fixed(steps), Backsolve(trust=1.0))
        (found,) = torch.autograd.grad(solution.x.square().sum(), start)
        errors.append((found - 2 * start).abs().max().item())
    assert errors[1] < 1.5 * errors[0] / 2**stepper.order


def test_trajectories_and_costs_join_on_the_way_back():
    """J = sum_k <c, x(z_k)> + int |x'|^2 for a rotation by z: dJ/dx(0) = sum_k R(z_k)^T c + 2 x(0)."""
    problem, save_at = rotation(), (0.0, 0.4, 1.0)
    start = problem.start.clone().requires_grad_(True)
    bound = Written(*problem.bound().velocities, rates=[energy])
    state = State(start, (torch.zeros(2, dtype=torch.float64),))
    solution = integrate(
        bound, state, (0.0, 1.0), controller=Adaptive(1e-11, 1e-11), gradient=Backsolve(), save_at=save_at
    )
    (found,) = torch.autograd.grad(solution.xs[..., 0].sum() + solution.costs[0].sum(), start)
    angles = torch.tensor(save_at, dtype=torch.float64)
    expected = torch.stack([torch.cos(angles).sum(), -torch.sin(angles).sum()]) + 2 * start.detach()
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-8)


def test_a_velocity_that_depends_on_nothing_has_a_gradient():
    start = rotation().start.clone().requires_grad_(True)
    bound = Written(lambda z, x, _: torch.ones_like(x).detach())
    solution = integrate(bound, State(start), (0.0, 1.0), gradient=Backsolve())
    (found,) = torch.autograd.grad(solution.x.sum(), start)
    torch.testing.assert_close(found, torch.ones_like(start))


def test_costs_in_the_norm_stay_with_the_forward_solve():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    solution = solved(flow, inputs, Backsolve(), Adaptive(1e-4, 1e-4, costs=True))
    assert all(torch.isfinite(g).all() for g in gradients_of(solution, flow, inputs))


# --- trust


def contracting(controller, **settings):
    start = rotation().start.clone().requires_grad_(True)
    bound = Written(lambda z, x, _: -30.0 * x)
    solution = integrate(bound, State(start), (0.0, 1.0), controller=controller, gradient=Backsolve(**settings))
    return solution, solution.x.sum()


@pytest.mark.parametrize("controller", [Adaptive(1e-6, 1e-6), Fixed(20)], ids=repr)
def test_a_contracting_flow_is_not_trusted(controller):
    solution, loss = contracting(controller)
    assert solution.stats.reconstruction_error is None
    with pytest.warns(ReconstructionWarning, match=r"missed the start.*not to be trusted.*Checkpointed\(\)"):
        loss.backward()
    assert solution.stats.reconstruction_error > 1e-3
    assert f"reconstruction error {solution.stats.reconstruction_error:.1e}" in str(solution.stats)


def test_trust_is_a_setting():
    _, loss = contracting(Fixed(100), trust=1e12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.backward()


def test_the_reconstruction_error_is_relative_unless_the_start_is_zero():
    start = torch.zeros(1, 2, 3, dtype=torch.float32, requires_grad=True)
    solution = integrate(Written(lambda z, x, _: torch.cos(x)), State(start), (0.0, 1.0), gradient=Backsolve())
    solution.x.sum().backward()
    assert solution.stats.reconstruction_error < 1e-2


# --- clipping


def test_clip_bounds_the_growth_of_the_costate():
    """x' = 3 x: the costate grows like e^{3z} backwards, clipped only by 3 z clip."""
    start = torch.ones(2, 1, 1, dtype=torch.float64, requires_grad=True)
    clip, end = 0.5, torch.tensor([2.0, 0.1], dtype=torch.float64).view(2, 1, 1)
    settings = {"controller": Adaptive(1e-10, 1e-10), "gradient": Backsolve(clip=clip)}
    solution = integrate(Written(lambda z, x, _: 3.0 * x), State(start), (0.0, 1.0), **settings)
    (found,) = torch.autograd.grad((end * solution.x).sum(), start)
    assert found[0].item() == pytest.approx(2.0 + 3.0 * clip, rel=1e-8)  # above the clip from the start
    reached = torch.log(torch.tensor(clip / 0.1)).item() / 3.0  # where the second reaches it
    assert found[1].item() == pytest.approx(clip + 3.0 * clip * (1.0 - reached), rel=1e-5)


def test_a_clip_that_is_never_reached_changes_nothing():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    free, clipped = (
        gradients_of(solved(flow, inputs, Backsolve(clip=clip), Adaptive()), flow, inputs) for clip in (None, 1e6)
    )
    assert_same(clipped, free, atol=0.0)


# --- refusals


@pytest.mark.parametrize("stepper", [m for m in all_methods if not m.reversible], ids=repr)
def test_splitting_and_projection_are_refused(stepper):
    with pytest.raises(ValueError, match=r"stepper = .*Backsolve retraces an ODE.*Checkpointed\(\)"):
        integrate(rotation().bound(), rotation().state, (0.0, 1.0), stepper, Fixed(2), Backsolve())


def test_steps_of_their_own_are_refused():
    with pytest.raises(ValueError, match=r"controller = PerSequence.*one grid for all sequences.*Checkpointed\(\)"):
        integrate(rotation().bound(), rotation().state, (0.0, 1.0), controller=PerSequence(), gradient=Backsolve())


@pytest.mark.parametrize("settings", [{"trust": 0.0}, {"clip": -1.0}, {"clip": float("nan")}])
def test_bounds_are_positive(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"{name} = .*must be positive.*Pass {name} > 0"):
        Backsolve(**settings)


def test_second_derivatives_are_refused():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    solution = solved(flow, inputs, Backsolve(), Fixed(1))
    with pytest.raises(RuntimeError, match=r"Backsolve gives first derivatives only.*second_derivatives=True"):
        torch.autograd.grad(loss_of(solution), [inputs.points], create_graph=True)


def test_a_parameter_changed_in_place_is_noticed():
    flow, inputs = attention_flow("constant"), Inputs.drawn()
    solution = solved(flow, inputs, Backsolve(), Fixed(1))
    with torch.no_grad():
        next(flow.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss_of(solution).backward()


def test_agrees_with_checkpointed_in_single_precision():
    problem = twisting(speed=0.5)
    velocity = problem.bound().velocities[0]
    found = []
    for gradient in (Checkpointed(), Backsolve()):
        start = problem.start.float().requires_grad_(True)
        bound = Written(lambda z, x, inside: velocity(z, x, inside).float())
        points = integrate(bound, State(start), (0.0, 1.0), RK4(), Fixed(40), gradient).x
        found.append(torch.autograd.grad(points.sin().sum(), start))
    assert_same(found[1], found[0], atol=1e-5)
