"""Adaptive steps meet their tolerance, respect jumps, and do not see padding."""

import itertools

import numpy as np
import pytest
import torch
import torchdiffeq
from jaxtyping import config
from scipy.integrate import solve_ivp

import continua
from continua.solve import (
    Adaptive,
    BogackiShampine,
    Direct,
    DormandPrince,
    Observer,
    PerSequence,
    Projected,
    State,
    Tsitouras,
    integrate,
)
from continua.spaces import Cloud, Sphere
from problems import (
    JUMPING,
    SMOOTH,
    WIDTH,
    Inputs,
    Written,
    attention_flow,
    decay,
    energy,
    logistic,
    rotation,
    suited,
    twisting,
)

TOLERANCES = [1e-3, 1e-5, 1e-7, 1e-9]
controllers = pytest.mark.parametrize("controller", [Adaptive, PerSequence])
judging = pytest.mark.parametrize(
    "stepper", [BogackiShampine(), DormandPrince(), Tsitouras(), Projected(DormandPrince(), Sphere(), True)], ids=repr
)


def assert_met(errors, tolerances=TOLERANCES) -> None:
    """Global errors within 30 tolerances (local ones add up), and falling with them."""
    assert all(error < 30 * tolerance for error, tolerance in zip(errors, tolerances, strict=True)), errors
    assert all(after < before for before, after in itertools.pairwise(errors)), errors


@judging
@controllers
@pytest.mark.parametrize("drive", [SMOOTH, JUMPING], ids=["smooth", "jumping"])
def test_tolerance_is_met(stepper, controller, drive, unchecked):
    problem = suited(stepper, drive)
    tolerances = TOLERANCES[:3] if stepper.order == 3 else TOLERANCES  # order 3 would take thousands of steps
    errors = []
    for tolerance in tolerances:
        steps = controller(tolerance, tolerance)
        solution = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, steps, Direct())
        errors.append((solution.x - problem.exact(1.0)).abs().max().item())
    assert_met(errors, tolerances)


@pytest.mark.parametrize("make", [decay, rotation, logistic])
@pytest.mark.parametrize("stepper", [DormandPrince(), Tsitouras()], ids=repr)
def test_textbook_problems_by_the_default_tolerance(make, stepper):
    problem = make()
    solution = integrate(problem.bound(), problem.state, (0.0, 3.0), stepper)
    torch.testing.assert_close(solution.x, problem.exact(3.0), rtol=0.0, atol=1e-3)
    assert solution.stats.accepted <= 10


@pytest.fixture(scope="module")
def attention():
    """An attention flow with weights smooth in depth, solved tightly by scipy and by torchdiffeq."""
    config.update("jaxtyping_disable", True)  # what `unchecked` does, which lives for one test only
    bound = Inputs.drawn(asking=False).bind(attention_flow("smooth"))
    start = bound.initial().x

    @torch.no_grad()
    def slope(z, y):
        return bound(float(z), State(torch.as_tensor(y).view(start.shape))).x

    flat = lambda z, y: slope(z, y).flatten().numpy()  # noqa: E731
    scipys = solve_ivp(flat, (0.0, 1.0), start.flatten().numpy(), method="DOP853", rtol=1e-11, atol=1e-11)
    span = torch.tensor([0.0, 1.0], dtype=torch.float64)
    settings = {"method": "dopri8", "options": {"step_t": span[1:]}}  # it would step beyond the end, where no field is
    peers = torchdiffeq.odeint(slope, start, span, rtol=1e-11, atol=1e-11, **settings)
    config.update("jaxtyping_disable", False)
    return bound, {"scipy": torch.from_numpy(scipys.y[:, -1]).view(start.shape), "torchdiffeq": peers[-1]}


@pytest.mark.parametrize("peer", ["scipy", "torchdiffeq"])
@controllers
def test_attention_meets_its_tolerance_against_peers(attention, peer, controller, unchecked):
    bound, exact = attention
    errors = []
    with torch.no_grad():
        for tolerance in TOLERANCES:
            solution = integrate(bound, bound.initial(), (0.0, 1.0), controller=controller(tolerance, tolerance))
            errors.append((solution.x - exact[peer]).abs().max().item())
    assert_met(errors)


