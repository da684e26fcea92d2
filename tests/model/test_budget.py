"""The resolution that fits a budget of time: the most depth steps, or the lowest loss."""

import time

import pytest
import torch
import torch.nn.functional as F

import continua
from continua.model import Resolution, budget, choosable_resolutions, own_nodes, resolutions_of


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock by which a step of depth takes one millisecond."""
    counted = lambda call, repeats: float(len(call().solution.stats.grid) - 1)  # noqa: E731
    monkeypatch.setattr(budget, "time_call", counted)


def labelled(seed=0, **built):
    """A model, a batch for it, and labels."""
    torch.manual_seed(seed)
    model = continua.transformer(
        width=16, outputs=3, features=1, **{"axis": 4, "heads": continua.HeadMeasure(4), **built}
    )
    return model, (torch.randn(6, 5, 1),), torch.tensor([0, 1, 2, 0, 1, 2])


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


def test_with_targets_the_lowest_loss_that_fits_is_taken(slow_clock, unchecked):
    model, inputs, labels = labelled()
    calm = model.in_eval_mode()

    @torch.no_grad()
    def read(resolution):
        found = resolution.apply(calm)(*inputs, full=True)
        return len(found.solution.stats.grid) - 1, float(F.cross_entropy(found.output, labels))

    known = {each: read(each) for each in resolutions_of(model) if each.value != 2 or each.unit != "axis_nodes"}
    for allowed in (1.0, 4.0, 40.0):
        best = min((loss, each) for each, (steps, loss) in known.items() if steps <= allowed)[1]
        chosen = continua.at_budget(model, inputs, labels, F.cross_entropy, milliseconds=allowed, repeats=1)
        assert torch.equal(chosen.in_eval_mode()(*inputs), best.apply(calm)(*inputs)), allowed
        assert chosen.training


@pytest.mark.parametrize("unit, value", [("steps", 2), ("rtol", 1e-2), ("head_nodes", 8), ("axis_nodes", 8)])
def test_more_time_is_not_taken_where_it_has_more_loss(unit, value, slow_clock, unchecked):
    """Targets are what the model answers at one resolution, so that all others are worse."""
    model, inputs, _ = labelled()
    right = Resolution(unit, value).apply(model)
    with torch.no_grad():
        targets = right.in_eval_mode()(*inputs)
    chosen = continua.at_budget(model, inputs, targets=targets, loss=F.mse_loss, milliseconds=40.0, repeats=1)
    assert (chosen.solver, own_nodes(chosen)) == (right.solver, own_nodes(right))


def test_of_each_continuum_no_finer_one_is_tried_once_one_is_too_slow(slow_clock, monkeypatch):
    model, inputs, labels = labelled()
    tried, apply = [], Resolution.apply
    monkeypatch.setattr(Resolution, "apply", lambda self, model: tried.append(str(self)) or apply(self, model))
    continua.at_budget(model, inputs, labels, F.cross_entropy, milliseconds=3.0, repeats=1)
    assert tried[:5] == ["1 step", "2 steps", "3 steps", "4 steps", "rtol 0.01"] and "rtol 0.001" not in tried
    assert "2 head nodes" in tried and "8 head nodes" not in tried  # four steps each


def test_tokens_that_are_absent_count_neither_in_output_nor_in_targets(slow_clock):
    torch.manual_seed(0)
    model = continua.transformer(width=16, outputs=3, features=1, axis=4, per_token=True)
    present = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    shapes = []

    def loss(output, targets):
        shapes.append((tuple(output.shape), tuple(targets.shape)))
        return F.cross_entropy(output, targets)

    inputs = (torch.randn(2, 5, 1), None, present)
    continua.at_budget(model, inputs, torch.zeros(2, 5, dtype=torch.long), loss, milliseconds=4.0, repeats=1)
    continua.at_budget(model, inputs[:1], torch.zeros(2, 5, dtype=torch.long), loss, milliseconds=1.0, repeats=1)
    assert shapes[0] == ((8, 3), (8,)) and shapes[-1] == ((10, 3), (10,))


def test_a_causal_model_is_never_given_steps_that_later_tokens_change():
    causal = continua.transformer(width=16, outputs=5, vocabulary=5, causal=True, per_token=True)
    assert "rtol" in {each.unit for each in resolutions_of(causal)}
    assert "rtol" not in {each.unit for each in choosable_resolutions(causal)}


def test_the_resolutions_of_a_model_lie_about_its_own():
    model, *_ = labelled()
    found = {str(each): each.call for each in resolutions_of(model)}
    assert list(found)[:8] == ["1 step", *(f"{n} steps" for n in (2, 3, 4, 6, 8, 16, 32))]
    assert list(found)[8:11] == ["rtol 0.01", "rtol 0.001", "rtol 0.0001"]
    assert list(found)[11:] == ["2 head nodes", "8 head nodes", "2 axis nodes", "8 axis nodes"]
    assert found["3 steps"] == "at(steps=3)" and found["rtol 0.0001"] == "at(rtol=0.0001)"
    assert Resolution("rtol", 3e-6) in resolutions_of(model.at(rtol=3e-6))  # its own
    layers = continua.transformer(width=8, outputs=2, features=1, axis=1, heads=2, depth=continua.Depth(3.0, 3))
    assert {each.unit for each in resolutions_of(layers)} == {"steps"}


def test_what_cannot_be_is_told_in_one_line(slow_clock, unchecked):
    model, inputs, labels = labelled()
    for named, told in (
        ({"milliseconds": "x"}, "milliseconds = 'x': this is no number. Pass a number for milliseconds."),
        ({"milliseconds": 0}, "milliseconds = 0: it must be positive and finite"),
        ({"milliseconds": 5, "repeats": 0}, "repeats = 0: it must be a whole number, at least 1"),
        ({"milliseconds": 5, "targets": labels}, "loss = None: a loss compares the output with targets. Pass both"),
        ({"milliseconds": 5, "loss": F.cross_entropy}, "targets = None: a loss compares the output with targets"),
        ({"milliseconds": 5, "targets": labels, "loss": "mse"}, "loss = 'mse': this is no function"),
        ({"milliseconds": 5, "targets": labels, "loss": torch.nn.CrossEntropyLoss}, "this is a class, and no function"),
        ({"milliseconds": 0.5, "targets": labels, "loss": F.cross_entropy},
         "milliseconds = 0.5: the fastest of its resolutions takes 1 ms on these inputs"),
        ({"milliseconds": 5, "targets": labels, "loss": lambda output, targets: output.sum() * float("nan")},
         "it is nan at every resolution that fits"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r".") as refused:
            continua.at_budget(model, inputs, **named)
        assert told in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"values = \(6, 5, 2\)"):  # and not a budget that nothing fits
        continua.at_budget(model, (torch.randn(6, 5, 2),), milliseconds=5)
    with pytest.raises(ValueError, match=r"or continua\.load\(folder\); of series in a CSV file, its \.model"):
        continua.at_budget(torch.nn.Linear(1, 1), inputs, milliseconds=5)
    with pytest.raises(ValueError, match=r"Expected input batch_size") as failed:
        continua.at_budget(model, inputs, labels[:2], F.cross_entropy, milliseconds=5)
    assert "got an output of shape (6, 3)" in failed.value.__notes__[0]


@pytest.mark.parametrize("named, told", [
    ({"rtol": "x"}, "rtol = 'x': this is no number. Pass a number for rtol."),
    ({"grid": "0, 4"}, "grid = '0, 4': these are no depths"),
    ({"grid": [0.0, "four"]}, "depths[1] = 'four': this is no number"),
])  # fmt: skip
def test_a_resolution_that_is_no_number_is_told_by_its_name(named, told, unchecked):
    with pytest.raises(ValueError, match=r".") as refused:
        labelled()[0].at(**named)
    assert told in str(refused.value)


def test_a_model_on_a_grid_of_its_own_stays_on_it(slow_clock):
    model, inputs, _ = labelled()
    own = model.at(grid=[0.0, 0.3, 0.9, 1.7, 4.0])
    with torch.no_grad():
        targets = own.in_eval_mode()(*inputs)
    assert continua.at_budget(own, inputs, targets, F.mse_loss, milliseconds=8.0, repeats=1) is own
