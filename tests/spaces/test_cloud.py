import copy
import math

import pytest
import torch

from continua.spaces import CausalTrapezoid, Cloud, Measure, Trapezoid

X = torch.arange(24.0).view(2, 3, 4) / 10
ONES = torch.ones(2, 3)
TIMES = torch.tensor([[0.0, 1.0, 3.0], [0.5, 0.5, 2.0]])


def test_the_first_sequences_are_those_of_a_batch_without_the_others():
    generator = torch.Generator().manual_seed(0)
    points, mass = torch.rand(3, 4, 2, generator=generator), torch.rand(3, 4, generator=generator) + 0.1
    mass[0, 2:], mass[1, 3:] = 0.0, 0.0
    own = mass / 2
    times = torch.arange(4.0).expand(3, -1).clone()
    few, alone = Cloud(points, mass, times, own).first(2), Cloud(points[:2], mass[:2], times[:2], own[:2])
    assert torch.equal(few.points, alone.points) and torch.equal(few.mass, alone.mass)
    assert torch.equal(few.present, alone.present) and torch.equal(few.positions, alone.positions)
    torch.testing.assert_close(few.measure.log_own, alone.measure.log_own)
    plain = Cloud(points).first(1)
    assert torch.equal(plain.points, points[:1]) and plain.mass is plain.positions is plain.present is None
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"count = {count}: .*Pass count >= 1"):
            Cloud(points).first(count)


def test_a_cloud_holds_what_it_was_given():
    mass, own = torch.tensor([[1.0, 2.0, 0.5], [1.0, 0.0, 3.0]]), torch.tensor([[0.5, 1.0, 0.2], [1.0, 0.0, 2.0]])
    cloud = Cloud(X, mass, TIMES, own)
    assert cloud.mass is mass and cloud.positions is TIMES
    assert cloud.present is not None and torch.equal(cloud.present, mass > 0)
    measure = cloud.measure
    assert measure.log_mass is not None and measure.log_own is not None
    torch.testing.assert_close(measure.log_mass.exp(), mass)
    torch.testing.assert_close(measure.log_own.exp(), own)
    assert measure.shape == (2, 3) and measure.tensors == (measure.log_mass, measure.log_own, TIMES)


def test_the_counting_measure_needs_nothing():
    cloud = Cloud(X)
    assert cloud.points is X and cloud.mass is None and cloud.positions is None and cloud.present is None
    measure = cloud.measure
    assert measure.log_mass is None and measure.tensors == () and measure.weights() is None
    assert measure.uniform and measure.suffix and not measure.tied


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_equal_masses_cancel(scale):
    measure = Cloud(X, scale * ONES).measure
    assert measure.uniform and measure.log_mass is None and measure.weights() is None
    mixed = Cloud(X, torch.tensor([[1.0], [2.0]]).expand(2, 3)).measure
    assert mixed.uniform and mixed.log_mass is None


def test_equal_masses_that_ask_for_a_gradient_do_not_cancel():
    measure = Cloud(X, ONES.clone().requires_grad_()).measure
    assert not measure.uniform and measure.log_mass is not None and measure.log_mass.requires_grad


def test_absent_tokens_are_marked_and_silenced():
    points = X.clone()
    points[0, 2] = math.nan
    points[1, 1] = math.inf
    cloud = Cloud(points, torch.tensor([[1.0, 1.0, 0.0], [2.0, 0.0, 1.0]]))
    assert cloud.present is not None and cloud.present.tolist() == [[True, True, False], [True, False, True]]
    assert bool((cloud.points[0, 2] == 0).all()) and bool((cloud.points[1, 1] == 0).all())
    assert torch.equal(cloud.points[0, :2], X[0, :2])
    assert not cloud.measure.suffix and not cloud.measure.uniform
    assert Cloud(X, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).measure.suffix


def test_absent_tokens_have_finite_logarithms_with_zero_gradient():
    mass = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1e-30, 1.0]], requires_grad=True)
    log_mass = Cloud(X, mass).measure.log_mass
    assert log_mass is not None and bool(torch.isfinite(log_mass).all())
    assert bool((log_mass.exp()[mass == 0] == 0).all())
    log_mass.sum().backward()
    assert mass.grad is not None
    torch.testing.assert_close(mass.grad, torch.tensor([[1.0, 0.5, 0.0], [0.0, 1e30, 1.0]]))


