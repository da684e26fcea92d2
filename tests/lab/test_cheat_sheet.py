"""The ways of the cheat-sheet: that whole sheets follow what they say, leave out what cannot be, and what is timed."""

import math
import time

import pytest

from continua.data import Mnist1d
from continua.lab import CheatSheet, Word, sheet_ways
from continua.lab.sheet_ways import SHEETS, TIPS, TrainedWay, TrainingClock, build_optimiser, spread, tips_of
from continua.solve import Checkpointed
from continua.train import Learner, Plan, Preset, build_continuous, objective_of

SMALL = Preset().replace(width=8, hidden=16, axis_nodes=4, stem_radius=2.0, depth_steps=2)
TASK = Mnist1d()


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_whole_sheet_follows_a_tip_or_says_why_not(sheet):
    assert sorted((*tips_of(sheet), *SHEETS[sheet].left_out)) == sorted(TIPS)


def test_every_tip_is_in_a_whole_sheet():
    assert {tip for sheet in SHEETS for tip in tips_of(sheet)} == set(TIPS)


def update_once(checkpoints, **options):
    preset = SMALL.replace(**options)
    model = build_continuous(TASK.form, preset)
    model = model.at(gradient=Checkpointed(segment=0.1)) if checkpoints else model
    learner = Learner("refused", model, objective_of(TASK.form), build_optimiser(model, preset))
    learner.update(TASK.training_batch(2, 0, 0), 0, Plan(1, 2))


@pytest.mark.parametrize(
    ("checkpoints", "options", "why"),
    [
        (False, {"axis_kernel": "unitary", "field": "hypernetwork"}, "no orthonormal columns"),
        (False, {"axis_kernel": "unitary", "optimizer": "kfac"}, "met in no linear map"),
        (False, {"axis_kernel": "fft", "optimizer": "kfac"}, "met in no linear map"),
        (True, {"optimizer": "kfac"}, "which keep no graph"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_a_whole_sheet_leaves_out_as_refused_is_refused(checkpoints, options, why):
    with pytest.raises(ValueError, match=why):
        update_once(checkpoints, **options)


def test_with_a_hypernetwork_shampoo_has_the_kernels_that_it_adds_to_and_adamw_the_rest():
    preset = SMALL.replace(field="hypernetwork", axis_kernel="fft", optimizer="shampoo")
    model = build_continuous(TASK.form, preset)
    held = {
        name: {each for group in member.param_groups for each in group["param_names"]}
        for name, member in build_optimiser(model, preset).members.items()
    }
    by_shampoo = {name for label, names in held.items() if label.startswith("Shampoo") for name in names}
    kernels = {
        f"flow.parts.{part}.field.base.inner_{leaf}"
        for part, leaves in enumerate(("qkvo", ("w1", "w2")))
        for leaf in leaves
    }
    assert by_shampoo == kernels
    assert all(label.startswith(("Shampoo", "BlockwiseAdamW")) for label in held)


def test_moments_are_spread_from_the_first_update_to_the_last():
    assert spread(120, 6) == [0, 24, 48, 71, 95, 119]
    assert spread(1, 6) == [0] and spread(3, 6) == [0, 1, 2]


@pytest.mark.usefixtures("unchecked")
def test_seconds_in_which_memory_is_measured_are_no_time_of_training(monkeypatch):
    later = [0.0]
    clock = TrainingClock(lambda: time.process_time() + later[0])

    def measure_for_long(model, objective, batch):
        later[0] += 1e6
        return 7

    monkeypatch.setattr(sheet_ways, "update_memory", measure_for_long)
    cell = TrainedWay("schedule in seconds", 0, 4, 8, 2, 4, 3, depth=1.0)
    course = cell._train(cell._prepare(TASK, clock), TASK, clock)
    assert course["moments"] == [0, 2, 3] and course["memories"] == [7, 7, 7]
    assert max(course["times"]) < 1e6
    assert course["rates"][1] > 0.0  # a cosine that had counted them would have ended


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sheet", SHEETS)
def test_a_whole_sheet_trains(sheet):
    row = TrainedWay(sheet, 0, 1, 8, 2, 4, 1, depth=0.2).measure()
    assert row["evaluations"][0] > 6  # more than one step of Dormand and Prince
    assert math.isfinite(row["test"]) and math.isfinite(row["losses"][0])
    assert row["memory"] == row["memories"][0] > 0 and row["milliseconds"] == row["times"][0] > 0.0


def pretend_rows(experiment):
    """Rows of a sheet that holds: every way but our default has a lower loss, and all cost the same."""
    course = {"losses": [2.0, 1.0], "evaluations": [4, 8], "times": [1.0, 3.0], "rates": [1.0, 0.5], "moments": [0, 1]}
    return [
        {"way": cell.way, "seed": cell.seed, "test": 1.0 if cell.way == "our default" else 0.5, "accuracy": 0.5,
         "parameters": 9, "memory": 6, "milliseconds": 2.0, "memories": [3, 6], **course}
        for cell in experiment.cells()
    ]  # fmt: skip


def test_a_sheet_that_costs_what_layers_cost_holds():
    experiment = CheatSheet()
    found = experiment.conclude(pretend_rows(experiment))
    assert found.judgement.word is Word.HOLDS
    assert len(found.judgement.parts) == 2 * len(SHEETS) + len(TIPS) + len(SHEETS)


@pytest.mark.parametrize("sheet", SHEETS)
@pytest.mark.parametrize(("key", "what"), [("milliseconds", "time"), ("memory", "memory")])
def test_one_whole_sheet_that_costs_more_fails(sheet, key, what):
    experiment = CheatSheet()
    rows = [{**row, key: 1.6 * row[key]} if row["way"] == sheet else row for row in pretend_rows(experiment)]
    found = experiment.conclude(rows).judgement
    assert found.word is Word.FAILS and f"{what} of an update, {sheet} over layers = 1.6 exceeds 1.5" in found.reason


def test_time_and_memory_are_drawn_along_training_over_those_of_layers():
    experiment = CheatSheet()
    figures = {figure.title: figure for figure in experiment.conclude(pretend_rows(experiment)).figures}
    for what, along in (("time", (0.5, 1.5)), ("memory", (0.5, 1.0))):
        drawn = {curve.name: curve for curve in figures[f"{what} along training, the whole sheet"].curves}
        assert set(drawn) == {"our default", "layers", *SHEETS}
        assert all(tuple(curve.x) == (1, 2) and tuple(curve.y) == along for curve in drawn.values())
        assert len(figures[f"{what} along training, each tip"].curves) == 1 + len(TIPS)
    (along,) = (figure for title, figure in figures.items() if title.startswith("from the first tenth"))
    assert along.rows[0] == ("our default", "0.50 → 1.50", "0.50 → 1.00", "4.00 → 8.00")
