"""The depth steps that fit a budget of time."""

import time

import pytest
import torch

import continua
from continua.model import budget


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock by which a step of depth takes one millisecond."""
    counted = lambda model, inputs: float(len(model(*inputs, full=True).solution.stats.grid) - 1)  # noqa: E731
    monkeypatch.setattr(budget, "_time", counted)


def test_the_most_steps_that_fit_are_taken(slow_clock):
    torch.manual_seed(0)
    inputs = (torch.randn(2, 5, 1),)
    smooth = continua.transformer(width=16, outputs=2, features=1, axis=4)
    for allowed, steps in ((1.0, 1), (5.0, 4), (6.5, 4), (23.5, 16)):  # 6 is no multiple of the trained 4
        chosen = continua.at_budget(smooth, inputs, milliseconds=allowed, repeats=1)
        assert chosen.solver.controller.steps == steps and chosen.flow.parts[0].field is smooth.flow.parts[0].field
    five = continua.transformer(width=16, outputs=2, features=1, axis=4, depth=continua.Depth(5.0))
    for allowed, steps in ((4.0, 1), (9.0, 5), (21.0, 20)):
        assert continua.at_budget(five, inputs, milliseconds=allowed, repeats=1).solver.controller.steps == steps
    plain = continua.transformer(width=16, outputs=2, features=1, axis=4, depth=continua.Depth(stagger=False))
    assert continua.at_budget(plain, inputs, milliseconds=6.5, repeats=1).solver.controller.steps == 6
    layers = continua.transformer(width=8, outputs=2, features=1, axis=1, heads=2, depth=continua.Depth(3.0, 3))
    assert continua.at_budget(layers, inputs, milliseconds=5.0).solver.controller.steps == 3
    with pytest.raises(ValueError, match=r"milliseconds = 0\.5: the fewest depth steps take 1 ms on these inputs"):
        continua.at_budget(smooth, inputs, milliseconds=0.5)


def test_a_call_within_the_budget_is_that_fast():
    model = continua.transformer(width=16, outputs=2, features=1, axis=4)
    inputs = (torch.randn(2, 5, 1),)
    chosen = continua.at_budget(model, inputs, milliseconds=100.0, repeats=1)
    start = time.perf_counter()
    chosen(*inputs)
    assert time.perf_counter() - start < 5.0 and model.training and chosen.training