def test_weights_sum_to_one_and_carry_no_graph():
    mass = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.5, 0.5]], requires_grad=True)
    weights = Cloud(X, mass).measure.weights()
    assert weights is not None and not weights.requires_grad
    torch.testing.assert_close(weights, torch.tensor([[1 / 3, 2 / 3, 0.0], [1 / 3, 1 / 3, 1 / 3]]))


@pytest.mark.parametrize(
    ("positions", "mass", "tied"),
    [
        ([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], None, False),
        ([[0.0, 1.0, 2.0], [0.0, 2.0, 2.0]], None, True),
        ([[0.0, 1.0, 1.0], [0.0, 1.0, 2.0]], [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], False),
        ([[1.0, 5.0, 1.0], [0.0, 1.0, 2.0]], [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], True),
    ],
    ids=["increasing", "a tie", "a tie with an absent token", "a tie across an absent token"],
)
def test_ties_are_of_present_tokens(positions, mass, tied):
    masses = None if mass is None else torch.tensor(mass)
    assert Cloud(X, masses, torch.tensor(positions)).measure.tied is tied


def test_absent_tokens_may_have_any_position():
    mass = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    Cloud(X, mass, torch.tensor([[0.0, 9.0, 1.0], [0.0, 1.0, math.nan]]))


def test_other_states_stand_on_the_same_measure():
    cloud = Cloud(X, ONES, TIMES)
    moved = cloud.at(X + 1)
    assert moved.measure is cloud.measure and torch.equal(moved.points, X + 1)
    assert Cloud.on(X, cloud.measure).measure is cloud.measure


def test_clouds_do_not_change_and_are_equal_to_themselves():
    cloud = Cloud(X, ONES, TIMES)
    with pytest.raises(AttributeError):
        cloud.points = X  # pyright: ignore[reportAttributeAccessIssue]
    assert cloud == cloud and cloud != Cloud(X, ONES, TIMES) and len({cloud, cloud}) == 1
    twin = copy.deepcopy(cloud)
    assert torch.equal(twin.points, cloud.points) and twin.measure is not cloud.measure


def test_gradients_reach_points_but_not_those_of_absent_tokens():
    points = X.clone().requires_grad_()
    Cloud(points, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).points.sum().backward()
    assert points.grad is not None
    assert points.grad[0, 2].tolist() == [0.0] * 4 and points.grad[1, 2].tolist() == [1.0] * 4


# --- sequences of different lengths


def test_ragged_sequences_are_padded_at_the_end():
    rows = [X[0], X[1, :1]]
    cloud = Cloud.from_ragged(rows)
    assert cloud.mass is not None and cloud.mass.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert torch.equal(cloud.points[0], X[0]) and torch.equal(cloud.points[1, :1], X[1, :1])
    assert bool((cloud.points[1, 1:] == 0).all())
    assert cloud.positions is None and cloud.measure.uniform is True and cloud.measure.suffix


def test_ragged_sequences_of_one_length_are_the_counting_measure():
    assert Cloud.from_ragged([X[0], X[1]]).measure.log_mass is None


def test_ragged_masses_and_positions():
    times = [torch.tensor([0.0, 1.0, 4.0]), torch.tensor([2.0, 3.0])]
    mass = [Trapezoid().mass(t[None])[0] for t in times]
    own = [CausalTrapezoid().own(t[None])[0] for t in times]
    cloud = Cloud.from_ragged([X[0], X[1, :2]], mass, times, own)
    assert cloud.positions is not None and cloud.positions.tolist() == [[0.0, 1.0, 4.0], [2.0, 3.0, 3.0]]
    assert cloud.mass is not None and cloud.mass.tolist() == [[0.5, 2.0, 1.5], [0.5, 0.5, 0.0]]
    assert cloud.measure.log_own is not None and not cloud.measure.tied
    torch.testing.assert_close(cloud.measure.log_own.exp(), torch.tensor([[1.0, 0.5, 1.5], [1.0, 0.5, 0.0]]))


