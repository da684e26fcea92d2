"""B-splines against scipy, and what they mean for steps."""

import numpy as np
import pytest
import torch
from scipy import interpolate, stats

from continua.core.slopes import fitted_slope
from continua.fields import Expansion
from continua.model import Flow, Part
from continua.operators import FeedForward
from continua.solve import RK4, Direct, DormandPrince, Fixed, integrate
from continua.spaces import BSpline, Cloud

depths = torch.linspace(0.0, 1.0, 41, dtype=torch.float64)
SIZES = [(1, 0), (5, 0), (2, 1), (5, 1), (9, 2), (4, 3), (8, 3), (6, 5)]


@pytest.mark.parametrize(("size", "degree"), SIZES)
def test_splines_equal_those_of_scipy(size, degree):
    inner = np.arange(size - degree + 1) / (size - degree)
    knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    expected = interpolate.BSpline.design_matrix(depths.numpy(), knots, degree).toarray()
    found = BSpline(size, degree).evaluate(depths).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("degree", [0, 1, 3, 6])
def test_the_smallest_are_bernstein_polynomials(degree):
    expected = stats.binom.pmf(np.arange(degree + 1), degree, depths.numpy()[:, None])
    np.testing.assert_allclose(BSpline(degree + 1, degree).evaluate(depths).numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("size", "degree"), SIZES)
def test_splines_are_positive_local_and_sum_to_one(size, degree):
    values = BSpline(size, degree).evaluate(depths)
    assert float(values.min()) >= 0.0 and int((values > 0).sum(-1).max()) <= degree + 1
    torch.testing.assert_close(values.sum(-1), torch.ones_like(depths), rtol=0, atol=1e-14)


def test_breaks_are_the_jumps_and_kinks():
    assert BSpline(4, 0).breaks == (0.25, 0.5, 0.75)
    assert BSpline(4, 1).breaks == pytest.approx((1 / 3, 2 / 3))
    assert BSpline(2, 1).breaks == BSpline(9, 2).breaks == BSpline(9).breaks == ()


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("method", [RK4(), DormandPrince()], ids=repr)
def test_a_flow_keeps_the_order_of_its_steps(degree, method):
    """Knots at depths that no even grid meets; smooth knots of degree d let through order d + 1."""
    operator = FeedForward(hidden=6, biased=False)
    field = Expansion(operator.spec(3), BSpline(3 + degree, degree), 1.0, torch.Generator().manual_seed(2)).double()
    field.coefficients["w1"].data *= 1.5  # fast enough for order 5 to stay above rounding
    cloud = Cloud(torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    flow, counts = Flow([Part(operator, field)]).eval(), [6, 12, 24, 48]

    def end(steps: int) -> torch.Tensor:
        bound = flow.bind(cloud)
        with torch.no_grad():
            return integrate(bound, bound.initial(), (0.0, 1.0), method, Fixed(steps), Direct()).x

    best = end(128)
    errors = [float((end(n) - best).abs().max()) for n in counts]
    order = method.order if degree <= 1 else min(method.order, degree + 1)
    assert -fitted_slope([float(n) for n in counts], errors) > order - 0.35


def test_bad_splines_are_named():
    with pytest.raises(ValueError, match=r"degree = -1: .*Pass degree >= 0"):
        BSpline(3, -1)
    with pytest.raises(ValueError, match=r"size = 3: splines of degree 3 need 4 functions\. Pass size >= 4"):
        BSpline(3, 3)
    with pytest.raises(ValueError, match=r"z = 2\.0: .*outside \[0, 1\]"):
        BSpline(4).evaluate(2.0)