@judging
@controllers
def test_no_step_straddles_a_jump(stepper, controller):
    steps = []
    observer = Observer(step=lambda z, dz, state: steps.append((torch.as_tensor(z), torch.as_tensor(dz))))
    problem = suited(stepper, JUMPING)
    solution = integrate(
        problem.bound(), problem.state, (0.0, 1.0), stepper, controller(1e-6, 1e-6), Direct(), observers=[observer]
    )
    starts, lengths = (torch.stack([x.expand(2) for x in column]) for column in zip(*steps, strict=True))
    for jump in JUMPING.jumps:
        inside = (starts < jump - 1e-12) & (starts + lengths > jump + 1e-12)
        assert not inside.any()
        assert controller is PerSequence or jump in solution.stats.grid


def test_jumps_cost_little():
    """A solve across two jumps takes a few steps more than three smooth ones, not many rejections."""
    problem = twisting(JUMPING, 2.0)
    stats = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=Adaptive(1e-8, 1e-8)).stats
    assert stats.rejected <= 4


# --- padding


def padded(x: torch.Tensor, extra: int) -> torch.Tensor:
    return torch.cat([x, 100.0 + torch.randn(x.shape[0], extra, *x.shape[2:], dtype=x.dtype)], 1)


@controllers
def test_padding_changes_neither_grid_nor_result(controller):
    """Tokens of zero mass move wildly here; the norm does not see them."""
    problem = twisting(speed=2.0)
    steps = controller(1e-6, 1e-6)
    weights = torch.full(problem.start.shape[:2], 1 / 3, dtype=torch.float64)
    velocity = problem.bound().velocities[0]
    plain = integrate(Written(velocity, weights=weights), problem.state, (0.0, 1.0), controller=steps)

    def wild(z, x, inside):
        return torch.cat([velocity(z, x[:, :3], inside), -50.0 * x[:, 3:]], 1)

    weights = torch.cat([weights, torch.zeros(2, 2, dtype=torch.float64)], 1)
    more = integrate(Written(wild, weights=weights), State(padded(problem.start, 2)), (0.0, 1.0), controller=steps)
    np.testing.assert_allclose(more.stats.grid, plain.stats.grid, rtol=1e-12)
    assert more.stats.accepted == plain.stats.accepted
    torch.testing.assert_close(more.x[:, :3], plain.x, rtol=1e-12, atol=1e-12)