def test_gradients_reach_ragged_parts():
    rows, masses = [X[0].clone().requires_grad_(), X[1, :1].clone().requires_grad_()], [torch.ones(3), torch.ones(1)]
    masses[0].requires_grad_()
    cloud = Cloud.from_ragged(rows, masses)
    assert cloud.mass is not None
    (cloud.points.sum() + cloud.mass.sum()).backward()
    assert all(part.grad is not None and bool((part.grad == 1).all()) for part in (*rows, masses[0]))


# --- bad input, as users meet it: without the shape checker of the tests

LONG = torch.ones(2, 3).double()
HOLE = X.clone().index_put_((torch.tensor(1), torch.tensor(0), torch.tensor(2)), torch.tensor(math.nan))

bad = {
    "two axes": ((X[0],), r"points = \(3, 4\): .*Pass a tensor of shape \(batch, tokens, width\).*x\.unsqueeze\(0\)"),
    "integers": ((X.long(),), r"points = torch\.int64: .*neither float32 nor float64\. Convert with points\.to"),
    "half precision": ((X.half(),), r"points = torch\.float16: .*Convert with points\.to\(torch\.float32\)"),
    "bfloat16": ((X.bfloat16(),), r"points = torch\.bfloat16: "),
    "complex": ((X.to(torch.complex64),), r"points = torch\.complex64: "),
    "no token": ((X[:, :0],), r"points = \(2, 0, 4\): the cloud is empty\. Each axis"),
    "nan": ((HOLE,), r"points\[1, 0, 2\] = nan: .*not finite\. Remove or impute the token, or give it zero mass"),
    "inf": ((X / 0.0,), r"points\[0, 0, 1\] = inf: |points\[0, 0, 0\] = nan: "),
    "nan, present": ((HOLE, ONES), r"points\[1, 0, 2\] = nan: "),
    "mass of one sequence": ((X, ONES[0]), r"mass = \(3,\): .*Pass one number per token: shape \(2, 3\)"),
    "mass of other tokens": ((X, torch.ones(2, 4)), r"mass = \(2, 4\): the shape must be \(2, 3\)"),
    "mass, another dtype": ((X, LONG), r"mass = 'torch\.float64 on cpu': .*float32 on cpu\. Convert with mass\.to"),
    "mass, integers": ((X, ONES.long()), r"mass = 'torch\.int64 on cpu': .*Convert with mass\.to\(points\)"),
    "mass, another device": ((X, ONES.to("meta")), r"mass = 'torch\.float32 on meta': points has .* on cpu"),
    "negative mass": ((X, ONES - 2 * torch.eye(2, 3)), r"mass\[0, 0\] = -1\.0: this is no mass\. Pass finite masses"),
    "mass nan": ((X, ONES * math.nan), r"mass\[0, 0\] = nan: this is no mass"),
    "mass inf": ((X, ONES / 0.0), r"mass\[0, 0\] = inf: this is no mass"),
    "masses that overflow": (
        (X, ONES * 3e38),
        r"mass\[0\] = .*their sum overflows in torch\.float32\. Divide the masses of a sequence by their largest",
    ),
    "no mass": ((X, 0 * ONES), r"mass\[0\] = \[0\.0, 0\.0, 0\.0\]: .*no mass at all\. Give at least one token"),
    "a sequence without mass": (
        (X, torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])),
        r"mass\[1\] = \[0\.0, 0\.0, 0\.0\]: .*leave the sequence out of the batch",
    ),
    "positions, shape": ((X, None, TIMES[:, :2]), r"positions = \(2, 2\): .*shape \(2, 3\)"),
    "positions, integers": ((X, None, TIMES.long()), r"positions = 'torch\.int64 on cpu': .*positions\.to\(points\)"),
    "positions, unsorted": (
        (X, None, torch.tensor([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0]])),
        r"positions\[0, 2\] = 1\.0: it comes after a token at 2\.0, .*Sort each.*argsort\(dim=-1, stable=True\)",
    ),
    "positions, unsorted across an absent token": (
        (X, torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]), torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 2.0]])),
        r"positions\[0, 2\] = 1\.0: it comes after a token at 2\.0",
    ),
    "positions, nan": (
        (X, None, torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]])),
        r"positions\[0, 1\] = nan: .*finite time\. Drop the token, or give it zero mass",
    ),
    "positions, infinite": ((X, None, TIMES / 0.0), r"positions\[0, 0\] = nan: |positions\[0, 1\] = inf: "),
    "own, shape": ((X, None, None, ONES[:1]), r"own = \(1, 3\): "),
    "own, negative": ((X, None, None, -ONES), r"own\[0, 0\] = -1\.0: this is no mass"),
    "own without mass": (
        (X, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), None, ONES),
        r"own\[0, 2\] = 1\.0: .*exactly where it has mass.*Give own and mass their zeros at the same tokens",
    ),
    "mass without own": (
        (X, ONES, None, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])),
        r"own\[0, 2\] = 0\.0: .*exactly where it has mass",
    ),
    "nothing of one's own": (
        (X, None, None, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])),
        r"own\[0, 2\] = 0\.0: .*exactly where it has mass",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("arguments", "message"), bad.values(), ids=bad.keys())
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Cloud(*arguments)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named_where_gradients_are_asked():
    mass = (ONES - 2).requires_grad_()
    with pytest.raises(ValueError, match=r"mass\[0, 0\] = -1\.0"):
        Cloud(HOLE.clone().requires_grad_(), mass)
    with pytest.raises(ValueError, match=r"points\[1, 0, 2\] = nan"):
        Cloud(HOLE.clone().requires_grad_())
    with pytest.raises(ValueError, match=r"mass\[0\] = \[0\.0"):
        Cloud(X, (0 * ONES).requires_grad_())


