import math

import pytest
import torch
from scipy import integrate

from continua.core.slopes import fitted_slope
from continua.spaces import AbstractSampleRule, Counting, Trapezoid, Uniform
from continua.spaces.measure import checked_samples
from registries import all_rules

sample_rules = [rule for rule in all_rules if isinstance(rule, AbstractSampleRule)]
each_rule = pytest.mark.parametrize("rule", sample_rules, ids=repr)


def warped(count: int) -> torch.Tensor:
    """Irregular times in (0, 1], the last one 1, from a smooth map of equal steps."""
    s = torch.arange(1, count + 1, dtype=torch.float64) / count
    return torch.expm1(1.5 * s)[None] / math.expm1(1.5)


@each_rule
def test_order_of_the_normalised_integral(rule):
    """`Uniform` claims its order on equal steps; `Counting`, of order 0, stalls on unequal ones."""
    counts, errors = [16, 32, 64, 128, 256], []
    for count in counts:
        times = warped(count)
        if isinstance(rule, Uniform):
            times = torch.arange(count, dtype=torch.float64)[None] / count
        if rule.order == 2.0:  # trapezoids integrate from their first sample
            times = torch.cat([torch.zeros(1, 1, dtype=torch.float64), times], dim=1)
        mass = rule.mass(times)
        errors.append(abs(float((mass * times.exp()).sum() / mass.sum()) - math.expm1(1.0)))
    assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(rule.order, abs=0.2)


def test_trapezoid_equals_scipy():
    times = torch.rand(3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).sort(dim=1).values
    values = torch.sin(5 * times)
    expected = integrate.trapezoid(values.numpy(), times.numpy(), axis=1)
    torch.testing.assert_close((Trapezoid().mass(times) * values).sum(1), torch.from_numpy(expected))


def test_uniform_and_counting():
    times = torch.tensor([[0.0, 1.0, 5.0, 5.0]])
    present = torch.tensor([[True, True, True, False]])
    assert Uniform().mass(times, present).tolist() == torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]]).tolist()
    assert Counting().mass(times, present).tolist() == [[1.0, 1.0, 1.0, 0.0]]


@each_rule
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -7.0])
def test_ragged_rows_are_weighted_as_if_unpadded(rule, garbage):
    times, lengths = warped(6), [6, 4, 2, 1, 0]
    present = torch.arange(6) < torch.tensor(lengths)[:, None]
    mass = rule.mass(torch.where(present, times, garbage), present)
    for row, length in enumerate(lengths):
        assert torch.equal(mass[row, length:], torch.zeros(6 - length, dtype=torch.float64))
        assert torch.equal(mass[row : row + 1, :length], rule.mass(times[:, :length]))


@each_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masses_are_positive_where_present_and_keep_the_dtype(rule, dtype):
    mass = rule.mass(warped(7).to(dtype))
    assert mass.dtype == dtype
    assert bool((mass > 0).all())
    assert rule.mass(torch.zeros(2, 0, dtype=dtype)).shape == (2, 0)


@each_rule
def test_a_single_token_has_mass(rule):
    assert float(rule.mass(torch.tensor([[0.4]]))) > 0


def test_a_single_token_has_mass_one_under_the_trapezoid():
    assert Trapezoid().mass(torch.tensor([[0.4]])).tolist() == [[1.0]]


@each_rule
def test_masses_are_differentiable_in_the_positions(rule):
    times = warped(5).repeat(2, 1).requires_grad_()
    present = torch.tensor([[True] * 5, [True, True, True, False, False]])
    if isinstance(rule, Uniform | Counting):
        assert not rule.mass(times, present).requires_grad
    else:
        assert torch.autograd.gradcheck(lambda t: rule.mass(t, present), (times,))


@each_rule
def test_absent_nan_leaves_the_gradient_clean(rule):
    times = torch.tensor([[0.2, 0.7, math.nan]], requires_grad=True)
    mass = rule.mass(times, torch.tensor([[True, True, False]]))
    if mass.requires_grad:
        (mass * torch.tensor([1.0, 3.0, 5.0])).sum().backward()
        assert times.grad is not None
        assert bool(torch.isfinite(times.grad).all())
        assert float(times.grad[0, 2]) == 0.0


def test_tied_tokens_share_the_mass_of_their_time():
    times = torch.tensor([[0.0, 0.5, 0.5, 0.5, 2.0, 2.0, 9.0]], dtype=torch.float64)
    present = torch.tensor([[True] * 6 + [False]])
    expected = torch.tensor([[0.25, 1 / 3, 1 / 3, 1 / 3, 0.375, 0.375, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(Trapezoid().mass(times, present), expected)


def test_a_row_at_one_time_has_no_trapezoid():
    times = torch.tensor([[0.0, 1.0], [0.25, 0.25]])
    message = r"times\[1\] = \[0\.25, 0\.25\]: .*total mass is zero\. .*Counting\(\) or Uniform\(\)"
    with pytest.raises(ValueError, match=message):
        Trapezoid().mass(times)


@each_rule
def test_bad_positions_are_named(rule):
    with pytest.raises(ValueError, match=r"times\[0, 2\] = 2\.0: it comes after a token at 3\.0.*Sort each"):
        rule.mass(torch.tensor([[1.0, 3.0, 2.0]]))
    with pytest.raises(ValueError, match=r"times\[1, 0\] = nan: .*finite time\. Drop the token, or mark it"):
        rule.mass(torch.tensor([[1.0, 2.0], [math.nan, 2.0]]))
    with pytest.raises(ValueError, match=r"times\[0, 1\] = inf: "):
        rule.mass(torch.tensor([[1.0, math.inf]]))
    present = torch.tensor([[True, False, True]])
    with pytest.raises(ValueError, match=r"present\[0, 1\] = False: .*Move the absent tokens to the end"):
        rule.mass(torch.tensor([[1.0, 2.0, 3.0]]), present)


@pytest.mark.parametrize(
    ("positions", "present", "message"),
    [
        (torch.arange(3)[None], None, r"times = torch\.int64: .*Use times\.to\(torch\.float32\)"),
        (torch.zeros(3), None, r"times = \(3,\): .*use times\[None\] for one sequence"),
        (torch.zeros(1, 3), torch.ones(1, 3), r"present = torch\.float32: .*Use present\.bool\(\)"),
        (torch.zeros(1, 3), torch.ones(1, 2) > 0, r"present = \(1, 2\): the shape must be \(1, 3\).*times"),
    ],
)
def test_bad_forms_are_named(positions, present, message):
    """Asked below the rules, as the shape words of `mass` are checked in tests only."""
    with pytest.raises(ValueError, match=message):
        checked_samples(positions, present)
