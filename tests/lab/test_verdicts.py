"""Verdicts: what holds, fails or stays open."""

import math

import pytest

from continua.lab.intervals import Interval
from continua.lab.verdicts import Word, all_of, at_least, at_most, equals, once_converged, stays_below


@pytest.mark.parametrize(
    ("value", "word"), [(0.9, Word.HOLDS), (1.0, Word.HOLDS), (1.1, Word.FAILS), (math.nan, Word.FAILS)]
)
def test_a_number_against_its_limit(value, word):
    judgement = at_most("error", value, 1.0)
    assert judgement.word is word and "error" in judgement.reason
    assert at_least("gain", -value, -1.0).word is word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.7, -0.5, Word.HOLDS),
        (-0.5, -0.28, Word.HOLDS),
        (-0.5, -0.1, Word.INCONCLUSIVE),
        (-0.2, -0.1, Word.FAILS),
        (math.nan, math.nan, Word.FAILS),
    ],
)
def test_a_decay_no_slower_than_a_bound(low, high, word):
    judgement = stays_below("slope", Interval((low + high) / 2, low, high), -1 / 3, 0.1)
    assert judgement.word is word and f"{high:.3f}" in judgement.reason


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-1.05, -0.95, Word.HOLDS),
        (-1.3, -0.9, Word.INCONCLUSIVE),
        (-1.5, -1.2, Word.FAILS),
        (-0.8, -0.7, Word.FAILS),
        (math.nan, math.nan, Word.FAILS),
    ],
)
def test_a_slope_of_one_value(low, high, word):
    assert equals("slope", Interval((low + high) / 2, low, high), -1.0, 0.1).word is word


@pytest.mark.parametrize(
    ("value", "moves", "word"),
    [(0.01, 1.0, Word.HOLDS), (0.03, 1.0, Word.INCONCLUSIVE), (0.03, 0.05, Word.FAILS), (1.0, 0.0, Word.FAILS)],
)
def test_what_training_converges_to_fails_only_where_training_stands_still(value, moves, word):
    assert once_converged("residual", value, 0.02, moves, 0.1).word is word


def test_one_failure_decides_and_every_reason_is_told():
    good, open_, bad = at_most("a", 0.0, 1.0), equals("b", Interval(0.0, -1.0, 1.0), 0.0, 0.1), at_most("c", 2.0, 1.0)
    assert all_of(good).word is Word.HOLDS
    assert all_of(good, open_).word is Word.INCONCLUSIVE
    worst = all_of(good, open_, bad)
    assert worst.word is Word.FAILS and all(f"{name} " in worst.reason for name in "abc")