bad_rows = {
    "nothing": (([],), r"sequences = \[\]: there is no sequence\. Pass at least one tensor \(tokens, width\)"),
    "one axis": (([X[0, 0]],), r"sequences\[0\] = \(4,\): .*Pass tensors \(tokens, width\)"),
    "no token": (([X[0], X[0, :0]],), r"sequences\[1\] = \(0, 4\): .*at least one token"),
    "another width": (([X[0], X[1, :, :2]],), r"sequences\[1\] = \(3, 2\): .*of one width"),
    "another dtype": (([X[0], X[1].double()],), r"sequences\[1\] = 'torch\.float64 on cpu': sequences\[0\] has "),
    "fewer masses": (([X[0], X[1]], [ONES[0]]), r"mass = 1: there are 2 sequences\. Pass one tensor"),
    "shorter masses": (([X[0], X[1]], [ONES[0], ONES[0, :2]]), r"mass\[1\] = \(2,\): .*each of the 3 tokens"),
    "shorter times": (([X[0]], None, [TIMES[0, :2]]), r"positions\[0\] = \(2,\): .*each of the 3 tokens"),
    "shorter own": (([X[0]], None, None, [ONES[0, :2]]), r"own\[0\] = \(2,\): .*Pass one number for each"),
    "masses, another dtype": (([X[0]], [LONG[0]]), r"mass = 'torch\.float64 on cpu': "),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("arguments", "message"), bad_rows.values(), ids=bad_rows.keys())
def test_bad_rows_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Cloud.from_ragged(*arguments)


def test_a_measure_can_be_made_alone():
    measure = Measure.of((2, 3), X, ONES, TIMES)
    assert measure.shape == (2, 3) and measure.tied and measure.log_mass is None


def test_a_cloud_moves_to_another_precision_with_all_it_holds():
    mass = torch.tensor([[0.5, 1.0, 0.0]], dtype=torch.float64)
    own = torch.tensor([[0.25, 0.5, 0.0]], dtype=torch.float64)
    cloud = Cloud(torch.randn(1, 3, 2, dtype=torch.float64), mass, torch.tensor([[0.0, 1.0, 1.0]]).double(), own)
    moved = cloud.to("cpu", torch.float32)
    assert moved.points.dtype == moved.mass.dtype == moved.positions.dtype == torch.float32
    torch.testing.assert_close(moved.measure.log_own.double(), cloud.measure.log_own)
    assert moved.present.tolist() == cloud.present.tolist() == [[True, True, False]]
