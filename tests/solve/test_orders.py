"""Every stepper has the order that it claims, also where the flow jumps and on manifolds."""

import pytest
import torch

from continua.core.slopes import fitted_slope
from continua.solve import (
    RK4,
    Adaptive,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    LieTrotter,
    Midpoint,
    Projected,
    Strang,
    integrate,
)
from continua.spaces import Sphere
from problems import JUMPING, SMOOTH, Drive, Inputs, Written, attention_flow, spinning, suited, twisting
from references import manifold_defect
from registries import all_methods

drives = pytest.mark.parametrize("drive", [SMOOTH, JUMPING], ids=["smooth", "jumping"])


def slope(bound, start, exact, stepper, coarsest: int = 32) -> float:
    """The fitted order over four halvings; `bound` makes a flow, `exact` is the solution at 1."""
    sizes, errors = [], []
    for k in range(5):
        solution = integrate(bound(), start, (0.0, 1.0), stepper, Fixed(coarsest * 2**k), Direct())
        sizes.append(1.0 / solution.stats.accepted)
        errors.append((solution.x - exact).square().mean().sqrt().item())
    return fitted_slope(sizes, errors)


@pytest.mark.parametrize("stepper", all_methods, ids=repr)
@drives
def test_every_method_shows_its_order(stepper, drive, unchecked):
    problem = suited(stepper, drive)
    order = slope(problem.bound, problem.state, problem.exact(1.0), stepper)
    assert order == pytest.approx(stepper.order, abs=0.2)


def test_a_step_across_a_jump_would_cost_the_order():
    """What `breaks` are for: the same flow that hides them."""
    problem = twisting(JUMPING, 2.0)
    hidden = lambda: Written(*problem.bound().velocities)  # noqa: E731
    assert slope(hidden, problem.state, problem.exact(1.0), DormandPrince()) < 1.5


@pytest.mark.parametrize("tangent", [False, True])
def test_a_tangential_velocity_keeps_the_order_under_projection(tangent):
    problem = spinning(SMOOTH, 3.0, normal=0.0)
    stepper = Projected(RK4(), Sphere(), tangent)
    assert slope(problem.bound, problem.state, problem.exact(1.0), stepper) == pytest.approx(4, abs=0.2)


def test_projected_steps_stay_on_the_manifold():
    problem = spinning(normal=0.7)
    for stepper in (m for m in all_methods if isinstance(m, Projected)):
        points = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, Fixed(7), Direct()).x
        assert manifold_defect(Sphere(), points) <= 1e-14


@pytest.mark.parametrize("stepper", [Euler(), Midpoint(), RK4(), LieTrotter(), Strang()], ids=repr)
def test_attention_with_layers_shows_the_order(stepper, unchecked):
    """The field jumps at 0.3; the reference is Dormand-Prince at 1e-10."""
    inputs = Inputs.drawn(asking=False)
    bound = inputs.bind(attention_flow("layers"))
    with torch.no_grad():
        exact = integrate(bound, bound.initial(), (0.0, 1.0), controller=Adaptive(1e-10, 1e-10)).x
        order = slope(lambda: bound, bound.initial(), exact, stepper, coarsest=5)
    assert order == pytest.approx(stepper.order, abs=0.2)


# --- half-step parts may jump in the middle of a step, and nowhere else


def halved(*jumps: float) -> Written:
    """Two parts whose slopes tell where they were read: the first jumps, and takes half-steps."""
    drive = Drive(tuple(float(i + 1) for i in range(len(jumps) + 1)), jumps)
    bound = Written(lambda z, x, inside: drive(z, inside) * x, lambda z, x, inside: -0.1 * x)
    bound.parts[0].breaks = bound.breaks = jumps
    return bound


@pytest.mark.parametrize(
    ("jumps", "controller", "grid"),
    [
        ((0.5,), Fixed(1), [0.0, 1.0]),  # sub-steps meet there
        ((0.5,), Fixed(2), [0.0, 0.5, 1.0]),
        ((0.3,), Fixed(1), [0.0, 0.3, 1.0]),
        ((0.3, 0.5), Fixed(1), [0.0, 0.3, 0.5, 1.0]),  # 0.5 is no longer in the middle once 0.3 is on the grid
        ((0.5,), Given((0.0, 0.4, 1.0)), [0.0, 0.4, 0.5, 1.0]),
        ((0.5,), Given((0.0, 0.4, 0.6, 1.0)), [0.0, 0.4, 0.6, 1.0]),
    ],
)
def test_strang_steps_meet_every_jump(jumps, controller, grid):
    state = twisting().state
    solution = integrate(halved(*jumps), state, (0.0, 1.0), Strang(Euler()), controller, Direct())
    assert solution.stats.grid == pytest.approx(grid)


def test_strang_reads_the_piece_of_each_half_step():
    """x' = c x with c = 1 before 0.5 and 2 after it, then -0.1 x between: one Macaron layer, written out."""
    start = twisting().start
    season = Drive()
    before, after = (float(season(z, z)) for z in (0.25, 0.75))  # the middles of the half-steps
    expected = start * (1 + 0.5 * before) * (1 - 0.1) * (1 + 0.5 * 2 * after)
    solution = integrate(halved(0.5), twisting().state, (0.0, 1.0), Strang(Euler()), Fixed(1), Direct())
    torch.testing.assert_close(solution.x, expected, rtol=1e-14, atol=0.0)
