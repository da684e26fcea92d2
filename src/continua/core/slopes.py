"""The measured order of a method: one fit that serves the tests and the lab."""

import math
import statistics
from collections.abc import Sequence

from continua.core.errors import reject


def fitted_slope(sizes: Sequence[float | int], errors: Sequence[float]) -> float:
    r"""Least-squares slope of `log(error)` against `log(size)`.

        error = C size^slope   =>   slope = cov(log size, log error) / var(log size)

    With step sizes `h` the slope is the order of the method; with counts `n = 1/h` it is minus the order.
    Equivalent to `numpy.polyfit(log(sizes), log(errors), 1)[0]`.
    """
    if len(sizes) != len(errors):
        reject("errors", errors, f"there are {len(sizes)} sizes", "Give one error for each size.")
    cures = ("Give positive, finite sizes.", "Leave out the sizes at which the error has reached zero or overflowed.")
    for name, values, cure in zip(("sizes", "errors"), (sizes, errors), cures, strict=True):
        for value in values:
            if not (value > 0 and math.isfinite(value)):
                reject(name, value, "it has no finite logarithm", cure)
    if len(set(sizes)) < 2:
        reject("sizes", sizes, "a slope needs two different sizes", "Give at least two, better five, sizes.")
    return statistics.linear_regression([math.log(s) for s in sizes], [math.log(e) for e in errors]).slope
