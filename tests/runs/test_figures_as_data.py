"""Figures are plain data: they go to disk and come back, and what is broken is refused by its name."""

import json

import numpy as np
import pytest

from continua.runs import LARGE, Curve, Heat, Scale, Section, Table, from_plain, to_plain
from run_folders import figures, written_run


@pytest.mark.parametrize("name", sorted(figures()))
def test_a_figure_comes_back_from_json_as_it_was(name):
    plain = to_plain(figures()[name])
    again = from_plain(json.loads(json.dumps(plain, allow_nan=False)))
    assert type(again) is type(figures()[name]) and again.kind == ("lines" if name == "steps" else name)
    assert to_plain(again) == plain


def test_what_is_missing_is_null_on_disk_and_nan_in_memory():
    series = Curve.of("gap", [0, 1, 2], [1.0, None, np.inf])
    again = from_plain(json.loads(json.dumps(to_plain(series))))
    assert to_plain(series)["y"]["values"] == [1.0, None, None]
    assert np.isnan(again.y[1:]).all() and again.y[0] == 1.0


def test_large_arrays_stand_apart_and_come_back_with_their_hash_checked(tmp_path):
    run = written_run(tmp_path / "run", learners=("continuous",))
    heat = figures()["heat"]
    assert isinstance(heat, Heat) and heat.values.size > LARGE
    assert "e+" not in (text := (run.folder / "figures" / "00-attention-0.json").read_text())
    assert len(text) < 10 * heat.values.size  # the numbers themselves are elsewhere
    kept = run.sections()[0].figures[0]
    np.testing.assert_array_equal(kept.values, heat.values.astype(np.float32))
    path = run.folder / "arrays" / "figure-00-attention-0.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match=r"00-attention-0\.json.*does not match its hash"):
        run.sections()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{broken", "cannot be read"),
        ('{"kind": "pie"}', "there is no such figure"),
        ('{"kind": "lines", "colour": 1}', "cannot be read .*argument"),
        ('{"kind": "scale", "label": "x"}', "neither a section nor a figure"),
        ('{"kind": "array", "shape": [3], "values": [1]}', "cannot reshape array"),
    ],
)
def test_a_broken_figure_is_refused_by_its_file(tmp_path, text, told):
    run = written_run(tmp_path / "run", learners=("continuous",))
    (run.folder / "figures" / "02-new.json").write_text(text)
    with pytest.raises(ValueError, match=rf"02-new\.json.*{told}"):
        run.sections()


def test_a_figure_alone_is_a_section_and_data_of_other_readers_is_left_alone(tmp_path):
    run = written_run(tmp_path / "run", learners=("continuous",))
    before = len(run.sections())
    run.keep_section("03-table", figures()["table"])
    (run.folder / "figures" / "04-foreign.json").write_text('{"title": "for somebody else"}')
    sections = run.sections()
    assert len(sections) == before + 1 and sections[-1].heading == "Solver statistics"


def test_shapes_that_do_not_fit_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"curve 'a'\.y = \(2,\)"):
        Curve.of("a", [0, 1, 2], [0, 1])
    with pytest.raises(ValueError, match=r"rows\[1\]"):
        Table(title="t", columns=("a", "b"), rows=(("x", 1), ("y",)))
    with pytest.raises(ValueError, match="values = "):
        values = np.zeros((1, 1, 2, 3))
        Heat(title="t", x=Scale("x"), y=Scale("y"), columns=np.zeros(2), rows=np.zeros(3), values=values, value="v")


def test_a_name_that_is_no_file_name_is_refused(tmp_path):
    run = written_run(tmp_path / "run", learners=("continuous",))
    with pytest.raises(ValueError, match="it becomes the name of a file"):
        run.keep_section("../outside", Section("Other"))


def test_a_section_of_the_same_name_gives_way(tmp_path):
    run = written_run(tmp_path / "run", learners=("continuous",))
    run.keep_section("01-rest", Section("Other"))
    assert [section.heading for section in run.sections()] == ["Attention", "Other"]
