"""Failures are clear errors with the depth and advice; wrong arguments are named with their value and a cure."""

import dataclasses
import math

import pytest
import torch

import continua
from continua import SolveError
from continua.solve import (
    RK4,
    Adaptive,
    BogackiShampine,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    LieTrotter,
    Midpoint,
    PerSequence,
    Projected,
    State,
    TorchdiffeqSolver,
    integrate,
)
from continua.spaces import Sphere
from gradients import solved
from problems import Inputs, Written, attention_flow, blow_up, rotation, twisting

adaptive = pytest.mark.parametrize("controller", [Adaptive(), PerSequence()], ids=repr)


# --- solves that cannot be finished


@adaptive
@pytest.mark.parametrize("stepper", [BogackiShampine(), DormandPrince()], ids=repr)
def test_a_state_that_blows_up_is_stopped_there(controller, stepper):
    """x' = x^2 from 2 is infinite at 0.5."""
    problem = blow_up()
    with pytest.raises(SolveError, match=r"stopped at depth z = 0\.5.*diverge") as failure:
        integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, controller)
    assert failure.value.depth == pytest.approx(0.5, abs=1e-3)
    assert failure.value.reason and failure.value.advice


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
def test_a_grid_does_not_pass_on_what_is_not_finite(gradient):
    """It steps over the pole and grows until it overflows: 2^(2^n)."""
    problem = blow_up()
    with pytest.raises(SolveError, match=r"sequence 0, token 2 is no longer finite.*Take more steps") as failure:
        integrate(problem.bound(), problem.state, (0.0, 1.0), RK4(), Fixed(20), gradient)
    assert 0.5 <= failure.value.depth <= 0.8


@pytest.mark.parametrize("controller", [Adaptive(), PerSequence(), Fixed(3)], ids=repr)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_weights_that_are_not_finite_are_noticed_at_the_start(controller, value):
    flow, inputs = attention_flow("smooth"), Inputs.drawn(asking=False)
    with torch.no_grad():
        next(flow.parts[1].parameters()).view(-1)[0] = value  # torch's fused attention would turn nan into 0
        with pytest.raises(SolveError, match="finite") as failure:
            solved(flow.eval(), inputs, Direct(), controller)
    assert failure.value.depth == 0.0


@adaptive
def test_a_velocity_that_breaks_on_the_way_is_stopped_there(controller):
    """sqrt(0.7 - z) has no value beyond 0.7."""
    bound = Written(lambda z, x, _: torch.sqrt(0.7 - torch.as_tensor(z, dtype=torch.float64)).view(-1, 1, 1) * x)
    with pytest.raises(SolveError, match="not finite however short the step") as failure:
        integrate(bound, rotation().state, (0.0, 1.0), controller=controller)
    assert failure.value.depth == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("controller", [Adaptive(), PerSequence(), Fixed(10)], ids=repr)
def test_a_cost_that_is_not_finite_is_not_passed_on(controller):
    """The tokens are at rest; the cost 1 / (0.6 - z) has a pole, and no value beyond it."""
    pole = lambda z, x, v: torch.log(0.6 - torch.as_tensor(z, dtype=torch.float64)).expand(2)  # noqa: E731
    bound = Written(lambda z, x, _: 0.0 * x, rates=[pole])
    state = State(rotation().start, (torch.zeros(2, dtype=torch.float64),))
    with pytest.raises(SolveError) as failure:
        integrate(bound, state, (0.0, 1.0), controller=controller)
    assert failure.value.depth == pytest.approx(0.6, abs=0.11)


def test_absent_tokens_may_break():
    """A token of zero mass grows beyond all bounds; nobody hears it."""
    weights = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    start = torch.tensor([0.5, 1.0, 1e200], dtype=torch.float64).view(1, 3, 1)
    bound = Written(lambda z, x, _: torch.cat([-x[:, :2], x[:, 2:] ** 2], 1), weights=weights)
    for controller in (Fixed(3), Adaptive(), PerSequence()):
        points = integrate(
            bound, State(start), (0.0, 1.0), RK4() if isinstance(controller, Fixed) else DormandPrince(), controller
        ).x
        assert torch.isfinite(points[:, :2]).all()


@adaptive
def test_the_step_limit(controller):
    problem = twisting(speed=2.0)
    needed = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=controller)
    with pytest.raises(SolveError, match=r"max_steps = 3 (steps|rounds) were tried.*\(max_steps=6\)") as failure:
        integrate(problem.bound(), problem.state, (0.0, 1.0), controller=dataclasses.replace(controller, max_steps=3))
    assert 0.0 < failure.value.depth < 1.0
    if isinstance(controller, Adaptive):
        exactly = dataclasses.replace(controller, max_steps=needed.stats.accepted + needed.stats.rejected)
        integrate(problem.bound(), problem.state, (0.0, 1.0), controller=exactly)  # the last one may be the last


def test_a_step_that_underflows():
    """A velocity that jumps where no break is told of, with an amplitude no step is short enough for."""
    bound = Written(lambda z, x, _: (1e15 if z > 0.4 else 0.0) * torch.ones_like(x))
    with pytest.raises(SolveError, match=r"step underflowed.*may be stiff.*larger rtol=") as failure:
        integrate(bound, rotation().state, (0.0, 1.0), controller=Adaptive(1e-6, 1e-6))
    assert failure.value.depth == pytest.approx(0.4, abs=1e-6)


