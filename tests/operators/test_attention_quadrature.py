"""Attention as an integral over token time: on a sampled signal it converges at the order of the rule."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from continua.core.slopes import fitted_slope
from continua.operators import Attention, AttentionTheta
from continua.spaces import (
    AbstractNodalRule,
    AbstractSampleRule,
    BackwardRectangle,
    CausalTrapezoid,
    ClenshawCurtis,
    Cloud,
    GaussLegendre,
    MidpointRule,
    Trapezoid,
)
from registries import OperatorCase, all_rules

WIDTH, HEADS, KEY = 4, 2, 3
counts = [16, 32, 64, 128, 256]
OPERATOR = Attention(HEADS, KEY, beta=3.0)
CAUSAL = Attention(HEADS, KEY, beta=3.0, causal=True)
THETA: AttentionTheta = OperatorCase(OPERATOR).theta(WIDTH, torch.Generator().manual_seed(5))


def signal(times: torch.Tensor) -> torch.Tensor:
    """x(t) in R^4, smooth and not periodic."""
    waves = [torch.sin(5 * times), torch.cos(3 * times) + times, torch.exp(-2 * times), torch.sin(2 * times) ** 2]
    return torch.stack(waves, -1)


ASKED = Cloud(signal(torch.tensor([[0.1, 0.35, 0.6, 0.95]], dtype=torch.float64)) + 0.1)


def integrals(query: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """A(x, mu) for mu = dt on [low, high], by scipy's adaptive quadrature of numerator and normaliser."""

    def tilted(t: float, head: int) -> np.ndarray:
        x = signal(torch.tensor(t, dtype=torch.float64))
        affine = [w[head] @ y + b[head] for w, y, b in zip(THETA[:3], (query, x, x), THETA[4:7], strict=True)]
        q, k, v = affine
        weight = torch.exp(OPERATOR.inverse_temperature * (q @ k))
        return torch.cat([weight * v, weight[None]]).numpy()

    total = THETA.bo
    assert total is not None
    for head in range(HEADS):
        found = integrate.quad_vec(tilted, low, high, args=(head,), epsabs=1e-13, epsrel=1e-13)[0]
        total = total + torch.from_numpy(found[:-1] / found[-1]) @ THETA.o[head]
    return total


@pytest.fixture(scope="module")
def exact() -> torch.Tensor:
    return torch.stack([integrals(query, 0.0, 1.0) for query in ASKED.points[0]])


def answer(times: torch.Tensor, mass: torch.Tensor | None) -> torch.Tensor:
    """The velocities of the queries, from the signal sampled at `times`."""
    memory = Cloud(signal(times[None]), None if mass is None else mass[None])
    return OPERATOR.velocity(THETA, ASKED, memory)[0]


def warped(count: int) -> torch.Tensor:
    """Irregular times in [0, 1], both ends included, from a smooth map of equal steps."""
    return torch.expm1(1.5 * torch.linspace(0.0, 1.0, count + 1, dtype=torch.float64)) / math.expm1(1.5)


def measured_order(errors: list[float]) -> float:
    return fitted_slope([1 / count for count in counts], errors)


@pytest.mark.parametrize("rule", [Trapezoid(), MidpointRule()], ids=repr)
def test_second_order_rules(rule, exact):
    errors = []
    for count in counts:
        if isinstance(rule, AbstractNodalRule):
            times, mass = rule.nodes(count)
        else:
            times = warped(count)
            mass = rule.mass(times[None])[0]
        errors.append(float((answer(times, mass) - exact).abs().max()))
    assert measured_order(errors) == pytest.approx(rule.order, abs=0.2)


@pytest.mark.parametrize("rule", [GaussLegendre(), ClenshawCurtis()], ids=repr)
def test_spectral_rules(rule, exact):
    errors = [float((answer(*rule.nodes(count)) - exact).abs().max()) for count in (8, 16, 32)]
    # Clenshaw-Curtis is known to need up to twice the nodes of Gauss-Legendre before rounding.
    bounds = (1e-2, 1e-6, 3e-12) if isinstance(rule, GaussLegendre) else (2e-2, 1e-5, 1e-10)
    assert all(error < bound for error, bound in zip(errors, bounds, strict=True)), errors
    assert errors[0] > 1e3 * errors[1]


@pytest.mark.parametrize("rule", [GaussLegendre(), ClenshawCurtis()], ids=repr)
def test_counting_on_their_nodes_stalls(rule, exact):
    errors = [float((answer(rule.nodes(count)[0], None) - exact).abs().max()) for count in (8, 16, 32, 64)]
    assert min(errors) > 1e-2 and errors[-1] > 0.5 * errors[0]


@pytest.mark.parametrize("rule", [BackwardRectangle(), CausalTrapezoid()], ids=repr)
def test_causal_rules_at_every_token(rule):
    """Every token's velocity is the integral over its own past; Gauss-Legendre on that past gives it exactly."""
    errors = []
    for count in counts:
        times = warped(count)[None, isinstance(rule, BackwardRectangle) :]
        start = 0.0 if isinstance(rule, BackwardRectangle) else float(times[0, 0])
        cloud = Cloud(signal(times), rule.mass(times), times, rule.own(times))
        found = CAUSAL.velocity(THETA, cloud)[0]
        errors.append(float((found - pasts(times[0], start)).abs().max()))
    assert measured_order(errors) == pytest.approx(rule.order, abs=0.2)


def pasts(times: torch.Tensor, start: float) -> torch.Tensor:
    """For every time the attention of x(t) over [start, t], one query a row; 40 nodes reach rounding."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(40))
    inner = start + (times[:, None] - start) * (nodes + 1) / 2
    # An interval of no length is a point: any positive mass gives its value.
    memory = Cloud(signal(inner), weights.expand(len(times), -1))
    return OPERATOR.velocity(THETA, Cloud(signal(times)[:, None]), memory)[:, 0]


def test_the_reference_on_the_past_is_that_of_scipy():
    times = torch.tensor([0.3, 0.8], dtype=torch.float64)
    expected = torch.stack([integrals(signal(t), 0.0, float(t)) for t in times])
    torch.testing.assert_close(pasts(times, 0.0), expected, rtol=0, atol=1e-12)


def test_masking_the_global_trapezoid_is_first_order_only():
    errors = []
    for count in counts:
        times = warped(count)[None]
        found = CAUSAL.velocity(THETA, Cloud(signal(times), Trapezoid().mass(times), times))[0]
        errors.append(float((found - pasts(times[0], 0.0)).abs().max()))
    assert measured_order(errors) == pytest.approx(1.0, abs=0.2)


def test_no_rule_is_forgotten():
    claimed = {type(rule) for rule in all_rules if rule.order >= 1}
    tested = {Trapezoid, MidpointRule, GaussLegendre, ClenshawCurtis, BackwardRectangle, CausalTrapezoid}
    assert {kind.__name__ for kind in claimed - tested} == {"Uniform"}  # a mean over equal steps: see tests/spaces
    assert all(issubclass(kind, AbstractNodalRule | AbstractSampleRule) for kind in tested)
