"""`continua predict` and `continua runs`: files that come back filled, and what a stranger may do wrong."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

import continua
from continua.cli.main import main
from continua.data import Csv
from continua.runs import Run
from continua.train import warnings_of

SMALL = ["--updates", "2", "--batch-size", "4", "--width", "8", "--axis-nodes", "2", "--hidden", "8",
         "--depth-steps", "1", "--validations", "1", "--depth-length", "0.5", "--threads", "1", "--quiet"]  # fmt: skip
SERIES = "@classLabel true up down\n@data\n"


def read(file, mark=","):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream, delimiter=mark))


def wave(row):
    return 20.0 + 5.0 * math.sin(0.4 * row)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, unchecked_module):
    """A folder with a run on a table of dates and one on labelled series."""
    folder = tmp_path_factory.mktemp("used")
    days = [str(np.datetime64("2024-01-01") + i) for i in range(160)]
    rows = (f"{day};{f'{wave(i):.3f}'.replace('.', ',')}" for i, day in enumerate(days))
    (folder / "own.csv").write_text("\n".join(["day;warm", *rows]))
    asked = (
        f"{day};{f'{wave(i):.3f}'.replace('.', ',') if (i + 4) % 9 and i < 140 else ''}" for i, day in enumerate(days)
    )
    (folder / "asked.csv").write_text("\n".join(["day;warm", *asked]))
    for part in ("TRAIN", "TEST"):
        lines = [",".join(str((k if i % 2 else -k) + (i * k) % 5 / 9) for k in range(9)) for i in range(12)]
        text = "\n".join(f"{line}:{'up' if i % 2 else 'down'}" for i, line in enumerate(lines))
        (folder / f"Two_{part}.ts").write_text(SERIES + text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "csv", "--series", "own.csv", "--window", "16", *SMALL]) == 0
        assert main(["train", "uea", "--series", "Two_TRAIN.ts", *SMALL]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(folder)


def test_a_table_without_an_empty_cell_is_no_question(capsys):
    assert main(["predict", "runs/csv-001", "--input", "own.csv", "--output", "same.csv"]) == 2
    assert "nothing to fill. For a forecast, append rows with a time and empty values" in capsys.readouterr().err


def test_every_empty_cell_comes_back_filled(capsys):
    assert main(["predict", "runs/csv-001", "--input", "asked.csv", "--output", "filled.csv"]) == 0
    told = "35 empty cells filled; 16 rows lie farther ahead than a quarter of a window, and go on from its own answers"
    assert capsys.readouterr().out == f"{told}: filled.csv\n"
    asked, filled = read("asked.csv", ";"), read("filled.csv", ";")
    assert list(filled[0]) == ["day", "warm", "warm_low", "warm_high"] and len(filled) == 160

    def number(word):
        return float(word.replace(",", "."))

    for row, (before, after) in enumerate(zip(asked, filled, strict=True)):
        assert after["day"] == before["day"]
        if before["warm"]:
            assert after["warm"] == before["warm"] and after["warm_low"] == after["warm_high"] == ""
        else:
            assert number(after["warm_low"]) < number(after["warm"]) < number(after["warm_high"])
            assert abs(number(after["warm"]) - wave(row)) < 1.0


def test_a_run_is_loaded_with_its_transforms():
    trained = continua.load("runs/csv-001")
    (filled,) = trained.predict("asked.csv")
    mean = (
        [float(row["warm"].replace(",", ".")) for row in read("filled.csv", ";")]
        if Path("filled.csv").exists()
        else None
    )
    assert not trained.model.training and np.isfinite(filled.mean).all()
    if mean is not None:
        np.testing.assert_allclose(filled.mean[:, 0], mean, rtol=1e-5)
    plain = continua.load("runs/csv-001/models/continuous")
    assert type(plain) is type(trained.model)


def test_a_table_of_pandas_is_read_as_its_file():
    pandas, trained = pytest.importorskip("pandas"), continua.load("runs/csv-001")
    dates = pandas.read_csv("asked.csv", sep=";", decimal=",", parse_dates=["day"])
    (expected,) = trained.predict("asked.csv")
    for table in (dates, dates.set_index("day")):
        (filled,) = trained.predict(table)
        np.testing.assert_allclose(filled.mean, expected.mean)
    with pytest.raises(ValueError, match=r"given = 'list': .*Pass the path of a CSV file, or a DataFrame"):
        trained.predict([1.0])


def test_columns_of_times_and_ids_are_those_of_training(capsys):
    rows = [f"{name},{i},{i % 3},{wave(i + 4 * n):.3f}" for n, name in enumerate("ab") for i in range(120)]
    Path("two.csv").write_text("\n".join(["who,step,other,warm", *rows]))
    words = ["--time-column", "step", "--id-column", "who", "--columns", "other,warm", "--window", "16"]
    assert main(["train", "csv", "--series", "two.csv", *words, *SMALL, "--output", "two"]) == 0
    assert [filled.series.id for filled in continua.load("two").predict("two.csv")] == ["a", "b"]
    Path("empty.csv").write_text("who,step,other,warm\na,1,,2\na,2,,3\n")
    assert main(["predict", "two", "--input", "empty.csv", "--output", "x.csv"]) == 2
    told = "column 'other'. Write the file as that of training: the columns other, warm, each with at least one value."
    assert told in capsys.readouterr().err


def test_classes_have_a_row_for_each_series(capsys):
    Path("new.ts").write_text("@classLabel false\n@data\n0,1,2,3,4,5\n0,-1,-2,-3,-4,-5,-6\n")
    for source, count in (("new.ts", 2), ("Two_TEST.ts", 12)):
        assert main(["predict", "runs/uea-001", "--input", source, "--output", "told.csv"]) == 0
        rows = read("told.csv")
        assert len(rows) == count and list(rows[0]) == ["series", "label", "probability_up", "probability_down"]
        assert all(abs(float(row["probability_up"]) + float(row["probability_down"]) - 1.0) < 1e-3 for row in rows)
    assert main(["predict", "runs/uea-001", "--input", "new.ts", "--output", "told.csv"]) == 0
    assert [row["label"] for row in read("told.csv")] == ["up", "down"]


def test_a_network_that_gained_nothing_is_told_of_first_and_not_measured_further(capsys):
    told = (
        "continuous: the answer is the kernel-ridge reference; the network has no gain on validation beyond its noise"
    )
    assert told in Path("runs/uea-001/report.html").read_text(encoding="utf-8")
    assert main(["runs"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(["eval", "runs/uea-001", "--milliseconds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "continuous: nothing to choose within 2 ms: it has one set of numbers at every resolution" in shown
    first = next(line for line in shown.splitlines() if not line.startswith("measuring "))
    assert first == told and "its network is off" in shown and "network counts" not in shown
    tests = [row for row in Run.open(Path("runs/uea-001")).records() if row["kind"] == "test"]
    assert all("depth_steps" not in row and "solver error" not in row for row in tests)


def test_intervals_that_are_too_narrow_are_told_of():
    task = Csv(Path("own.csv"), 16)
    errors = {"squared error between": 0.01, "squared error ahead": 0.01}
    narrow = [text for text in warnings_of(task, errors | {"coverage": 0.7}, errors) if "interval" in text]
    assert len(narrow) == 1 and "hold 70% of the values of the test" in narrow[0]
    assert not any("interval" in text for text in warnings_of(task, errors | {"coverage": 0.76}, errors))


def test_runs_are_listed_with_their_results(capsys):
    assert main(["runs"]) == 0
    printed = capsys.readouterr().out
    assert "csv-001: csv, finished, began 20" in printed and "uea-001: uea, finished" in printed
    assert "    continuous       2 updates  " in printed and "    best reference: " in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["predict", "runs/csv-001"], "--input is not given"),
        (["predict", "runs/csv-001", "--input", "asked.csv"], "--output is not given"),
        (["predict", "runs/csv-001", "--input", "no.csv", "--output", "x.csv"], "no.csv': there is no such file"),
        (["predict", "runs/csv-001", "--input", "Two_TEST.ts", "--output", "x.csv"], "where the header has 1"),
        (["predict", "runs/csv-001", "--input", "asked.csv", "--output", "runs"], "this is a folder"),
        (["predict", "runs/csv-001", "--input", "none.csv", "--output", "x.csv"], "no row has a value"),
        (["predict", "runs/csv-001", "--input", "other.csv", "--output", "x.csv"], "has no such column"),
        (["predict", "runs/csv-001", "--input", "hours.csv", "--output", "x.csv"], "its times are plain numbers, and"),
        (
            ["predict", "runs/csv-001", "--model", "usual", "--input", "asked.csv", "--output", "x.csv"],
            "no model 'usual'",
        ),
        (["predict", "runs/nope"], "RUN = 'runs/nope': there is no such folder"),
        (["predict", "runs", "--input", "asked.csv", "--output", "x.csv"], "there is no manifest.json in it"),
        (["predict", "runs/uea-001", "--input", "asked.csv", "--output", "x.csv"], "row 1: a row of data before @data"),
        (["runs", "nowhere"], "there is no such folder"),
        (["runs", "runs/csv-001"], "there is no run in it"),
    ],
)
def test_mistakes_are_told_in_one_line(words, told, capsys):
    Path("none.csv").write_text("day,warm\n2024-01-01,\n")
    Path("other.csv").write_text("day,cold\n2024-01-01,1\n")
    Path("hours.csv").write_text("day,warm\n1,1\n2,\n")
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert told in printed and printed.count("\n") == 1
    assert not Path("x.csv").exists()
