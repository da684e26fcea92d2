"""How far an adaptive solve steps."""

import math

import pytest

from continua import SolveError
from continua.solve import StepSizeState

directions = pytest.mark.parametrize("sign", [1.0, -1.0], ids=["forwards", "backwards"])


@directions
def test_a_step_lands_on_a_stop_within_reach(sign):
    pace = StepSizeState(0.0, 0.4, [sign * 0.3, sign * 1.0], order=4)
    assert pace.aim() == sign * 0.3
    assert pace.accept(pace.aim(), 0.5)
    assert pace.z == sign * 0.3 and not pace.at_end
    assert pace.dz >= 0.4, "a step cut short says nothing against the length before"


@directions
def test_two_even_steps_rather_than_a_long_and_a_tiny_one(sign):
    pace = StepSizeState(0.0, 0.9, [sign * 1.0], order=4)
    assert pace.aim() == sign * 0.5
    assert not pace.accept(pace.aim(), 1.0)
    assert pace.z == sign * 0.5


@directions
def test_it_arrives_exactly(sign):
    pace = StepSizeState(0.0, 0.1, [sign * 0.7], order=4)
    for _ in range(100):
        if pace.at_end:
            break
        dz = pace.aim()
        pace.accept(dz, 0.9 * abs(dz / 0.1) ** 5)
    assert pace.z == sign * 0.7


@pytest.mark.parametrize("error", [0.0, 1e-300, 1e-3, 0.5, 1.0])
def test_the_next_step_is_neither_ten_times_longer_nor_five_times_shorter(error):
    pace = StepSizeState(0.0, 1e-3, [1.0], order=4)
    pace.accept(pace.aim(), error)
    assert 0.2e-3 <= pace.dz <= 10e-3
    assert (pace.dz > 1e-3) == (error < 0.6)


def test_right_after_a_rejection_no_step_is_longer():
    pace = StepSizeState(0.0, 0.1, [1.0], order=4)
    pace.refuse(pace.aim(), 3.0)
    shorter = pace.dz
    assert 0.02 <= shorter <= 0.09
    pace.accept(pace.aim(), 1e-8)
    assert pace.dz <= shorter
    pace.accept(pace.aim(), 1e-8)
    assert pace.dz > shorter


@pytest.mark.parametrize("error", [math.nan, math.inf, 1e300])
def test_an_error_beyond_measure_gives_the_shortest(error):
    pace = StepSizeState(0.0, 0.1, [1.0], order=4)
    pace.refuse(pace.aim(), error)
    assert pace.dz == pytest.approx(0.02)


@pytest.mark.parametrize(("error", "reason"), [(3.0, "underflowed"), (math.nan, "not finite however short")])
def test_rejections_end(error, reason):
    pace = StepSizeState(0.25, 0.1, [1.0], order=4)
    with pytest.raises(SolveError, match=reason) as failure:
        for _ in range(1000):
            pace.refuse(pace.aim(), error)
    assert failure.value.depth == 0.25
