"""The adapter to torchdiffeq: its methods solve the same problems, with gradients, or refuse clearly."""

import sys

import pytest
import torch
from scipy.integrate import solve_ivp

from continua import SolveError
from continua.solve import (
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Heun,
    Midpoint,
    Observer,
    Solver,
    State,
    TorchdiffeqSolver,
    integrate,
)
from gradients import assert_same, gradients_of
from problems import JUMPING, SMOOTH, Inputs, Written, attention_flow, blow_up, energy, rotation, twisting

FINE = (("step_size", 0.01),)
accurate = pytest.mark.parametrize(
    ("solver", "atol"),
    [
        (TorchdiffeqSolver("dopri8", 1e-9, 1e-9), 1e-8),
        (TorchdiffeqSolver("dopri5", 1e-9, 1e-9), 1e-7),
        (TorchdiffeqSolver("bosh3", 1e-7, 1e-7), 1e-5),
        (TorchdiffeqSolver("rk4", options=FINE), 1e-6),
        (TorchdiffeqSolver("implicit_adams", 1e-9, 1e-9, options=FINE), 1e-6),
        (TorchdiffeqSolver("explicit_adams", options=(*FINE, ("max_order", 4))), 1e-4),
        (TorchdiffeqSolver("scipy_solver", 1e-10, 1e-10), 1e-7),
    ],
    ids=lambda x: x.method if isinstance(x, TorchdiffeqSolver) else None,
)


@accurate
@pytest.mark.parametrize("drive", [SMOOTH, JUMPING], ids=["smooth", "jumping"])
def test_every_method_solves_across_jumps(solver, atol, drive):
    problem, save_at = twisting(drive), (0.0, 0.2, 0.3, 0.7, 1.0)
    bound = problem.bound()
    solution = solver.solve(bound, problem.state, (0.0, 1.0), Direct(), save_at)
    torch.testing.assert_close(solution.x, problem.exact(1.0), rtol=0.0, atol=atol)
    expected = torch.stack([problem.exact(z) for z in save_at])
    torch.testing.assert_close(solution.xs, expected, rtol=0.0, atol=atol)
    assert solution.depths == save_at
    assert solution.stats.evaluations == bound.evaluations > 0


@pytest.mark.parametrize("gradient", [Direct(), Backsolve()], ids=repr)
def test_gradients_are_those_of_the_house(gradient, unchecked):
    """Dropout, a running cost, masses and a trajectory included, on layers."""
    flow, inputs = attention_flow("layers", dropout=0.3), Inputs.drawn()
    found, save_at = [], (0.3, 1.0)  # the house interpolates where torchdiffeq steps
    for solver in (Solver(DormandPrince(), Adaptive(1e-8, 1e-8)), TorchdiffeqSolver("dopri8", 1e-8, 1e-8)):
        bound = inputs.bind(flow, rates=(energy,))
        solution = solver.solve(bound, bound.initial(), (0.0, 1.0), gradient, save_at)
        found.append(gradients_of(solution, flow, inputs))
    assert_same(found[1], found[0], atol=1e-6)
    backward = solution.stats.backward_evaluations
    assert backward > 0 if isinstance(gradient, Backsolve) else backward == 0


def test_scipy_gives_gradients_by_its_adjoint(unchecked):
    problem = rotation()
    start = problem.start.clone().requires_grad_(True)
    solver = TorchdiffeqSolver("scipy_solver", 1e-9, 1e-9)
    solution = solver.solve(problem.bound(), State(start), (0.0, 1.0), Backsolve())
    (found,) = torch.autograd.grad(solution.x.square().sum(), start)
    torch.testing.assert_close(found, 2 * start.detach(), rtol=0.0, atol=1e-6)


def test_scipy_is_scipy():
    problem = twisting()
    bound, shape = problem.bound(), problem.start.shape
    slope = lambda z, y: bound(float(z), State(torch.from_numpy(y).view(shape))).x.flatten().numpy()  # noqa: E731
    settings = {"method": "LSODA", "rtol": 1e-6, "atol": 1e-6, "t_eval": [0.0, 1.0]}
    expected = solve_ivp(slope, (0.0, 1.0), problem.start.flatten().numpy(), **settings)
    solver = TorchdiffeqSolver("scipy_solver", 1e-6, 1e-6)
    found = solver.solve(bound, problem.state, (0.0, 1.0), Direct()).x
    # torchdiffeq hands the depth on in single precision
    torch.testing.assert_close(found.flatten(), torch.from_numpy(expected.y[:, -1]), rtol=0.0, atol=1e-6)


