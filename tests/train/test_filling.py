"""A trained run that is used: tables filled in their own units, classes told, the best weights, what is settled."""

import io
import math
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

import continua
from continua.cli.measuring import choose_models
from continua.data import Csv, SeriesTransform, Split, Uea
from continua.runs import Run
from continua.train import (
    Learner,
    Plan,
    Preset,
    SeriesFiller,
    Training,
    build_continuous,
    evaluate,
    objective_of,
    settle_outputs,
)
from continua.train.settling import _Reading, _suffers, _trust, _width, share_of_logits, weigh_logits

SMALL = Preset().replace(
    width=8, hidden=8, axis_nodes=2, head_nodes=2, head_modes=0, depth_steps=1, depth_length=0.5, stem_radius=3.0
)


def write_waves(file, count=200, empty=lambda row: ()):
    """Dates a day apart, 300 + sin and a cosine of another size; `empty` says which columns of a row are empty."""
    rows = []
    for i in range(count):
        values = [f"{300 + 10 * math.sin(0.4 * i):.4f}", f"{0.01 * math.cos(0.4 * i):.6f}"]
        rows.append([str(np.datetime64("2024-01-01") + i), *("" if c in empty(i) else v for c, v in enumerate(values))])
    file.write_text("\n".join([",warm,wet", *(",".join(row) for row in rows)]) + "\n")
    return file


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return Csv(write_waves(tmp_path_factory.mktemp("waves") / "waves.csv"), window=16)


@pytest.fixture
def model(task):
    torch.manual_seed(0)
    return build_continuous(task.form, SMALL).eval()


def test_empty_cells_are_filled_in_the_units_of_the_file(task, model, tmp_path):
    """A new model adds nothing to the linear reference, which knows a sine."""
    asked = write_waves(
        tmp_path / "asked.csv", 230, lambda i: (0,) if 30 < i < 33 else (0, 1) if i == 50 or i >= 200 else ()
    )
    filler = SeriesFiller(model, task.series.transform)
    (filled,) = filler.fill(continua.train.TrainedSeries(model, task.series.transform).read(asked))
    i = np.arange(230)
    truth = np.stack([300 + 10 * np.sin(0.4 * i), 0.01 * np.cos(0.4 * i)], 1)
    empty = filled.series.values.isnan().numpy()
    assert np.array_equal(np.isfinite(filled.low), empty) and bool(np.isfinite(filled.mean).all())
    assert np.array_equal(filled.mean[~empty], filled.series.values.numpy()[~empty])
    assert np.abs((filled.mean - truth) / [10.0, 0.01])[:204].max() < 0.1
    assert np.abs((filled.mean - truth) / [10.0, 0.01]).max() < 0.5  # thirty rows ahead, by answers of its own
    assert bool((filled.low[empty] <= filled.mean[empty]).all() and (filled.mean[empty] <= filled.high[empty]).all())
    widths = (filled.high - filled.low)[200:, 0]
    assert widths[29] > widths[11] > widths[0]