def test_padding_of_a_cloud_changes_neither_grid_nor_result():
    flow = attention_flow("layers")
    points = torch.randn(2, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mass = torch.tensor([[1.0, 2.0, 0.5], [1.0, 1.0, 3.0]], dtype=torch.float64)
    zero = torch.zeros(2, 4, dtype=torch.float64)
    with torch.no_grad():
        solutions = []
        for cloud in (Cloud(points, mass), Cloud(padded(points, 4), torch.cat([mass, zero], 1))):
            bound = flow.bind(cloud, random=False)
            solutions.append(integrate(bound, bound.initial(), (0.0, 1.0), controller=Adaptive(1e-6, 1e-6)))
    plain, more = solutions
    np.testing.assert_allclose(more.stats.grid, plain.stats.grid, rtol=1e-10)
    torch.testing.assert_close(more.x[:, :3], plain.x, rtol=1e-10, atol=1e-10)


# --- each sequence for itself


def rows(batch: torch.Tensor, flow, **settings) -> tuple[torch.Tensor, int, int]:
    bound = flow.bind(Cloud(batch), random=False)
    with torch.no_grad():
        solution = integrate(bound, bound.initial(), (0.0, 1.0), controller=PerSequence(1e-5, 1e-5), **settings)
    return solution.x, solution.stats.accepted, solution.stats.rejected


@pytest.mark.parametrize("field", ["smooth", "layers"])
def test_a_sequence_does_not_depend_on_its_mates(field, unchecked):
    """To the bit: in a batch with one that needs many more steps, rejects, and stops elsewhere."""
    flow, generator = attention_flow(field), torch.Generator().manual_seed(2)
    a, b, c = (torch.randn(1, 3, WIDTH, dtype=torch.float64, generator=generator) * s for s in (1.0, 3.0, 0.1))
    first, *_ = rows(torch.cat([a, b]), flow)
    second, *_ = rows(torch.cat([a, c]), flow)
    assert torch.equal(first[0], second[0])
    counts = [rows(torch.cat([x, x]), flow)[1:] for x in (a, b, c)]
    assert len(set(counts)) > 1, "all take the same steps: nothing was shown"
    for pair, (x, y) in (((0, 1), (a, b)), ((0, 2), (a, c)), ((1, 2), (b, c))):
        mixed = rows(torch.cat([x, y]), flow)[1:]
        assert tuple(2 * m for m in mixed) == tuple(sum(n) for n in zip(*(counts[i] for i in pair), strict=True))


# --- settings


def test_the_first_step_may_be_given():
    problem = twisting()
    stats = integrate(problem.bound(), problem.state, (0.0, 1.0), controller=Adaptive(first=1e-3)).stats
    assert stats.grid[1] == 1e-3


def test_a_flow_at_rest_takes_few_steps():
    state = State(torch.zeros(1, 2, 3, dtype=torch.float64))
    for controller in (Adaptive(), PerSequence()):
        solution = integrate(Written(lambda z, x, _: 0.0 * x), state, (0.0, 1.0), controller=controller)
        assert torch.equal(solution.x, state.x)
        assert solution.stats.accepted <= 8


def test_costs_join_the_norm_if_asked():
    """A cost that turns fast along a flow that does not: outside the norm by default."""
    turning = lambda z, x, v: torch.cos(torch.as_tensor(60.0 * z)) * torch.ones(2, dtype=torch.float64)  # noqa: E731
    exact = np.sin(60.0) / 60.0
    errors = {}
    for costs in (False, True):
        problem = decay()
        bound = Written(*problem.bound().velocities, rates=[turning])
        state = State(problem.start, (torch.zeros(2, dtype=torch.float64),))
        solution = integrate(bound, state, (0.0, 1.0), controller=Adaptive(1e-6, 1e-6, costs=costs))
        errors[costs] = (solution.costs[0] - exact).abs().max().item()
    assert errors[True] < 3e-5 < errors[False]


def test_single_precision_reaches_what_it_can():
    problem = twisting(JUMPING)
    state = State(problem.start.float())
    velocity = problem.bound().velocities[0]
    bound = Written(lambda z, x, inside: velocity(z, x.double(), inside).float(), breaks=JUMPING.jumps)
    for controller in (Adaptive(1e-5, 1e-5), PerSequence(1e-5, 1e-5)):
        solution = integrate(bound, state, (0.0, 1.0), controller=controller)
        assert solution.x.dtype == torch.float32
        torch.testing.assert_close(solution.x.double(), problem.exact(1.0), rtol=0, atol=1e-4)


def test_the_norm_over_ranks_is_the_local_one_without_a_group():
    problem = twisting()
    controllers = (Adaptive(all_ranks=flag) for flag in (False, True))
    local, ranks = (integrate(problem.bound(), problem.state, (0.0, 1.0), controller=c) for c in controllers)
    assert local.stats.grid == ranks.stats.grid


def test_energy_of_a_decay_is_known():
    """int |x'|^2 dz = |x(0)|^2 (1 - e^{-2}) / 2 for x' = -x, beside the tokens and on every controller."""
    problem = decay()
    exact = problem.start.square().sum((-1, -2)) * (1 - np.exp(-2)) / 2
    for controller in (Adaptive(1e-9, 1e-9), PerSequence(1e-9, 1e-9)):
        bound = Written(*problem.bound().velocities, rates=[energy])
        state = State(problem.start, (torch.zeros(2, dtype=torch.float64),))
        solution = integrate(bound, state, (0.0, 1.0), controller=controller)
        torch.testing.assert_close(solution.costs[0], exact, rtol=1e-7, atol=0.0)


def test_one_tolerance_is_both():
    f, x0 = lambda z, x: torch.sin(9.0 * z) * x, torch.ones(3, dtype=torch.float64)
    short = continua.integrate(f, x0, (0.0, 1.0), rtol=1e-9)
    for controller in (Adaptive(1e-9), Adaptive(rtol=1e-9, atol=1e-9)):
        long = continua.integrate(f, x0, (0.0, 1.0), controller=controller)
        assert torch.equal(long.x, short.x) and long.stats.evaluations == short.stats.evaluations
    loose = continua.integrate(f, x0, (0.0, 1.0), controller=Adaptive(1e-9, 1e-4))
    assert loose.stats.evaluations < short.stats.evaluations
