"""Trajectories: the tokens between the steps, and what asking for them does not change."""

import numpy as np
import pytest
import torch
from scipy.integrate import RK45

from continua.core.slopes import fitted_slope
from continua.solve import (
    RK4,
    Adaptive,
    Direct,
    DormandPrince,
    Fixed,
    PerSequence,
    Projected,
    State,
    Strang,
    Tsitouras,
    integrate,
)
from problems import JUMPING, rotation, suited, twisting
from references import manifold_defect
from registries import all_gradients, all_methods


@pytest.mark.parametrize("stepper", all_methods, ids=repr)
def test_order_inside_a_step(stepper, unchecked):
    """One step of length h from the exact start: O(h^{order + 1}), as far as the interpolant goes."""
    problem, sizes = suited(stepper), [0.02 / 2**k for k in range(5)]
    errors = []
    for h in sizes:
        solution = integrate(problem.bound(), problem.state, (0.0, h), stepper, Fixed(1), Direct(), save_at=(0.4 * h,))
        errors.append((solution.xs[0] - problem.exact(0.4 * h)).square().mean().sqrt().item())
    interpolant = 5 if isinstance(getattr(stepper, "sub", stepper), DormandPrince | Tsitouras) else 4
    assert fitted_slope(sizes, errors) == pytest.approx(min(stepper.order + 1, interpolant), abs=0.2)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.83])
def test_dormand_prince_interpolates_as_scipy_does(fraction):
    problem, h = twisting(speed=2.0), 0.15
    bound, shape = problem.bound(), problem.start.shape
    slope = lambda z, y: bound(z, State(torch.from_numpy(y).view(shape))).x.flatten().numpy()  # noqa: E731
    scipys = RK45(slope, 0.0, problem.start.flatten().numpy(), 1.0, first_step=h, max_step=h, rtol=1.0, atol=1.0)
    scipys.step()
    ours = integrate(bound, problem.state, (0.0, h), DormandPrince(), Fixed(1), Direct(), save_at=(fraction * h,))
    expected = scipys.dense_output()(fraction * h)
    np.testing.assert_allclose(ours.xs.flatten().numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gradient", all_gradients, ids=repr)
def test_every_gradient_gives_the_same_trajectory(gradient):
    save_at = (0.0, 0.1, 0.3, 0.301, 0.5, 0.99, 1.0)
    problem = twisting(JUMPING)
    start = problem.start.clone().requires_grad_(True)
    solution = integrate(
        problem.bound(), State(start), (0.0, 1.0), controller=Adaptive(1e-8, 1e-8), gradient=gradient, save_at=save_at
    )
    assert solution.depths == save_at
    exact = torch.stack([problem.exact(z) for z in save_at])
    torch.testing.assert_close(solution.xs.detach(), exact, rtol=0, atol=1e-6)
    assert torch.equal(solution.xs[0], start)
    assert torch.equal(solution.xs[-1], solution.x)


@pytest.mark.parametrize("controller", [Fixed(4), Adaptive(1e-6, 1e-6)], ids=repr)
@pytest.mark.parametrize("stepper", [DormandPrince(), Tsitouras()], ids=repr)
def test_asking_changes_no_step(stepper, controller):
    problem = twisting(JUMPING)
    plain = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, controller)
    asked = integrate(
        problem.bound(), problem.state, (0.0, 1.0), stepper, controller, save_at=np.linspace(0, 1, 50).tolist()
    )
    assert asked.stats.grid == plain.stats.grid
    assert torch.equal(asked.x, plain.x)
    extra = asked.stats.evaluations - plain.stats.evaluations
    # an adaptive solve knows the last slope of every step; a fixed one asks for it once a step
    assert extra == (0 if isinstance(controller, Adaptive) else plain.stats.accepted)


@pytest.mark.parametrize("stepper", [RK4(), Strang()], ids=repr)
def test_slopes_for_hermite_are_evaluated_once_a_step(stepper):
    problem = suited(stepper)
    plain = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, Fixed(8))
    save_at = np.linspace(0, 1, 50).tolist()  # some in every step
    asked = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, Fixed(8), save_at=save_at)
    each = 1 if isinstance(stepper, RK4) else 2
    assert asked.stats.evaluations - plain.stats.evaluations == 8 * each


def test_depths_that_miss_a_grid_point_by_rounding_are_that_point():
    problem = rotation()
    solution = integrate(
        problem.bound(), problem.state, (0.0, 1.0), RK4(), Fixed(10), save_at=(1e-15, 0.1 + 0.2, 1 - 1e-15)
    )
    assert solution.xs.shape[0] == 3
    assert torch.equal(solution.xs[0], problem.start)
    assert torch.equal(solution.xs[2], solution.x)
    torch.testing.assert_close(solution.xs[1], problem.exact(0.3), rtol=0, atol=1e-6)


def test_projected_trajectories_lie_on_the_manifold():
    for stepper in (m for m in all_methods if isinstance(m, Projected)):
        problem = suited(stepper)
        solution = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, Fixed(3), save_at=(0.1, 0.5, 0.9))
        assert manifold_defect(stepper.manifold, solution.xs) <= 1e-14


def test_a_trajectory_needs_one_grid():
    problem = rotation()
    with pytest.raises(ValueError, match=r"save_at = \(0\.5,\).*one grid for all sequences.*Given\(stats.grid\)"):
        integrate(problem.bound(), problem.state, (0.0, 1.0), controller=PerSequence(), save_at=(0.5,))