@adaptive
def test_a_probe_that_goes_too_far_does_not_stop_the_solve(controller):
    """The first step is found from a probe; where that leaves the domain, a shorter one is tried."""
    bound = Written(lambda z, x, _: torch.where(x < 1.001, 1.0 - 2000.0 * (x - 1.0), torch.inf))
    state = State(torch.ones(1, 1, 1, dtype=torch.float64))
    points = integrate(bound, state, (0.0, 0.01), controller=controller).x
    torch.testing.assert_close(points, state.x + (1 - math.exp(-20)) / 2000, rtol=0.0, atol=1e-4)


# --- wrong arguments


def refused(match: str, span=(0.0, 1.0), **settings):
    problem = rotation()
    settings.setdefault("x0", problem.state)
    with pytest.raises(ValueError, match=match):
        integrate(problem.bound(), span=span, **settings)


def test_span_is_not_empty():
    refused(r"span = \(0\.5, 0\.5\): the span is empty.*start, end", span=(0.5, 0.5))


def test_a_span_may_run_backwards():
    """There and back again: the inverse of a rotation."""
    problem = rotation()
    for controller in (Fixed(20), Adaptive(1e-9, 1e-9), PerSequence(1e-9, 1e-9)):
        there = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=controller)
        back = integrate(problem.bound(), State(there.x), (1.0, 0.0), controller=controller)
        torch.testing.assert_close(back.x, problem.start, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("span", [(0.0, math.inf), (math.nan, 1.0)])
def test_span_is_finite(span):
    refused(r"span = .*must be finite.*Pass span=\(0\.0, depth\)", span=span)


@pytest.mark.parametrize("save_at", [(0.5, 0.2), (0.2, 0.2), (0.1, math.nan, 0.3)])
def test_asked_depths_increase(save_at):
    refused(r"save_at = .*must increase.*sorted\(set\(save_at\)\)", save_at=save_at)


@pytest.mark.parametrize("save_at", [(-0.1, 0.5), (0.5, 1.1), (math.nan,)])
def test_asked_depths_lie_in_the_span(save_at):
    refused(r"save_at = .*outside \(0\.0, 1\.0\).*within the span", save_at=save_at)


def test_points_are_as_a_solve_needs_them(unchecked):
    start = rotation().start
    refused(r"x0 = \(2, 3\).*three axes.*\(batch, tokens, width\)", x0=State(start[..., 0]))
    refused(r"x0 = \(0, 3, 2\).*it is empty", x0=State(start[:0]))
    refused(r"x0 = torch.float16.*neither float32 nor float64.*\.to\(torch.float32\)", x0=State(start.half()))
    refused(r"x0 = torch.int64.*neither", x0=State(start.long()))
    refused(r"x0 = .*nan or inf.*zero mass", x0=State(start / 0.0))


@pytest.mark.parametrize("make", [Adaptive, PerSequence, lambda rtol, atol: TorchdiffeqSolver("dopri5", rtol, atol)])
@pytest.mark.parametrize("value", [0.0, -1e-3, math.nan, math.inf])
def test_tolerances_are_positive(make, value):
    with pytest.raises(ValueError, match=r"rtol = .*a tolerance is positive.*Pass rtol=1e-4"):
        make(value, 1e-4)
    with pytest.raises(ValueError, match=r"atol = .*a tolerance is positive.*Pass atol=1e-4"):
        make(1e-4, value)


def test_settings_of_controls_and_segments():
    for make, match in (
        (lambda: Fixed(0), r"steps = 0: .*whole number, at least 1.*steps >= 1"),
        (lambda: Adaptive(max_steps=0), r"max_steps = 0: .*max_steps >= 1"),
        (lambda: PerSequence(max_steps=0), r"max_steps = 0: .*max_steps >= 1"),
        (lambda: Adaptive(first=0.0), r"first = 0\.0: .*first > 0"),
        (lambda: Given((0.0,)), r"depths = \(0\.0,\): this is no grid.*strictly increasing"),
        (lambda: Given((0.0, 0.5, 0.5, 1.0)), r"depths = .*this is no grid"),
        (lambda: Given((0.0, math.nan, 1.0)), r"depths = .*this is no grid"),
        (lambda: Checkpointed(segment=0.0), r"segment = 0\.0: .*0 < segment <= 1"),
        (lambda: Checkpointed(steps=0), r"steps = 0: .*steps >= 1"),
        (lambda: Checkpointed(refine=0), r"refine = 0: .*refine >= 1"),
        (lambda: Projected(Projected(Euler(), Sphere()), Sphere()), r"sub = Projected.*Pass the bare stepper"),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_a_grid_reaches_from_end_to_end():
    for depths in ((0.0, 0.5), (0.1, 1.0)):
        refused(r"depths = .*does not reach from 0\.0 to 1\.0.*Begin and end", controller=Given(depths))


@pytest.mark.parametrize(
    "stepper", [Euler(), Midpoint(), RK4(), LieTrotter(), Projected(DormandPrince(), Sphere())], ids=repr
)
@pytest.mark.parametrize("controller", [Adaptive(), PerSequence()], ids=repr)
def test_a_method_without_an_error_estimate_cannot_adapt(stepper, controller):
    name = type(controller).__name__
    refused(
        rf"stepper = .*no error estimate.*DormandPrince\(\).*Fixed\(8\) instead of {name}",
        stepper=stepper,
        controller=controller,
    )


def test_a_solution_is_no_array_of_states():
    solution = continua.integrate(lambda z, x: -x, torch.ones(2), (0.0, 1.0))
    with pytest.raises(ValueError, match=r"solution\[\.\.\.\] = -1: .*solution\.x at the end, or solution\.xs"):
        solution[-1]
    assert torch.equal(next(iter(solution)), solution.x)
