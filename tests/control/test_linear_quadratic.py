"""A linear-quadratic problem, whose solution scipy knows: the trained field, the report, successive approximations.

    dx/dz = A x + B u(z) ,   J = |x(Z)|^2 / n + int x^T Q x + lambda |u|^2 dz

The optimal control is u = -B^T P(z) x / lambda with -P' = A^T P + P A - P B B^T P / lambda + Q and P(Z) = I / n.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple, final

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from continua.control import (
    AbstractRunningCost,
    Batch,
    FieldSize,
    MeanSquaredError,
    Objective,
    SuccessiveApproximations,
    pontryagin,
)
from continua.fields import Expansion
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, NormReadout, Part, Setting
from continua.operators import AbstractPointwise, Filled, Spec, Unnormalised
from continua.solve import Direct, Fixed, Solver, Tsitouras
from continua.spaces import Cloud, Legendre

A = np.array([[0.0, 1.0], [-0.5, 0.3]])
B = np.array([[0.2], [1.0]])
Q = np.diag([0.5, 0.1])
START = np.array([1.0, -0.4])
DEPTH, PRICE = 1.5, 0.3


class Control(NamedTuple):
    """u at one depth."""

    u: Tensor


@final
@dataclasses.dataclass(frozen=True)
class Linear(AbstractPointwise):
    """f(x) = A x + B u."""

    def spec(self, width: int) -> Control:
        return Control(Spec((1,), Filled(0.0)))

    def act(self, theta: Control, points: Tensor) -> Tensor:
        A_, B_ = (torch.from_numpy(x).to(points) for x in (A, B))
        return points @ A_.T + theta.u @ B_.T


@final
@dataclasses.dataclass(frozen=True)
class StateCost(AbstractRunningCost):
    """r = x^T Q x: a running cost that a user wrote."""

    def bind(self, setting: Setting, place: int):
        Q_ = torch.from_numpy(Q).to(setting.cloud.points)
        return lambda z, points, velocity: torch.einsum("bti,ij,btj->b", points, Q_, points)


OBJECTIVE = Objective(MeanSquaredError(), (StateCost(), FieldSize()), (1.0, PRICE))


def problem(modes: int, steps: int = 10) -> tuple[ContinuousTransformer, Batch]:
    field = Expansion(Linear().spec(2), Legendre(modes), DEPTH)
    flow = Flow([Part(Linear(), field)], DEPTH)
    readout = NormReadout(2, Unnormalised())
    model = ContinuousTransformer(
        CloudEmbedding(2), flow, readout, Solver(Tsitouras(), Fixed(steps)), Direct()
    ).double()
    start = torch.from_numpy(START).view(1, 1, 2)
    return model, Batch((Cloud(start),), torch.zeros_like(start))


@functools.cache
def riccati():
    """P(z) backwards and x(z) forwards, by scipy; x^T P x at the start is the optimal J."""

    def slope(s, p):
        P = p.reshape(2, 2)
        return (A.T @ P + P @ A - P @ B @ B.T @ P / PRICE + Q).ravel()

    tight = {"rtol": 1e-11, "atol": 1e-12, "dense_output": True}
    P = solve_ivp(slope, (0.0, DEPTH), np.eye(2).ravel() / 2, **tight).sol
    control = lambda z, x: -(B.T @ P(DEPTH - z).reshape(2, 2) @ x) / PRICE  # noqa: E731
    x = solve_ivp(lambda z, x: A @ x + B @ control(z, x), (0.0, DEPTH), START, **tight).sol
    return float(START @ P(DEPTH).reshape(2, 2) @ START), lambda z: control(z, x(z))


@functools.cache
def trained(modes: int, steps: int = 10):
    model, batch = problem(modes, steps)
    optimiser = torch.optim.LBFGS(
        model.flow.parameters(), max_iter=60, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        total = OBJECTIVE(model, batch).total
        total.backward()
        return total

    optimiser.step(closure)
    return model, closure().item(), pontryagin(model, batch, OBJECTIVE)


def test_the_trained_field_is_the_solution_of_riccati(unchecked):
    best, control = riccati()
    model, value, report = trained(8)
    assert value == pytest.approx(best, abs=1e-7)
    for z in np.linspace(0.0, DEPTH, 13):
        u = model.flow.parts[0].field(float(z)).u.item()
        assert u == pytest.approx(control(z).item(), abs=1e-5)
    assert report.projected_gradient < 1e-6
    assert report.terminal_mismatch < 1e-12 and report.defect < 1e-5


def test_the_unprojected_residual_falls_as_modes_are_added(unchecked):
    best, _ = riccati()
    found = [trained(modes) for modes in (1, 2, 4, 8)]
    residuals = [report.unprojected_gradient for _, _, report in found]
    assert all(report.projected_gradient < 1e-6 for _, _, report in found)
    assert all(b < 0.3 * a for a, b in itertools.pairwise(residuals)), residuals
    assert residuals[0] > 0.1 and residuals[-1] < 1e-4
    values = [value for _, value, _ in found]
    assert values == sorted(values, reverse=True) and values[-1] == pytest.approx(best, abs=1e-7)


@pytest.mark.slow
def test_successive_approximations_reach_the_same_objective(unchecked):
    model, batch = problem(4, steps=5)
    outcome = SuccessiveApproximations(rho=0.1, inner=6)(model, batch, OBJECTIVE)
    assert outcome.converged and outcome.gradients[-1] < 1e-6, str(outcome)
    assert outcome.values[-1] == pytest.approx(trained(4, 5)[1], abs=1e-6)
    assert outcome.values[-1] == pytest.approx(riccati()[0], abs=1e-5)  # five steps, four modes
    assert all(b < a for a, b in itertools.pairwise(outcome.values))
    assert OBJECTIVE(model, batch).total.item() == pytest.approx(outcome.values[-1], abs=1e-12)


def test_the_plain_method_diverges_and_says_so(unchecked):
    """A cheap control answers an old costate too strongly: u = -B^T a / lambda, over and over."""
    model, batch = problem(2, steps=5)
    cheap = Objective(MeanSquaredError(), (StateCost(), FieldSize()), (1.0, 0.03))
    start = cheap(model, batch).total.item()
    outcome = SuccessiveApproximations(rho=0.0, inner=6)(model, batch, cheap)
    assert not outcome.converged and "diverged" in outcome.reason and "rho=1.0" in outcome.reason
    assert cheap(model, batch).total.item() <= start  # the best parameters are kept
    mended = SuccessiveApproximations(rho=0.3, iterations=10, inner=6)(model, batch, cheap)
    assert mended.values[-1] < 0.9 * start


def test_the_plain_method_converges_where_control_is_dear(unchecked):
    model, batch = problem(2, steps=5)
    dear = Objective(MeanSquaredError(), (StateCost(), FieldSize()), (1.0, 5.0))
    outcome = SuccessiveApproximations(rho=0.0, inner=6)(model, batch, dear)
    assert outcome.converged and str(outcome).startswith("converged after")


def test_mistakes_are_named(unchecked):
    with pytest.raises(ValueError, match="rho = -1"):
        SuccessiveApproximations(rho=-1.0)
    with pytest.raises(ValueError, match="tolerance = 0"):
        SuccessiveApproximations(tolerance=0.0)
