"""Checks name the argument, its value, what it must be and how to pass it."""

import math

import pytest
import torch

from continua.core import checks
from continua.core.errors import ArgumentError


@pytest.mark.parametrize(
    "check, good, bad",
    [
        (lambda size: checks.at_least(1, size=size), [1, 7, None], [0, -1, 1.0, True]),
        (lambda size: checks.positive(size=size), [1e-9, 3, None], [0, -1.0, math.inf, math.nan]),
        (lambda size: checks.not_negative(size=size), [0, 1e-9, None], [-1e-9, math.inf, math.nan]),
        (lambda size: checks.finite(size=size), [-1e9, 0, None], [math.inf, -math.inf, math.nan]),
        (lambda size: checks.fraction(size=size), [0, 0.5, 1, None], [-0.1, 1.1, math.nan]),
        (lambda size: checks.fraction(none=False, size=size), [0.5, 1], [0, 1.1]),
        (lambda size: checks.fraction(all=False, size=size), [0, 0.5], [1, -0.1]),
        (lambda size: checks.divides(12, "width", size=size), [1, 4, 12], [0, 5, 24, -3]),
        (lambda size: checks.is_a(torch.Tensor, "Pass a tensor.", size=size), [torch.ones(1)], [torch.Tensor, "x", 1]),
        (
            lambda size: checks.has_shape((2, None), "Pass (2, any).", size=size),
            [torch.ones(2, 1), torch.ones(2, 5), None],
            [torch.ones(2), torch.ones(1, 2), torch.ones(2, 1, 1)],
        ),
    ],
)
def test_good_values_pass_and_bad_ones_are_named(check, good, bad):
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ArgumentError, match=r"^size = ") as error:
            check(value)
        assert "Pass" in str(error.value)


def test_every_value_is_checked():
    with pytest.raises(ValueError, match=r"heads = 0: it must be a whole number, at least 1\. Pass heads >= 1\."):
        checks.at_least(1, width=4, heads=0)


def test_divisors_are_named():
    with pytest.raises(ValueError, match="Pass one of 1, 2, 3, 6"):
        checks.divides(6, "width", heads=4)


def test_the_first_bad_entry_is_named():
    x = torch.tensor([[1.0, 2.0], [-1.0, -3.0]])
    checks.refuse_where(x > 5.0, "too large", "Pass less.", x=x)
    with pytest.raises(ArgumentError, match=r"^x\[1, 0\] = -1\.0: it is negative\. Pass more\.$"):
        checks.refuse_where(x < 0.0, "it is negative", "Pass more.", x=x)
