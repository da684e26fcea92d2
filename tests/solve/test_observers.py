"""Observers see both solves and change nothing."""

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
    Observer,
    PerSequence,
    State,
    Tsitouras,
    integrate,
)
from gradients import AT, assert_same, gradients_of, loss_of, solved
from problems import Inputs, attention_flow, energy, rotation
from registries import all_controls, all_gradients


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple] = []
        self.costates: list[tuple] = []
        self.observer = Observer(
            step=lambda z, dz, state: self.steps.append((z, dz, state)),
            cotangent=lambda z, points, a: self.costates.append((z, points, a)),
        )


@pytest.mark.parametrize("controller", all_controls, ids=repr)
@pytest.mark.parametrize("gradient", all_gradients, ids=repr)
def test_observers_see_every_accepted_step_detached(controller, gradient, unchecked):
    if isinstance(gradient, Backsolve) and isinstance(controller, PerSequence):
        pytest.skip("refused: Backsolve needs one grid")
    flow, inputs, notes = attention_flow("smooth"), Inputs.drawn(), Notes()
    watched = solved(flow, inputs, gradient, controller, observers=[notes.observer])
    alone = solved(flow, inputs, gradient, controller)
    assert torch.equal(watched.x, alone.x)
    assert not any(x.requires_grad for _, _, state in notes.steps for x in (state.x, *state.costs))
    assert torch.equal(notes.steps[-1][2].x, watched.x)
    if watched.stats.grid:
        grid = watched.stats.grid
        assert [z for z, _, _ in notes.steps] == grid[:-1]
        assert [z + dz for z, dz, _ in notes.steps] == pytest.approx(grid[1:])
        assert len(notes.steps) == watched.stats.accepted


def costates(flow, inputs, gradient, controller, stepper=DormandPrince(), save_at=()):
    notes = Notes()
    solution = solved(flow, inputs, gradient, controller, stepper, save_at, [notes.observer])
    found = gradients_of(solution, flow, inputs)
    return notes.costates, found


@pytest.mark.parametrize("controller", all_controls, ids=repr)
@pytest.mark.parametrize("gradient", [Checkpointed(), Checkpointed(segment=1.0, steps=3)], ids=repr)
def test_costates_of_direct_and_checkpointed_agree(controller, gradient, unchecked):
    own = isinstance(controller, PerSequence)
    flow, inputs, save_at = attention_flow("layers").eval(), Inputs.drawn(), () if own else AT
    direct, plain = costates(flow, inputs, Direct(), controller, save_at=save_at)
    replayed, watched = costates(flow, inputs, gradient, controller, save_at=save_at)
    assert_same(watched, plain, atol=1e-12)
    for (z, points, a), (other, x, b) in zip(replayed, direct, strict=True):
        assert torch.equal(torch.as_tensor(z), torch.as_tensor(other))
        assert_same((points, a), (x, b), atol=1e-12)
    if not own:
        depths = [z for z, _, _ in direct]
        assert depths == sorted(depths, reverse=True) and (depths[0], depths[-1]) == (1.0, 0.0)


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed(), Checkpointed(segment=1.0, steps=3)], ids=repr)
def test_a_costate_is_the_derivative_of_the_loss(gradient, unchecked):
    """dJ/dx(z) by solving the rest of the way anew from x(z); J sees the trajectory at 0.3 and at the end."""
    flow, inputs, grid = attention_flow("layers").eval(), Inputs.drawn(), (0.0, 0.15, 0.3, 0.6, 1.0)
    found, _ = costates(flow, inputs, gradient, Given(grid), RK4(), save_at=(0.3, 1.0))
    assert [z for z, _, _ in found] == list(grid[::-1])
    for z, points, a in found[1:]:
        x = points.clone().requires_grad_(True)
        bound, rest = inputs.bind(flow, rates=(energy,)), tuple(d for d in grid if d >= z)
        state = State(x, (torch.zeros(2, dtype=torch.float64),))
        solution = integrate(bound, state, (z, 1.0), RK4(), Given(rest), Direct(), save_at=rest)
        early = solution.xs[rest.index(0.3)].sin().mean() if z <= 0.3 else 0.0
        loss = solution.x.square().mean() + 0.1 * solution.costs[0].sum()
        loss = loss + (early + 2.0 * solution.x.sin().mean()) / 2
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], a, rtol=0.0, atol=1e-12)


def test_costates_of_backsolve_agree_to_its_tolerance(unchecked):
    flow, inputs = attention_flow("layers").eval(), Inputs.drawn()
    controller, save_at = Adaptive(1e-9, 1e-9), (0.0, 0.3, 0.5, 1.0)
    found, _ = costates(flow, inputs, Backsolve(), controller, Tsitouras(), save_at)
    depths = [z for z, _, _ in found]
    assert depths == sorted(depths, reverse=True) and (depths[0], depths[-1]) == (1.0, 0.0)
    assert set(save_at) <= set(depths) and len(set(depths)) == len(depths)
    # the discrete adjoint on a grid that holds all those depths
    grid = Given(tuple(depths[::-1]))
    exact, _ = costates(flow, inputs, Checkpointed(), grid, Tsitouras(), save_at)
    for (z, points, a), (other, x, b) in zip(found, exact, strict=True):
        assert z == pytest.approx(other, abs=1e-12)
        assert_same((points, a), (x, b), atol=1e-7)


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed()], ids=repr)
def test_what_else_the_loss_does_with_the_start_is_no_costate(gradient):
    """The costate is that of the solve, also where the caller uses its tensor once more, and on a second solve."""
    problem, notes = rotation(), Notes()
    start = problem.start.clone().requires_grad_(True)
    settings = {"stepper": RK4(), "controller": Fixed(2), "gradient": gradient}
    solution = integrate(problem.bound(), State(start), (0.0, 1.0), observers=[notes.observer], **settings)
    (solution.x.sum() + 100.0 * start.sum()).backward()
    assert notes.costates[-1][0] == 0.0 and notes.costates[-1][2].abs().max() < 10.0
    count = len(notes.costates)
    integrate(problem.bound(), State(start), (0.0, 1.0), **settings).x.sum().backward()
    assert len(notes.costates) == count


@pytest.mark.parametrize("gradient", [Direct(), Checkpointed(), Backsolve()], ids=repr)
def test_costates_are_seen_where_the_start_asks_for_no_gradient(gradient):
    flow, inputs, notes = attention_flow("constant"), Inputs.drawn(asking=False), Notes()
    solution = solved(flow, inputs, gradient, Fixed(2), RK4(), observers=[notes.observer])
    loss_of(solution).backward()
    assert [z for z, _, _ in notes.costates] == [1.0, 0.5, 0.0]
    assert not any(a.requires_grad for _, _, a in notes.costates)


def test_nothing_is_watched_without_gradients():
    flow, inputs, notes = attention_flow("constant"), Inputs.drawn(), Notes()
    with torch.no_grad():
        solution = solved(flow, inputs, Direct(), Fixed(2), observers=[notes.observer])
    assert len(notes.steps) == 2 and not notes.costates and not solution.x.requires_grad
