"""Intervals of confidence: against scipy, and by how often they hold the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from continua.lab.intervals import Interval, bootstrap_slopes, slope_interval, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_the_quantile_is_that_of_scipy(freedom, level):
    assert student_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-10)


def test_the_interval_is_that_of_a_linear_regression():
    sizes, errors = [4, 8, 16, 32, 64], [0.26, 0.13, 0.061, 0.033, 0.0155]
    fit = stats.linregress(np.log(sizes), np.log(errors))
    half = stats.t.ppf(0.975, 3) * fit.stderr
    found = slope_interval(sizes, errors)
    assert found == pytest.approx((fit.slope, fit.slope - half, fit.slope + half), rel=1e-9)


def test_two_points_have_no_interval():
    with pytest.raises(ValueError, match="at least three"):
        slope_interval([1, 2], [1.0, 0.5])


def test_the_bootstrap_finds_both_slopes_and_covers_them():
    rng = np.random.default_rng(0)
    sizes = np.array([[L, H] for L in (8, 16, 32, 64) for H in (1, 4, 16)], dtype=float)
    rms = sizes[:, 0] ** -0.5 * sizes[:, 1] ** -0.25
    covered = np.zeros(2)
    for trial in range(40):
        squares = (rms[:, None] * rng.normal(size=(len(sizes), 40))) ** 2
        for place, (slope, truth) in enumerate(
            zip(bootstrap_slopes(sizes, squares, seed=trial), (-0.5, -0.25), strict=True)
        ):
            assert slope.low < slope.value < slope.high
            assert slope.value == pytest.approx(truth, abs=0.2)
            covered[place] += slope.low <= truth <= slope.high
    assert (covered >= 32).all()  # 95% is asked for; 80% of 40 would be a broken interval


def test_paired_seeds_cancel_what_they_share():
    shared = np.random.default_rng(1).lognormal(size=50)
    squares = np.outer([1.0, 0.25, 0.0625], shared)  # error ~ size^-1, the same luck at every size
    sizes = np.array([[1.0], [2.0], [4.0]])
    (loose,), (tight,) = bootstrap_slopes(sizes, squares), bootstrap_slopes(sizes, squares, paired=True)
    assert tight == pytest.approx((-1.0, -1.0, -1.0))
    assert loose.high - loose.low > 0.1


@pytest.mark.parametrize(
    ("sizes", "squares", "named"),
    [([[1.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]], "sizes"), ([[1.0], [2.0]], [[1.0], [1.0]], "squares")],
)
def test_what_cannot_be_fitted_is_refused(sizes, squares, named):
    with pytest.raises(ValueError, match=named):
        bootstrap_slopes(np.array(sizes), np.array(squares))


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        (Interval(2.0, 1.9, 2.1), "2.000 [1.900, 2.100]"),
        (Interval(1.9999871, 1.9999869, 1.9999873), "1.99998710 [1.99998690, 1.99998730]"),
        (Interval(2.0, 2.0, 2.0), "2.000 [2.000, 2.000]"),
        (Interval(1.0, 0.0, math.inf), "1.000 [0.000, inf]"),
        (Interval(math.nan, math.nan, math.nan), "nan [nan, nan]"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_an_interval_shows_the_digits_that_tell_its_ends_apart(interval, shown):
    assert str(interval) == shown