def test_padding_does_not_change_its_steps():
    """The norm is that of the house."""
    problem = twisting()
    velocity = problem.bound().velocities[0]
    weights = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    solver, counts = TorchdiffeqSolver("dopri5", 1e-6, 1e-6), []
    for extra in (0, 4):
        still = lambda z, x, inside: torch.cat([velocity(z, x[:, :3], inside), 0.0 * x[:, 3:]], 1)  # noqa: E731
        padding = torch.zeros(2, extra, dtype=torch.float64)
        bound = Written(still, weights=torch.cat([weights, padding], 1))
        state = State(torch.cat([problem.start, torch.ones(2, extra, 2, dtype=torch.float64)], 1))
        counts.append(solver.solve(bound, state, (0.0, 1.0), Direct()).stats.evaluations)
    assert counts[0] == counts[1]


def test_second_derivatives_pass_through_odeint():
    problem = rotation()
    start = problem.start.clone().requires_grad_(True)
    solution = TorchdiffeqSolver("dopri5").solve(problem.bound(), State(start), (0.0, 1.0), Direct(True))
    (first,) = torch.autograd.grad(solution.x.pow(3).sum(), start, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), start)
    assert second.abs().max() > 0.1


# --- refusals and failures


def solve(solver, gradient=Direct(), **settings):
    problem = rotation()
    start = problem.start.clone().requires_grad_(True)
    return solver.solve(problem.bound(), State(start), (0.0, 1.0), gradient, **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"gradient": Checkpointed()}, r"gradient = Checkpointed.*odeint_adjoint \(Backsolve\) alone.*Direct\(\)"),
        ({"gradient": Backsolve(clip=1.0)}, r"gradient = Backsolve.*neither trust nor clip"),
        ({"observers": [Observer()]}, r"observers = .*shows its steps to nobody.*Solver\(\)"),
        ({"save_at": (2.0,)}, r"save_at = \(2\.0,\).*outside"),
    ],
)
def test_what_it_cannot_do_is_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        solve(TorchdiffeqSolver(), **settings)


def test_scipy_without_a_gradient_is_refused():
    with pytest.raises(ValueError, match=r"gradient = Direct.*does not see through scipy.*Backsolve\(\)"):
        solve(TorchdiffeqSolver("scipy_solver"))
    with torch.no_grad():
        solve(TorchdiffeqSolver("scipy_solver"))


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match=r'Invalid method "rk45".*dopri5'):
        solve(TorchdiffeqSolver("rk45"))


@pytest.mark.parametrize("solver", [TorchdiffeqSolver("dopri5"), TorchdiffeqSolver("rk4", options=FINE)], ids=repr)
def test_a_state_that_blows_up_is_an_error(solver):
    with pytest.raises(SolveError, match=r"torchdiffeq gave up.*may be stiff.*Loosen rtol and atol") as failure:
        solver.solve(blow_up().bound(), blow_up().state, (0.0, 1.0), Direct())
    assert len(str(failure.value)) < 300


def test_a_step_limit_is_an_error():
    with pytest.raises(SolveError, match=r"max_num_steps exceeded"):
        solve(TorchdiffeqSolver("dopri5", 1e-10, 1e-10, (("max_num_steps", 2),)))


def test_without_torchdiffeq_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match=r"pip install -c constraints.txt -e '\.\[peers\]'"):
        solve(TorchdiffeqSolver())


@pytest.mark.parametrize(
    ("stepper", "name", "limits"),
    [
        (Euler(), "euler", ("step_size",)),
        (Midpoint(), "midpoint", ("step_size",)),
        (Heun(), "heun2", ("step_size",)),
        (DormandPrince(), "dopri5", ("first_step", "min_step", "max_step")),
    ],
)
def test_steps_are_those_of_torchdiffeq(stepper, name, limits):
    """Ten equal steps."""
    problem, options = twisting(), tuple((limit, 0.1) for limit in limits)
    theirs = TorchdiffeqSolver(name, options=options).solve(problem.bound(), problem.state, (0.0, 1.0), Direct())
    ours = integrate(problem.bound(), problem.state, (0.0, 1.0), stepper, Fixed(10), Direct())
    torch.testing.assert_close(ours.x, theirs.x, rtol=0.0, atol=1e-14)
