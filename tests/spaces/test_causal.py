import math

import pytest
import torch
from scipy import integrate

from continua.core.slopes import fitted_slope
from continua.model import transformer
from continua.spaces import AbstractCausalRule, BackwardRectangle, CausalTrapezoid, Trapezoid
from registries import all_rules

causal_rules = [rule for rule in all_rules if isinstance(rule, AbstractCausalRule)]
each_rule = pytest.mark.parametrize("rule", causal_rules, ids=repr)
counts = [16, 32, 64, 128, 256]


def warped(count: int) -> torch.Tensor:
    """Irregular times in (0, 1] from a smooth map of equal steps."""
    s = torch.arange(1, count + 1, dtype=torch.float64) / count
    return torch.expm1(1.5 * s)[None] / math.expm1(1.5)


def rows(rule: AbstractCausalRule, times: torch.Tensor) -> torch.Tensor:
    """The measure of every query: columns below the diagonal, own masses on it."""
    mass = rule.mass(times)[0]
    own = rule.own(times)
    return mass.expand(len(mass), -1).tril(-1) + torch.diag(mass if own is None else own[0])


def origin(rule: AbstractCausalRule, times: torch.Tensor) -> float:
    """Where the running integrals of the rule begin."""
    return rule.start if isinstance(rule, BackwardRectangle) else float(times[0, 0])


@each_rule
def test_order_of_all_running_integrals(rule):
    errors = []
    for count in counts:
        times = warped(count)
        exact = times[0].exp() - math.exp(origin(rule, times))
        # Row 1 of the trapezoid has mass 1 for an interval of no length; its average is tested below.
        errors.append(float((rows(rule, times) @ times[0].exp() - exact)[1:].abs().max()))
    assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(rule.order, abs=0.2)


@each_rule
def test_order_of_all_running_averages(rule):
    errors = []
    for count in counts:
        times = warped(count)
        start = origin(rule, times)
        measures, values = rows(rule, times), times[0].exp()
        length = times[0] - start
        exact = torch.where(length == 0, values, (values - math.exp(start)) / length)
        errors.append(float((measures @ values / measures.sum(1) - exact).abs().max()))
    assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(rule.order, abs=0.2)


def test_masking_the_global_trapezoid_is_first_order_only():
    errors = []
    for count in counts:
        times = warped(count)
        masked = Trapezoid().mass(times)[0].expand(count, -1).tril()
        length = times[0] - times[0, 0]
        exact = (times[0].exp() - times[0, 0].exp()) / length
        errors.append(float((masked @ times[0].exp() / masked.sum(1) - exact)[1:].abs().max()))
    assert fitted_slope([1 / count for count in counts], errors) == pytest.approx(1.0, abs=0.2)


@each_rule
def test_later_positions_do_not_change_earlier_rows(rule):
    before, generator = warped(9), torch.Generator().manual_seed(0)
    for row in range(9):
        after = before.clone()
        after[0, row + 1 :] += torch.rand(8 - row, dtype=torch.float64, generator=generator).cumsum(0)
        assert torch.equal(rows(rule, before)[: row + 1], rows(rule, after)[: row + 1])


@each_rule
def test_own_is_ragged_like_the_masses(rule):
    times, lengths = warped(6), [6, 3, 1, 0]
    present = torch.arange(6) < torch.tensor(lengths)[:, None]
    own = rule.own(torch.where(present, times, math.nan), present)
    if own is None:
        return
    for row, length in enumerate(lengths):
        assert torch.equal(own[row, length:], torch.zeros(6 - length, dtype=torch.float64))
        assert torch.equal(own[row : row + 1, :length], rule.own(times[:, :length]))


def test_causal_trapezoid_equals_scipy():
    times = warped(12)
    values = torch.sin(7 * times[0])
    expected = integrate.cumulative_trapezoid(values.numpy(), times[0].numpy())
    torch.testing.assert_close((rows(CausalTrapezoid(), times) @ values)[1:], torch.from_numpy(expected))


def test_causal_trapezoid_formulas():
    times = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    assert CausalTrapezoid().mass(times).tolist() == [[0.5, 1.5, 3.0, 2.0]]
    own = CausalTrapezoid().own(times)
    assert own.tolist() == [[1.0, 0.5, 1.0, 2.0]]


def test_own_is_differentiable_in_the_positions():
    times = warped(5).requires_grad_()
    assert torch.autograd.gradcheck(CausalTrapezoid().own, (times,))


def test_backward_rectangle_formulas():
    assert BackwardRectangle().mass(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[1.0, 1.0, 1.0]]
    assert BackwardRectangle(start=-1.0).mass(torch.tensor([[0.0, 2.0, 5.0]])).tolist() == [[1.0, 2.0, 3.0]]
    assert BackwardRectangle().own(torch.tensor([[1.0, 2.0]])) is None


def test_tied_tokens_share_under_the_backward_rectangle():
    times = torch.tensor([[1.0, 1.0, 4.0, 4.0, 4.0, 5.0]])
    assert BackwardRectangle().mass(times).tolist() == [[0.5, 0.5, 1.0, 1.0, 1.0, 1.0]]


def test_a_first_sample_at_the_start_is_refused():
    present = torch.tensor([[True, True], [False, False]])
    times = torch.tensor([[0.5, 1.0], [-1.0, -1.0]])
    assert BackwardRectangle().mass(times, present).tolist() == [[0.5, 0.5], [0.0, 0.0]]
    message = r"times\[0, 0\] = 0\.5: a first sample has no mass unless .*start = 0\.5\. Choose an earlier start"
    with pytest.raises(ValueError, match=message):
        BackwardRectangle(start=0.5).mass(times, present)


@pytest.mark.parametrize("ask", [CausalTrapezoid().mass, CausalTrapezoid().own], ids=["mass", "own"])
def test_a_sequence_with_ties_has_rectangles_under_the_causal_trapezoid(ask):
    times = torch.tensor([[1.0, 3.0, 3.0, 4.0], [2.0, 2.0, 5.0, 6.0], [7.0, 7.0, 7.0, 7.0], [1.0, 2.0, 3.0, 5.0]])
    found = ask(times)
    assert found[:3].tolist() == [[2.0, 1.0, 1.0, 1.0], [1.5, 1.5, 3.0, 1.0], [0.25] * 4]
    assert torch.equal(found[3:], ask(times[3:]))  # whatever its batch mates
    padded = ask(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[True, True, False]]))
    assert torch.equal(padded[:, :2], ask(torch.tensor([[1.0, 2.0]])))


def test_tied_tokens_of_a_causal_model_learn_nothing_of_later_times():
    torch.manual_seed(0)
    model = transformer(16, 3, features=1, causal=True, per_token=True, axis=2, heads=2).eval()
    values, times = torch.randn(1, 6, 1), torch.tensor([[0.1, 0.1, 0.3, 0.5, 0.5, 0.9]])
    later = torch.tensor([[0.1, 0.1, 0.3, 0.5, 0.5, 0.6]])
    torch.testing.assert_close(model(values, times)[:, :5], model(values, later)[:, :5])
    other = values.clone()
    other[:, 3:] += 1.0
    torch.testing.assert_close(model(values, times)[:, :3], model(other, times)[:, :3])
