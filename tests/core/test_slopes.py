import numpy as np
import pytest

from continua.core.slopes import fitted_slope


def test_a_power_law_gives_its_exponent():
    sizes = [2.0**-k for k in range(2, 8)]
    assert fitted_slope(sizes, [3.0 * h**2.5 for h in sizes]) == pytest.approx(2.5, abs=1e-13)


def test_counts_give_minus_the_order():
    assert fitted_slope([4.0, 8.0, 16.0], [1.0, 0.25, 0.0625]) == pytest.approx(-2.0, abs=1e-13)


def test_equals_the_fit_of_numpy():
    rng = np.random.default_rng(0)
    sizes, errors = rng.uniform(0.1, 1.0, 7), rng.uniform(0.1, 1.0, 7)
    expected = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert fitted_slope(sizes.tolist(), errors.tolist()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("sizes", "errors", "message"),
    [
        ([1.0, 0.5], [1.0], r"errors = \[1.0\]: there are 2 sizes\. Give one error for each size"),
        ([1.0, 0.5], [1.0, 0.0], r"errors = 0\.0: .*Leave out the sizes at which the error has reached zero"),
        ([1.0, 0.5], [1.0, float("nan")], r"errors = nan: .*logarithm"),
        ([1.0, -0.5], [1.0, 0.1], r"sizes = -0\.5: .*Give positive, finite sizes"),
        ([0.5, 0.5], [1.0, 0.1], r"sizes = \[0\.5, 0\.5\]: .*two different sizes"),
    ],
)
def test_bad_input_is_named(sizes, errors, message):
    with pytest.raises(ValueError, match=message):
        fitted_slope(sizes, errors)
