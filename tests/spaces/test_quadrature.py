import math

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev, legendre
from scipy import special

from continua.core.slopes import fitted_slope
from continua.spaces import AbstractNodalRule, ClenshawCurtis, GaussLegendre, MidpointRule
from registries import all_rules

nodal_rules = [rule for rule in all_rules if isinstance(rule, AbstractNodalRule)]
each_rule = pytest.mark.parametrize("rule", nodal_rules, ids=repr)


def polynomial_error(rule: AbstractNodalRule, count: int, degree: int) -> float:
    """Error on the Legendre polynomial of this degree, whose integral over [0, 1] is 1 or 0."""
    nodes, weights = rule.nodes(count)
    values = legendre.legval(2 * nodes.numpy() - 1, [0.0] * degree + [1.0])
    return abs(float(weights.numpy() @ values) - (degree == 0))


@each_rule
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16])
def test_exact_up_to_the_degree_and_not_beyond(rule, count):
    degree = rule.degree(count)
    assert max(polynomial_error(rule, count, k) for k in range(degree + 1)) < 1e-14
    # Clenshaw-Curtis is famous for missing the next degrees by little: about count^-3.
    assert polynomial_error(rule, count, degree + 1) > 1e-4


@each_rule
def test_algebraic_order_is_the_claimed_one(rule):
    counts = [8, 16, 32, 64, 128]
    errors = []
    for count in counts:
        nodes, weights = rule.nodes(count, span=(0.5, 2.0))
        errors.append(abs(float(weights @ nodes.exp()) - (math.exp(2.0) - math.exp(0.5))))
    if math.isinf(rule.order):
        # Rounding of a sum near 6 is all that is left: four units in the last place.
        assert max(errors[1:]) < 4 * 2.0**-50
    else:
        assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(rule.order, abs=0.2)


@each_rule
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_nodes_ascend_and_lie_symmetric_with_positive_weights(rule, count):
    nodes, weights = rule.nodes(count, span=(-3.0, 5.0))
    assert bool((nodes.diff() > 0).all())
    assert bool((weights > 0).all())
    torch.testing.assert_close(nodes + nodes.flip(0), torch.full_like(nodes, 2.0), rtol=0, atol=2e-15)
    torch.testing.assert_close(weights, weights.flip(0), rtol=0, atol=2e-15)
    assert float(weights.sum()) == pytest.approx(8.0, abs=1e-14)


@each_rule
def test_asked_dtype_is_the_rounded_float64(rule):
    exact, single = rule.nodes(9), rule.nodes(9, dtype=torch.float32)
    for wide, narrow in zip(exact, single, strict=True):
        assert narrow.dtype == torch.float32
        assert torch.equal(narrow, wide.float())


@pytest.mark.parametrize("count", [1, 2, 3, 10, 33, 64])
def test_gauss_legendre_equals_numpy_and_scipy(count):
    nodes, weights = GaussLegendre().nodes(count, span=(-1.0, 1.0))
    for x, w in (legendre.leggauss(count), special.roots_legendre(count)):
        np.testing.assert_allclose(nodes.numpy(), x, rtol=0, atol=1e-15)
        # At 64 nodes the two references differ from each other by 4e-15.
        np.testing.assert_allclose(weights.numpy(), w, rtol=0, atol=5e-15)


@pytest.mark.parametrize("count", [2, 3, 4, 9, 16])
def test_clenshaw_curtis_weights_are_those_of_interpolation(count):
    nodes, weights = ClenshawCurtis().nodes(count, span=(-1.0, 1.0))
    np.testing.assert_allclose(nodes.numpy(), chebyshev.chebpts2(count), rtol=0, atol=1e-15)
    moments = [0.0 if k % 2 else 2.0 / (1 - k * k) for k in range(count)]
    expected = np.linalg.solve(chebyshev.chebvander(nodes.numpy(), count - 1).T, moments)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("span", [(0.0, 1.0), (0.1, 0.7), (-1.3, 2.9)])
def test_clenshaw_curtis_meets_both_ends(span):
    nodes, _ = ClenshawCurtis().nodes(6, span=span)
    assert (float(nodes[0]), float(nodes[-1])) == span


def test_clenshaw_curtis_refinement_reuses_its_nodes():
    coarse, fine = ClenshawCurtis().nodes(9)[0], ClenshawCurtis().nodes(17)[0]
    torch.testing.assert_close(fine[::2], coarse, rtol=0, atol=1e-15)


def test_clenshaw_curtis_with_one_and_three_nodes_is_midpoint_and_simpson():
    assert [part.tolist() for part in ClenshawCurtis().nodes(1)] == [[0.5], [1.0]]
    _, weights = ClenshawCurtis().nodes(3)
    torch.testing.assert_close(weights, torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64) / 6)


def test_midpoint_cells_are_equal():
    nodes, weights = MidpointRule().nodes(4)
    assert nodes.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert weights.tolist() == [0.25] * 4


@each_rule
def test_bad_input_is_named(rule):
    with pytest.raises(ValueError, match=r"count = 0: .*at least 1.*Pass count >= 1"):
        rule.nodes(0)
    with pytest.raises(ValueError, match=r"span = \(1\.0, 1\.0\): .*Give span=\(a, b\) with finite a < b"):
        rule.nodes(3, span=(1.0, 1.0))
    with pytest.raises(ValueError, match=r"span = \(0\.0, inf\)"):
        rule.nodes(3, span=(0.0, math.inf))
