"""CSV series: what is read, how it is split and asked, and what is refused with file, row and cure."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch

from continua.data import Csv, Question, Split, read_csv


def written(file, rows, header=("t", "x", "y")):
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def waves(count, gap=0.5, start=10.0):
    """Rows at irregular times: t, 5 + sin t, 100 cos t."""
    times = start + gap * np.cumsum(1 + 0.5 * np.sin(np.arange(count)))
    return [(float(t), 5 + math.sin(t), 100 * math.cos(t)) for t in times]


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "waves.csv", waves(160))


def test_cells_are_read_as_numpy_reads_them(file):
    table = read_csv(file)
    expected = np.genfromtxt(file, delimiter=",", skip_header=1)
    assert table.columns == ("x", "y") and len(table.series) == 1
    assert np.array_equal(table.series[0].times.numpy(), expected[:, 0])
    assert np.array_equal(table.series[0].values.numpy(), expected[:, 1:])
    assert table.series[0].rows[:2] == [2, 3]


def test_columns_are_found_by_their_names(tmp_path):
    path = tmp_path / "named.csv"
    path.write_text(
        "\ufeffplace,hour,x,note,y\nb,1,1,good,\n\na,0,2,,nan\nb, 2,3,bad, 4e1 \na,5,4,,7\n", encoding="utf-8"
    )
    table = read_csv(path, time_column="hour", id_column="place")
    assert table.columns == ("x", "y") and [series.id for series in table.series] == ["b", "a"]
    assert table.series[0].rows == [2, 5] and table.series[1].rows == [4, 6]  # the blank line counts
    assert torch.equal(table.series[0].values[1], torch.tensor([3.0, 40.0], dtype=torch.float64))
    assert table.series[0].values.isnan().tolist() == [[False, True], [False, False]]
    assert table.series[1].values.isnan().tolist() == [[False, True], [False, False]]
    assert read_csv(path, time_column="hour", id_column="place", columns=["y"]).columns == ("y",)


def test_windows_hold_the_rows_of_the_file(file):
    task = Csv(file, window=16)
    form = task.form
    assert (form.question, form.features, form.outputs, form.channels) == (Question.SERIES, 3, 8, 2)
    facts = task.facts()
    mean, scale = (torch.tensor([facts[name][column] for column in "xy"]) for name in ("mean", "scale"))
    batch = task.batch(Split.TEST, torch.arange(2))
    assert batch.query_times.shape == (2, 4) and batch.targets.shape == (2, 4, 2)
    for row in range(2):
        start = 10.0 + 0.5 * np.cumsum(1 + 0.5 * np.sin(np.arange(160)))[128 + row]  # test is the last fifth
        t = start + facts["time of a window"] * batch.query_times[row]
        plain, known = batch.targets[row] * scale + mean, ~batch.targets[row].isnan()
        truth = torch.stack([5 + t.sin(), 100 * t.cos()], -1)
        assert torch.allclose(plain[known], truth[known], atol=2e-3)  # times in float32
        assert bool(known.any(1).all() and known[2:].all())


def test_a_token_is_a_cell_in_the_units_of_its_window(file):
    task = Csv(file, window=16)
    values, times, present = task.batch(Split.TEST, torch.arange(1)).inputs
    assert bool((values[..., 1:].sum(-1)[present] == 1.0).all())  # each is of one channel
    table = read_csv(file)
    for channel in range(2):
        own = present[0] & (values[0, :, 1 + channel] == 1.0)
        rows = 128 + torch.searchsorted(table.series[0].times[128:144] - table.series[0].times[128],
                                        times[0, own].double() * task.facts()["time of a window"] - 1e-3)  # fmt: skip
        slope, level = np.polyfit(values[0, own, 0], table.series[0].values[rows, channel], 1)
        assert np.allclose(slope * values[0, own, 0] + level, table.series[0].values[rows, channel], atol=1e-2)
        assert abs(float(values[0, own, 0].mean())) < 1e-6 and 0.3 < float(values[0, own, 0].std()) < 1.1


def test_what_is_asked_is_not_seen(file):
    task = Csv(file, window=16)
    for split in Split:
        batch = task.batch(split, torch.arange(task.count(split)))
        values, times, present = batch.inputs
        for channel in range(2):
            own = present & (values[..., 1 + channel] == 1.0)
            gaps = (times[:, :, None] - batch.query_times[:, None, :]).abs().masked_fill(~own[:, :, None], 1.0).amin(1)
            assert float(gaps[~batch.targets[..., channel].isnan()].min()) > 1e-4
        last = times.masked_fill(~present, 0.0).amax(1, keepdim=True)
        assert bool((batch.query_times[:, :2] < last).all() and (batch.query_times[:, 2:] > last).all())


def test_parts_share_no_row_and_the_scale_is_that_of_training(file):
    task, rows = Csv(file, window=16), waves(160)
    assert [task.count(split) for split in Split] == [96 - 15, 17, 17] and task.facts()["split by"] == "time"
    train = np.array(rows)[:96, 1:]
    assert np.allclose(list(task.facts()["mean"].values()), train.mean(0))
    assert np.allclose(list(task.facts()["scale"].values()), train.std(0, ddof=1))


def test_series_are_split_as_they_are(tmp_path):
    rows = [(name, *row) for name in "abcde" for row in waves(20 + ord(name) % 3, start=ord(name))]
    task = Csv(written(tmp_path / "many.csv", [*rows, ("short", 1, 2, 3)], ("who", "t", "x", "y")), 16, id_column="who")
    facts = task.facts()
    assert facts["split by"] == "series" and facts["series shorter than a window"] == 1
    parts = [{series.id for series in task.series.windows.parts[split]} for split in Split]
    assert set.union(*parts) == set("abcde") and [len(part) for part in parts] == [3, 1, 1]
    with pytest.raises(ValueError, match="--window 21 or less"):
        _ = dataclasses.replace(task, window=30).form


def test_missing_cells_are_no_tokens_and_never_judged(tmp_path):
    rows = [(t, "" if i % 5 == 0 else x, "n/a" if i % 7 == 0 else y) for i, (t, x, y) in enumerate(waves(200))]
    task = Csv(written(tmp_path / "gaps.csv", rows), window=16)
    batch = task.batch(Split.TRAIN, torch.arange(task.count(Split.TRAIN)))
    values, _, present = batch.inputs
    assert bool(values.isfinite().all()) and int(present.sum(1).min()) < int(present.sum(1).max())
    assert 0.1 < float(batch.targets.isnan().float().mean()) < 0.6
    output = torch.zeros(*batch.query_times.shape, 8)
    assert all(bool(each.isfinite().all()) for each in task.metrics(output, batch).values())


def test_sensors_that_never_report_together_are_learnt(tmp_path):
    """Two columns, of which every row has one: no row is complete."""
    rows = [(t, x, "") if i % 2 else (t, "", y) for i, (t, x, y) in enumerate(waves(240))]
    task = Csv(written(tmp_path / "apart.csv", rows), window=16)
    batch = task.training_batch(8, 0, 0)
    assert bool((~batch.targets.isnan()).any((1, 2)).all())
    errors = {name: float((a - y).square().nanmean()) for name, (a, y) in task.references(Split.TEST).items()}
    assert errors["linear reference, network off"] < 0.5 * errors["linear interpolation, last value"]


def test_the_variant_sees_half_and_is_asked_the_same(file):
    task = Csv(file, window=32)
    variant = task.variants()["half of the cells unseen"]
    whole, half = (each.batch(Split.TEST, torch.arange(1)) for each in (task, variant))
    assert torch.equal(whole.targets.nan_to_num(9.0), half.targets.nan_to_num(9.0))
    assert torch.equal(whole.query_times, half.query_times)
    assert half.inputs[2].sum() == round(int(whole.inputs[2].sum()) / 2)
    assert set(half.inputs[1][0].tolist()) <= set(whole.inputs[1][0].tolist())


GOOD = "".join(f"{i},{i % 3},{i % 5}\n" for i in range(100))


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        ("", {}, "the file is empty"),
        ("\n\n", {}, "the file is empty"),
        (",,\n,,\n", {}, "no cell that is filled"),
        ("t,x,y\n", {}, "row 1: a header without rows"),
        (GOOD, {}, "row 1: numbers in the header"),
        ("t,,x\n1,2,3\n", {}, "row 1: column 2 has no name"),
        ("t,x,x\n0,1,2\n", {}, "row 1: two columns are called 'x'"),
        ("t,x,y\n" + GOOD, {"time_column": "hour"}, "time_column = 'hour': .* no such column. Its columns are t, x, y"),
        ("t,x,y\n" + GOOD, {"id_column": "who"}, "id_column = 'who': .* has no such column"),
        ("t,x,y\n" + GOOD, {"columns": ("x", "z")}, "columns = 'z': .* has no such column"),
        ("t,x,y\n" + GOOD, {"columns": ("t",)}, "columns = 't': this column of .* holds the times"),
        ("t,note\n0,a\n1,b\n", {}, r"row 1: no column of numbers beside \['t'\]; 'note' has 'a' in row 2"),
        ('t,x\n0,"1,234.5"\n', {}, "'x' has '1,234.5' in row 2. Write plain numbers"),
        ("day,x\n05/31/2024,1\n06/01/2024,2\n", {}, "'05/31/2024', a date with slashes, where some write the day"),
        ("t,x,note\n0,1,a\n1,2,b\n", {"columns": ("note",)}, "^columns = 'note': no row of .* has a number"),
        ("t,x\n0,1\n1,2,3\n", {}, "row 3: 3 cells, where the header has 2"),
        ("t,x\n0,1\n\n1,two\n", {}, "row 4: 'two' in the column 'x'"),
        ("t,x\n0,1\n1,-inf\n", {}, "row 3: '-inf' in the column 'x'"),
        ("t,x\n0,1\nnan,2\n", {}, "row 3: a time 'nan'"),
        ("t,x\n0,1\ninf,2\n", {}, "row 3: a time 'inf'"),
        ("t,x\n0,1\n,2\n", {}, "row 3: a time ''"),
        ("day,x\n2024-01-01,1\n2024-13-01,1\n", {}, "row 3: a time '2024-13-01'.* or dates, such as"),
        ("day,x\n2024-01-02,1\n2024-01-01,1\n", {}, "row 3: the time 2024-01-01 comes after 2024-01-02"),
        ("t,x\n0,1\n2,2\n1,3\n", {}, r"row 4: the time 1 comes after 2\. Sort the rows"),
        (",x\n0,1\n2,2\n1,3\n", {}, r"row 4: the time 1 comes after 2\. Sort the rows by the first column\."),
        ("t,x\n0,1\n1,2\n1,3\n", {}, "row 4: the time 1 for the second time"),
        ("t,x,y\n" + "".join(f"{i},{i % 3},.1\n" for i in range(100)), {}, "row 61: .* 'y' is constant, 0.1. .* x"),
        ("t,x,y\n" + "".join(f"{i},{i % 3},\n" for i in range(99)), {}, "row 2: .* no row .* 'y'. .* --columns x"),
        ("t,x,y\n" + "".join(f"{i},nan,1\n" for i in range(99)), {"columns": ("x",)}, "row 2: .* no row .* 'x'"),
        ("t,x,y\n" + GOOD, {"window": 32}, "row 101: the file ends.* --window 20 or less"),
        ("t,x\n0,1\n1,2\n2,1\n3,4\n", {}, "row 5: the file ends.* 40 rows or more"),
        ("t,x\n0,1\n1,1\n2,3\n", {}, "row 4: the file ends.* 40 rows or more"),
        ("t,x\n" + "".join(f"{i},{i % 3 if i < 70 else ''}\n" for i in range(100)), {}, "row 101: .*with a value"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_row(tmp_path, content, options, told):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=told) as raised:
        _ = Csv(path, **{"window": 16, **options}).form
    assert "bad.csv" in str(raised.value)


def test_a_column_that_tells_series_apart_is_named(tmp_path):
    rows = [(t, who, t * t + len(who)) for who in ("ann", "bob", "cy") for t in range(20)]
    apart = written(tmp_path / "apart.csv", rows, ("t", "sick person", "x"))
    with pytest.raises(ValueError, match=r"row 22: .* 'sick person' seems to tell .* pass --id-column 'sick person'.$"):
        read_csv(apart)
    assert len(read_csv(apart, id_column="sick person").series) == 3
    mixed = written(tmp_path / "mixed.csv", sorted(rows), ("t", "who", "x"))
    with pytest.raises(ValueError, match=r"the time 0 for the second time. .* pass --id-column who.$"):
        read_csv(mixed)
    wards = written(tmp_path / "wards.csv", [(ord(who[0]), t, x) for t, who, x in rows], ("ward", "hour", "x"))
    with pytest.raises(ValueError, match=r"pass --id-column ward --time-column hour.$"):
        read_csv(wards)
    assert len(read_csv(wards, "hour", "ward").series) == 3


def test_rows_out_of_order_are_not_taken_for_series(tmp_path):
    rows = [(t, t % 2, t) for t in (*range(30), 12, *range(30, 60))]
    with pytest.raises(ValueError, match=r"Sort the rows by 't'. .* --id-column NAME.$"):
        read_csv(written(tmp_path / "order.csv", rows, ("t", "flag", "x")))


def test_a_missing_file_and_wrong_sizes(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.csv.*no such file"):
        _ = Csv(tmp_path / "absent.csv").form
    with pytest.raises(ValueError, match="window = 4"):
        Csv(tmp_path / "a.csv", window=4)
    with pytest.raises(ValueError, match=r"missing = 1\.0"):
        Csv(tmp_path / "a.csv", missing=1.0)


@pytest.mark.parametrize(("count", "window"), [(40, 8), (79, 8), (80, 8), (200, 20), (320, 32), (640, 64), (3000, 64)])
def test_the_window_fits_short_files(tmp_path, count, window):
    task = Csv(written(tmp_path / "short.csv", waves(count)))
    assert task.facts()["rows in a window"] == window
    assert all(task.count(split) >= 1 for split in Split) and task.count(Split.TRAIN) > task.count(Split.TEST)
    if count < 400:  # a batch takes the fit of the linear reference
        assert task.batch(Split.TEST, torch.arange(1)).query_times.shape == (1, 2 * (window // 8))
    assert task.form.spacing == pytest.approx(1 / (window - 1))


def test_the_window_fits_most_series(tmp_path):
    lengths = {"a": 9, "b": 30, "c": 12, "d": 50, "e": 20}
    rows = [(name, *row) for name, count in lengths.items() for row in waves(count)]
    facts = Csv(written(tmp_path / "many.csv", rows, ("who", "t", "x", "y")), id_column="who").facts()
    assert facts["rows in a window"] == 20 and facts["split by"] == "series"
    assert facts["notes"] == [
        "windows of 20 rows, trained up to 5 ahead",
        "2 series shorter than a window of 20 rows are left out",
    ]


@pytest.mark.parametrize("lengths", [(1000, 9, 1000), (1000, 1000, 9), (1000, 30, 1000, 30), (1000, 1000, 9, 9, 9)])
def test_short_series_do_not_shrink_the_window_of_long_ones(tmp_path, lengths):
    rows = [(f"s{place}", *row) for place, count in enumerate(lengths) for row in waves(count)]
    task = Csv(written(tmp_path / "few.csv", rows, ("who", "t", "x", "y")), id_column="who")
    facts = task.facts()
    assert facts["rows in a window"] == 64 and facts["split by"] == "time"
    counts = {split: task.count(split) for split in Split}  # of 600, 200 and 200 rows, twice
    # every second row begins one, so that there are some 200
    assert counts == {Split.TRAIN: 2 * (600 - 63), Split.VALIDATION: 2 * 69, Split.TEST: 2 * 69}


def test_one_long_series_does_not_push_out_many_short_ones(tmp_path):
    lengths = [*[40] * 30, 1000]
    rows = [(f"s{place}", *row) for place, count in enumerate(lengths) for row in waves(count)]
    facts = Csv(written(tmp_path / "many.csv", rows, ("who", "t", "x", "y")), id_column="who").facts()
    assert facts["rows in a window"] == 40 and facts["split by"] == "series" and len(facts["notes"]) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_any_system(tmp_path, end):
    file = tmp_path / "lines.csv"
    file.write_bytes(end.join(["t,x", "0,1", "", "1,2", ""]).encode())
    (series,) = read_csv(file).series
    assert series.rows == [2, 4] and series.values.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("cell", ["", "7"])
def test_columns_offered_for_copying_are_quoted(tmp_path, cell):
    rows = [(i, i % 3, i % 5, cell) for i in range(100)]
    file = written(tmp_path / "level.csv", rows, ("t", "sea level", "x", "flat"))
    with pytest.raises(ValueError, match="Learn the others: --columns 'sea level,x'"):
        _ = Csv(file).form


def test_what_is_missing_or_left_out_is_counted(tmp_path):
    rows = [("" if i % 5 == 0 else x, t, "nan" if i % 7 == 0 else y, "ok") for i, (t, x, y) in enumerate(waves(200))]
    facts = Csv(written(tmp_path / "gaps.csv", rows, ("x", "t", "y", "note"))).facts()
    assert facts["missing cells"] == {"x": 40, "y": 29}
    assert facts["notes"][1:] == [
        "69 of 400 cells are missing (x 40, y 29)",
        "columns without numbers are left out: note",
    ]
    assert Csv(written(tmp_path / "whole.csv", waves(100))).facts()["notes"] == [
        "windows of 10 rows, trained up to 2 ahead"  # what fits 100 rows
    ]


def test_the_nearest_column_is_named(tmp_path):
    file = written(tmp_path / "named.csv", waves(100), ("hours", "height", "depth"))
    for argument, value, near in (
        ("time_column", "hour", "hours"),
        ("id_column", "heigth", "height"),
        ("columns", ("dpth",), "depth"),
    ):
        with pytest.raises(ValueError, match=f"^{argument} = .*Did you mean '{near}'"):
            _ = Csv(file, **{argument: value}).form
    with pytest.raises(ValueError, match=r"^columns = 'depth': this column of .* is named before"):
        _ = Csv(file, columns=("depth", "depth")).form
    table = read_csv(file, id_column="hours", columns=("depth",))
    assert [float(series.times[0]) for series in table.series] == [row[1] for row in waves(100)]  # height: no id


def test_training_asks_for_other_rows_every_time(file):
    task = Csv(file, window=24)
    drawn = {tuple(task.training_batch(73, update, 0).query_times[0].tolist()) for update in range(6)}
    assert len(drawn) > 3
    batch = task.batch(Split.TRAIN, torch.arange(5))
    again = task.augment(batch, torch.Generator().manual_seed(0))
    assert torch.equal(again.index, batch.index) and not torch.equal(again.query_times, batch.query_times)


def test_files_as_pandas_and_spreadsheets_write_them(tmp_path):
    frames = {
        "index.csv": b",co2\n1958-03-29,316.1\n1958-04-05,\n1958-04-12,317.6\n",
        "moments.csv": b"when;co2\n1958-03-29 00:00:00;316,1\n1958-04-05 00:00:00;n/a\n1958-04-12T00:00:00Z;317,6\n",
        "encoded.csv": b"Date\tco2\tr\xe9marque\n1958-03-29\t316.1\ta\n1958-04-05\tNA\tb\n1958-04-12\t317.6\tc\n",
        "dotted.csv": b"Datum;co2\n29.03.1958;316,1\n5.4.1958 00:00;n/a\n12.04.1958;317,6\n",
        "numbered.csv": b",date,co2\n0,1958-03-29,316.1\n1,1958-04-05,-\n2,1958-04-12,317.6\n",
    }
    for name, content in frames.items():
        (tmp_path / name).write_bytes(content)
        table = read_csv(tmp_path / name)
        assert table.columns == ("co2",) and table.unit == "days", name
        assert table.series[0].times.diff().tolist() == [7.0, 7.0]
        assert table.series[0].values[:, 0].nan_to_num(0.0).tolist() == [316.1, 0.0, 317.6]
    (tmp_path / "q.csv").write_text("quarter,x\n1959Q1,1\n1959Q2,2\n")
    assert read_csv(tmp_path / "q.csv").series[0].times.diff().tolist() == [90.0]
    (tmp_path / "halves.csv").write_text("t;x\n0,5;1,5\n1,25;2\n")
    assert read_csv(tmp_path / "halves.csv").series[0].times.tolist() == [0.5, 1.25]


def test_what_does_not_change_along_a_series_is_static(tmp_path):
    rows = [(who, t, x, 10.0 * place) for place, who in enumerate("abcd") for t, x, _ in waves(30)]
    file = written(tmp_path / "sites.csv", rows, ("site", "t", "x", "height"))
    table = read_csv(file, id_column="site")
    assert table.columns == ("x",) and table.statics == ("height",)
    assert [series.static for series in table.series] == [(0.0,), (10.0,), (20.0,), (30.0,)]
    task = Csv(file, 16, id_column="site")
    batch = task.batch(Split.TRAIN, torch.arange(task.count(Split.TRAIN)))
    assert task.form.features == 3 and len(batch.inputs[0][..., 2][batch.inputs[2]].unique()) == 2
    with pytest.raises(ValueError, match=r"row 3: .* in the static column 'x'. .*--columns"):
        read_csv(file, id_column="site", columns=("height",), static=("x",))


def test_the_whole_file_is_trained_on_where_that_is_asked(file):
    task = Csv(file, window=16, whole=True)
    facts = task.facts()
    assert task.count(Split.TRAIN) == 160 - 15 and facts["validation"] == "windows of the training part"
    assert "nothing is held out" in facts["split"]
    assert Csv(file, window=16).facts()["split"] == "by time: 96 rows train, then 32 rows validation, then 32 rows test"