def test_too_little_to_go_on_and_rows_before_it_are_doubted(task, model, tmp_path):
    trained, seen = continua.train.TrainedSeries(model, task.series.transform), task.series.transform.units.seen
    enough = write_waves(tmp_path / "enough.csv", seen + 4, lambda i: (0, 1) if i >= seen else ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (filled,) = trained.predict(enough)
    assert filled.doubts == ()
    short = write_waves(tmp_path / "short.csv", seen, lambda i: (0, 1) if i < 3 or i >= seen - 4 else ())
    with pytest.warns(UserWarning) as told:
        (filled,) = trained.predict(short)
    assert filled.doubts == tuple(str(each.message) for each in told)
    assert filled.doubts[0].startswith(f"{seen - 7} observed rows, where windows of training had {seen}")
    (alone,) = SeriesFiller(model, task.series.transform)._doubts(0, 1)
    assert alone.startswith(f"1 observed row, where windows of training had {seen}:") and alone.endswith("rows or more")
    assert filled.doubts[1].startswith("3 rows stand before the first observation")


def test_the_transform_is_kept_without_the_file(task, model):
    again = SeriesTransform.read(task.series.transform.files())
    rows = task.series.windows.window(Split.TEST, 0)
    one, two = (each.prepare(rows, np.array([0.3, 1.2])) for each in (task.series.transform, again))
    for a, b in zip((*one[:3], *one.reference), (*two[:3], *two.reference), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="transform of its series cannot be read"):
        SeriesTransform.read({"series.json": b"{}"})


def test_a_network_counts_by_what_it_gains_on_validation(task, model):
    batch = task.batch(Split.VALIDATION, torch.arange(task.count(Split.VALIDATION)))
    before = evaluate(model, task, Split.VALIDATION)
    with torch.no_grad():
        model.readout.inner.linear.weight[:4].normal_()  # adds noise to the means of the reference
    spoilt = evaluate(model, task, Split.VALIDATION)
    assert spoilt["mean squared error"] > 2.0 * before["mean squared error"]
    found = settle_outputs(model, task)
    settled = evaluate(model, task, Split.VALIDATION)
    assert settled["mean squared error"] < 1.05 * before["mean squared error"]
    assert 0.78 <= settled["coverage"] <= 0.95  # no fewer than eight of ten, up to a tie
    assert len(found) == 4 and all(0.0 <= each["factor of the network"] <= 1.0 for each in found.values())
    assert batch.reference is not None


def calm_then_wild(tmp_path, order):
    """Random walks whose steps are five times as large in some stretches: three fifths, one fifth, one fifth."""
    random = np.random.default_rng(0)
    sizes = np.repeat([{"calm": 1.0, "wild": 5.0}[word] for word in order], [360, 120, 120])
    file = tmp_path / f"{'-'.join(order)}.csv"
    walk = np.cumsum(sizes * random.normal(size=600))
    file.write_text("\n".join(["t,x", *(f"{i},{x}" for i, x in enumerate(walk))]))
    return Csv(file, window=16)


@pytest.mark.parametrize("order", [("wild", "calm", "wild"), ("calm", "wild", "wild")])
def test_intervals_hold_eight_of_ten_of_training_and_of_validation_whichever_is_wilder(tmp_path, order, unchecked):
    task = calm_then_wild(tmp_path, order)
    torch.manual_seed(0)
    model = build_continuous(task.form, SMALL)
    found = settle_outputs(model, task)
    assert evaluate(model, task, Split.VALIDATION)["coverage"] >= 0.78
    assert evaluate(model, task, Split.TEST)["coverage"] == pytest.approx(0.8, abs=0.12)
    assert all(each["widths of the network"] == 0.0 for each in found.values())  # a new network has none of its own


def test_a_calm_validation_does_not_narrow_intervals():
    calm, wild = torch.linspace(0.0, 1.0, 101), torch.linspace(0.0, 3.0, 101)
    every = torch.ones(101, dtype=torch.bool)
    assert _width(calm, every, wild, every) == _width(wild, every, calm, every) == pytest.approx(2.4)
    assert _width(calm, every, wild, ~every) == pytest.approx(0.8) and _width(calm, ~every, wild, ~every) == 1.0


def test_gains_are_trusted_by_how_often_they_come():
    surely, hardly = torch.full((8,), 2.0), torch.tensor([9.0, -7.0, 8.0, -6.0, 9.0, -7.0, 8.0, -5.0])
    assert _trust(surely) == 1.0 and _trust(hardly) == _trust(-surely) == _trust(surely[:3]) == 0.0
    some = torch.tensor([1.0, 3.0, 1.0, 3.0, 1.0])
    assert _trust(some) == pytest.approx(1.0 - (float(some.std(correction=0)) / 2.0 / float(some.mean())) ** 2)
    assert _trust(surely, torch.arange(8) // 4) == 0.0  # two stretches of neighbours are two gains, not eight


def test_logits_of_a_network_count_where_they_help_series_that_were_left_out():
    labels = torch.arange(40) % 2
    truth = torch.eye(2)[labels]
    offset, noise = torch.zeros(40, 2), torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    assert share_of_logits(2.0 * truth, offset, labels) == 1.0
    assert share_of_logits(5.0 * noise, 4.0 * truth, labels) == 0.0


def test_a_network_takes_the_place_of_a_reference_that_is_sure_and_wrong():
    labels = torch.arange(40) % 2
    truth = torch.eye(2)[labels]
    network, wrong = 3.0 * truth, 8.0 * torch.where((torch.arange(40) < 12)[:, None], truth.flip(-1), truth)
    readings = [_Reading(network, wrong, labels), _Reading(network, 8.0 * truth, labels)]
    assert weigh_logits(readings, (1.0, 0.5, 0.0), proof=False) == (0.0, 1.0)
    weight, share = weigh_logits(readings, (1.0, 0.5, 0.0))
    assert 0.0 < weight < 0.5 and share == pytest.approx(1.0 - weight)  # drawn to the reference by the noise
    few = [_Reading(each.output[:3], each.offset[:3], labels[:3]) for each in readings]
    assert weigh_logits(few, (1.0, 0.5, 0.0)) == (1.0, 0.0)  # which of so few cannot be proved
    noise = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    assert weigh_logits([_Reading(5.0 * noise, 8.0 * truth, labels)], (1.0, 0.0), proof=False) == (1.0, 0.0)


def spikes(tmp_path, missing, wide):
    """Series of noise with a spike up or down, one sample wide or all of them: gaps may lose it."""
    random = np.random.default_rng(0)
    for part in ("TRAIN", "TEST"):
        rows = []
        for i in range(60):
            x = 0.1 * random.normal(size=20)
            x[slice(None) if wide else 10] += 3.0 if i % 2 else -3.0
            rows.append(",".join(f"{value:.3f}" for value in x) + f":{'up' if i % 2 else 'down'}")
        (tmp_path / f"Spikes_{part}.ts").write_text("@classLabel true up down\n@data\n" + "\n".join(rows))
    return Uea(tmp_path / "Spikes_TRAIN.ts", missing=missing)


def test_a_reference_that_loses_by_missing_samples_is_told_from_one_that_does_not(tmp_path):
    assert _suffers(spikes(tmp_path, 0.8, wide=False))
    assert not _suffers(spikes(tmp_path, 0.8, wide=True))


def test_factors_of_network_and_reference_are_kept_in_the_readout(tmp_path, monkeypatch):
    task = spikes(tmp_path, 0.8, wide=False)
    torch.manual_seed(0)
    model = build_continuous(task.form, SMALL).eval()
    assert evaluate(model, task, Split.TEST)["accuracy"] == task.references()["kernel-ridge reference, network off"]
    monkeypatch.setattr("continua.train.settling.weigh_logits", lambda *given, **named: (0.25, 0.5))
    found = settle_outputs(model, task)
    assert found == {"classes": {"factor of the network": 0.5, "factor of the reference": 0.25}}
    answer = torch.nn.functional.cross_entropy(
        0.25 * (whole := next(task.batches(Split.TEST, 60))).offset, whole.targets
    )
    assert evaluate(model, task, Split.TEST)["loss"] == pytest.approx(float(answer), rel=1e-5)  # of the answer alone
    batch = task.batch(Split.TEST, torch.arange(6))
    torch.testing.assert_close(batch.logits(model(*batch.inputs)), 0.25 * batch.offset)  # a new network says nothing
    trained = continua.train.TrainedLabels(model, task.transform)
    told = trained.predict(tmp_path / "Spikes_TEST.ts")
    assert told.shape == (60, 2)
    torch.testing.assert_close(told[:6], (0.25 * batch.offset).softmax(-1))


def learner_of(task, rate):
    torch.manual_seed(0)
    model = build_continuous(task.form, SMALL)
    return Learner("continuous", model, objective_of(task.form), torch.optim.SGD(model.parameters(), lr=rate))


def test_the_best_weights_are_taken_and_a_run_that_no_longer_gains_ends(task, tmp_path, unchecked):
    learner = learner_of(task, 1.0)  # a rate that leads away
    plan = Plan(40, 8, validations=20, patience=2, clip=1e9, save_seconds=1e9)
    run = Run.begin(tmp_path / "run", "train", {}, {"task": task.facts()})
    training = Training(run, task, [learner], plan)
    training.go()
    losses = [row["metrics"]["loss"] for row in run.records("validation")]
    assert len(losses) < 20 and run.manifest["facts"]["stopped"] == 2 * len(losses)
    taken = training.take_best()
    assert taken == {"continuous": 2 * (1 + int(np.argmin(losses)))}
    assert evaluate(learner.model, task, Split.VALIDATION)["loss"] == pytest.approx(min(losses))


def test_where_validation_reads_the_test_nothing_is_chosen_by_it(task, tmp_path, unchecked):
    whole = Csv(task.file, window=16, whole=True)
    learner = learner_of(whole, 3.0)
    run = Run.begin(tmp_path / "run", "train", {}, {})
    training = Training(run, whole, [learner], Plan(4, 8, validations=4, clip=1e9))
    training.go()
    assert training.take_best() == {"continuous": 4} and settle_outputs(learner.model, whole) == {}
    first, *_, last = (row["metrics"]["loss"] for row in run.records("validation"))
    assert first < 0.9 * last
    console = Console(file=io.StringIO(), width=200)
    choose_models(console, run, whole, training)
    told = f"continuous: validation was {first:.3f} after 1 update and is {last:.3f}, and the last parameters are used"
    assert told in console.file.getvalue()


def test_classes_are_told_from_series_in_their_own_units(tmp_path):
    header = "@classLabel true up down\n@data\n"
    rows = [
        ",".join(f"{100 + (k if i % 2 else -k) + 0.1 * ((i * k) % 7)}" for k in range(8 + i % 3)) for i in range(60)
    ]
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Two_{part}.ts").write_text(
            header + "\n".join(f"{r}:{'up' if i % 2 else 'down'}" for i, r in enumerate(rows))
        )
    task = Uea(tmp_path / "Two_TRAIN.ts")
    told = task.references()
    assert told["kernel-ridge reference, network off"] == 1.0 and told["nearest neighbour"] > 0.9
    model = build_continuous(task.form, SMALL).eval()
    trained = continua.train.TrainedLabels(model, type(task.transform).read(task.transform.files()))
    up = torch.tensor([[100.0 + k] for k in range(9)])
    found = trained.predict([up, 200.0 - up])
    assert trained.classes == ("up", "down") and found.argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(found.sum(1), torch.ones(2))
    torch.testing.assert_close(trained.predict([up.numpy()]), found[:1])
    assert trained.at(steps=8).predict(tmp_path / "Two_TEST.ts").argmax(1).tolist() == 30 * [1, 0]
    assert evaluate(model, task, Split.TEST)["accuracy"] == 1.0  # a new model says what the reference says
    assert settle_outputs(model, task)["classes"]["factor of the network"] == 0.0
    references = continua.train.prediction_section(task, {"ours": model}).figures[0]
    assert references.columns == ("reference", "accuracy") and dict(references.rows) == task.references()
    with pytest.raises(ValueError, match="learnt 1 dimensions"):
        trained.predict([up.expand(-1, 2)])
