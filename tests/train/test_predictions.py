"""What a report shows of a model's answers is what the model answers, beside the truth, in the reader's units."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix

from continua.data import Burgers, Csv, Darcy, Digits, Spirals, Split, Text
from continua.report import report_page
from continua.runs import Heat, Run, Table
from continua.train import Preset, build_baseline, build_continuous, prediction_section
from continua.train.examples import Answers, calibration

SMALL = Preset().replace(width=8, head_nodes=2, hidden=8, axis_nodes=2, depth_modes=2, depth_steps=1)


def model_for(task):
    torch.manual_seed(0)
    return build_continuous(task.form, SMALL)


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("csv") / "waves.csv"
    rows = [f"{2.0 * i},{50 + 20 * np.sin(0.3 * i)},{'' if i % 7 == 3 else np.cos(0.2 * i)}" for i in range(240)]
    file.write_text("\n".join(["t,warm,wet", *rows]))
    return file


def test_confusions_are_those_of_scikit_learn():
    task = Digits()
    model = model_for(task)
    section = prediction_section(task, {"ours": model})
    table = section.figures[0]
    batch = task.batch(Split.TEST, torch.arange(task.count(Split.TEST)))
    with torch.no_grad():
        answer = model.eval()(*batch.inputs).argmax(-1)
    expected = confusion_matrix(batch.targets, answer, labels=range(10))
    assert isinstance(table, Table) and table.columns == ("label", *map(str, range(10)), "correct")
    np.testing.assert_array_equal([[cell or 0 for cell in row[1:-1]] for row in table.rows], expected)
    assert [row[-1] for row in table.rows] == [f"{share:.0%}" for share in np.diag(expected) / expected.sum(1)]


def test_series_are_drawn_through_their_observations_in_the_units_of_the_file(csv_file):
    task = Csv(csv_file, window=16)
    model = model_for(task)
    references, *figures = prediction_section(task, {"ours": model}).figures
    assert [row[0] for row in references.rows][-3:] == ["ridge on differences", "linear reference, network off", "ours"]
    np.testing.assert_allclose(
        references.rows[-1][1:], references.rows[-2][1:], rtol=1e-4
    )  # a new model is the reference
    assert [f.title for f in figures[:2]] == ["warm, test window 1", "wet, test window 1"] and len(figures) == 6
    assert model.training
    predicted, reference, truth, seen = figures[1].curves
    batch = task.batch(Split.TEST, torch.arange(1))
    assert len(predicted.x) > 50 and predicted.x[0] == 0.0
    # 16 rows, two time units apart, of the file's last fifth
    asked = ~batch.targets[0, :, 1].isnan()
    assert truth.x.tolist() == pytest.approx((30.0 * batch.query_times[0][asked]).tolist())
    rows = 192 + (np.concatenate([truth.x, seen.x]) / 2.0).round().astype(int)
    np.testing.assert_allclose(np.concatenate([truth.y, seen.y]), np.cos(0.2 * rows), atol=1e-5)
    assert not any(row % 7 == 3 for row in rows)  # a missing value is not drawn
    np.testing.assert_allclose(predicted.y, reference.y, atol=1e-5)  # a new model adds nothing to the reference
    assert bool((predicted.low < predicted.y).all() and (predicted.y < predicted.high).all())


def test_spirals_have_a_curve_for_each_coordinate_and_model():
    task = Spirals(examples=20)
    ours = model_for(task)
    baseline = build_baseline(task.form, SMALL, sum(p.numel() for p in ours.parameters()))
    figures = prediction_section(task, {"continuous": ours, "standard": baseline}).figures
    assert [f.title for f in figures] == [f"{c}, test sequence {i}" for i in (1, 2, 3) for c in "xy"]
    assert [s.name for s in figures[0].curves] == ["continuous, predicted", "standard, predicted", "true", "observed"]
    batch = task.batch(Split.TEST, torch.arange(3))
    assert figures[3].notes[0].at == pytest.approx(float(batch.inputs[1][1][batch.inputs[2][1]].max()))
    np.testing.assert_allclose(figures[3].curves[2].y, batch.targets[1, :, 1])


def test_functions_are_drawn_over_what_was_given():
    task = Burgers(points=16, examples=20)
    model = model_for(task)
    figures = prediction_section(task, {"ours": model}).figures
    batch = task.batch(Split.TEST, torch.arange(5))
    with torch.no_grad():
        answer = model.eval()(*batch.inputs)
    predicted, truth, given = figures[2].curves
    np.testing.assert_allclose(predicted.y, answer[2, :, 0], atol=1e-6)
    np.testing.assert_allclose(truth.y, batch.targets[2, :, 0])
    np.testing.assert_allclose(given.y, batch.inputs[0][2, :, 0])


def test_maps_stand_in_their_places_beside_their_error(tmp_path):
    task = Darcy(points=8, examples=40)
    model = model_for(task)
    section = prediction_section(task, {"a": model, "b": model})
    (heat,) = section.figures
    assert heat.values.shape == (2, 6, 8, 26) and heat.panels == ("a", "b")
    batch = task.batch(Split.TEST, torch.arange(6))
    with torch.no_grad():
        answer = model.eval()(*batch.inputs)
    true, predicted, error = heat.values[0, 4, :, :8], heat.values[0, 4, :, 9:17], heat.values[0, 4, :, 18:]
    for token in (0, 13, 63):
        x, y = ((batch.inputs[0][4, token, 1:3] + 1.0) * 4.0 - 0.5).round().long().tolist()
        assert heat.columns[x] == pytest.approx(float(batch.inputs[0][4, token, 1]))
        assert true[y, x] == pytest.approx(float(batch.targets[4, token, 0]))
        assert predicted[y, x] == pytest.approx(float(answer[4, token, 0]), abs=1e-6)
    np.testing.assert_allclose(error, np.abs(true - predicted))
    run = Run.begin(tmp_path / "run", "train", {"task": "darcy"})
    run.keep_section("answers", section)
    assert "pressure u" in report_page([run.folder]).html()


def test_calibration_is_that_of_scikit_learn():
    """One group in ten, by quantiles of the confidence; the error is the mean distance from the diagonal."""
    g = torch.Generator().manual_seed(0)
    beliefs = (2.0 * torch.randn(500, 4, generator=g)).softmax(-1).double()
    found = Answers(torch.randint(4, (500,), generator=g), beliefs)
    diagonal, curve = calibration({"ours": found}, "").curves
    right, sure = found.right.numpy(), beliefs.max(-1).values.numpy()
    y, x = calibration_curve(right, sure, n_bins=10, strategy="quantile")
    assert diagonal.x.tolist() == diagonal.y.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(curve.x, x, atol=2e-3)
    np.testing.assert_allclose(curve.y, y, atol=2e-2)  # a sample at the edge of two groups belongs to either
    assert f"ours {np.abs(curve.y - curve.x).mean():.3f}" in calibration({"ours": found}, "").caption


def test_examples_are_the_first_right_ones_and_the_surest_mistakes():
    task = Digits()
    model = model_for(task)
    figures = prediction_section(task, {"ours": model}).figures
    (heat,) = (figure for figure in figures if isinstance(figure, Heat))
    batch = task.batch(Split.TEST, torch.arange(task.count(Split.TEST)))
    with torch.no_grad():
        beliefs = model.eval()(*batch.inputs).softmax(-1)
    told, places = beliefs.argmax(-1), torch.arange(len(batch.targets))
    wrong = places[told != batch.targets]
    chosen = [*places[told == batch.targets][:2], *wrong[beliefs[wrong].max(-1).values.argsort(descending=True)][:4]]
    assert heat.measured.startswith(f"sequences {', '.join(str(int(i) + 1) for i in chosen)} of the test")
    assert f"{batch.targets[chosen[2]]}, predicted {told[chosen[2]]}" in heat.caption
    upper = heat.values[0, 0, ::-1]  # rows are counted from below
    assert upper.shape == (17, 26) and np.isnan(upper[8]).all() and np.isnan(upper[:, 8]).all()
    for k, (row, column) in ((2, (0, 18)), (4, (9, 9))):
        picture = upper[row : row + 8, column : column + 8]
        np.testing.assert_allclose(picture.ravel(), batch.inputs[0][chosen[k], :, 0], atol=1e-6)


def test_text_is_shown_by_what_was_foreseen_and_what_is_written(tmp_path):
    (tmp_path / "tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    task = Text(tmp_path / "tale.txt", context_length=16)
    model = model_for(task)
    foreseen, written, _ = prediction_section(task, {"ours": model}).figures
    batch = task.batch(Split.TEST, torch.arange(6))
    with torch.no_grad():
        likely = model.eval()(*batch.inputs).softmax(-1).gather(-1, batch.targets[..., None]).flatten()
    assert "".join(foreseen.pieces) == "".join(task.alphabet[k] for k in batch.targets.flatten())
    np.testing.assert_allclose(foreseen.values, likely, atol=1e-6)
    prompt = "".join(task.alphabet[k] for k in batch.inputs[0][0])
    assert "".join(written.pieces).startswith(prompt) and len(written.pieces) == 16 + 240
    assert np.isnan(written.values[:16]).all() and (written.values[16:] == 1.0).all()
    run = Run.begin(tmp_path / "run", "train", {"task": "text"})
    run.keep_section("answers", prediction_section(task, {"ours": model}))
    assert f"<b>{prompt[0]}</b>" in report_page([run.folder]).html()
