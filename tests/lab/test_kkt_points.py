"""Ends of training that are no KKT points: the verdict can fail."""

import pytest

from continua.lab import AdamWCompactness, Word
from continua.lab.training.compactness import _judge_end
from continua.lab.verdicts import all_of
from saboteurs import climb_uphill, push_out


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sabotage", [None, climb_uphill, push_out])
def test_training_that_ends_elsewhere_fails(sabotage, monkeypatch):
    if sabotage is not None:
        sabotage(monkeypatch)
    cell = AdamWCompactness(settle=300).cells()[5]  # balls, b = (0.9, 0.9)
    word = all_of(*_judge_end(cell.measure()).judgements).word
    assert word is (Word.HOLDS if sabotage is None else Word.FAILS)
