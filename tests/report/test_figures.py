"""Figures are made from plain numbers, are well-formed, and are the same for the same numbers."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from continua.report import figure_svg, resolution_figures, save_figures
from continua.report.drawing import read_asset
from continua.report.labels import _NARROW, _WIDE, Box, place_labels
from continua.report.scales import tick_words
from continua.runs import Curve, Lines, Scale
from run_folders import figures

SVG = "{http://www.w3.org/2000/svg}"


def panels(path) -> list[ElementTree.Element]:
    """The panels of a file, each with a window in which something is drawn."""
    root = ElementTree.parse(path).getroot()
    found = [group for group in root.iter(f"{SVG}g") if group.get("class") == "panel"]
    windows = [box for group in found for box in group.iter(f"{SVG}svg") if box.get("class") == "window box"]
    assert root.tag == f"{SVG}svg" and len(windows) == len(found) and all(len(box) > 0 for box in windows)
    assert "NaN" not in path.read_text() and "nan" not in path.read_text() and "var(" not in path.read_text()
    return found


# --- every kind


@pytest.mark.parametrize("name", sorted(set(figures()) - {"table"}))
def test_every_kind_is_drawn_by_itself_and_in_a_file(name, tmp_path):
    svg, data = figure_svg(figures()[name])
    assert ElementTree.fromstring(svg).get("aria-label") == figures()[name].title == data["title"]
    path = save_figures([figures()[name]] * 3, tmp_path / "new" / "three.svg")
    assert path == tmp_path / "new" / "three.svg" and len(panels(path)) == 3
    assert path.read_bytes() == save_figures([figures()[name]] * 3, tmp_path / "again.svg").read_bytes()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("paths", {"points": np.zeros_like(figures()["paths"].points)}),  # no motion at all
        ("paths", {"tokens": np.zeros(12)}),  # one time
        ("heat", {"values": np.zeros_like(figures()["heat"].values)}),
        ("bars", {"values": np.zeros((2, 2))}),
        ("lines", {"notes": ()}),
    ],
)
def test_sparse_figures_are_drawn_without_a_warning(name, changes, tmp_path):
    assert len(panels(save_figures([dataclasses.replace(figures()[name], **changes)], tmp_path / "a.svg"))) == 1


def test_a_table_is_no_drawing_and_nothing_is_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"figure = 'table': it cannot be drawn"):
        save_figures([figures()["table"]], tmp_path / "a.svg")
    with pytest.raises(ValueError, match="there is nothing to draw"):
        save_figures([], tmp_path / "a.svg")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "y",
    [[], [np.nan, np.inf], [0.0, 0.0], [3.0], [-1.0, 1.0], [1e-300, 1e300], [1e308, -1e308], [5e-324, 5e-324],
     [0.1, 0.1 + 1e-17], [2.0, 2.5]],
    ids=str,
)  # fmt: skip
def test_any_numbers_are_drawn_with_ticks_inside(y, log, tmp_path):
    series = Curve.of("y", range(len(y)), y, mark="both")
    svg, data = figure_svg(Lines(title="t", x=Scale("x"), y=Scale("y", log=log), curves=(series,)))
    ticks = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("class") == "ty"]
    assert 1 <= len(ticks) <= 12 and all(-1e-3 <= float(g.get("data-v")) <= 1.001 for g in ticks)
    assert data["y"]["low"] < data["y"]["high"] and "nan" not in svg and "inf" not in svg


def axis(*y: float, log: bool = False) -> dict[str, float]:
    return figure_svg(Lines(title="t", x=Scale("x"), y=Scale("y", log), curves=(Curve.of("y", range(len(y)), y),)))[1][
        "y"
    ]


def test_an_axis_shows_zero_only_where_it_is_near_or_nothing_changes():
    assert axis(2.3, 1.2)["low"] > 1.0 and axis(0.9, 0.1)["low"] == 0.0
    assert axis(4.0, 4.0)["low"] == 0.0 and axis(4.0, 4.0)["high"] == pytest.approx(8.0, rel=0.06)
    assert axis(-3.0)["low"] < -3.0 < 0.0 <= axis(-3.0)["high"] and axis(0.0)["low"] < 0.0 < axis(0.0)["high"]


SIGHT = {
    "all colours": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
"""What readers see of linear red, green and blue: G. M. Machado et al., A physiologically-based model for simulation of
color vision deficiency (2009)."""


def perceived(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as a reader sees it; 2 is a difference one just notices."""
    shares = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    seen = np.clip(sight @ np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4), 0.0, 1.0)
    xyz = np.array([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]]) @ seen
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.array([116.0 * f[1] - 16.0, 500.0 * (f[0] - f[1]), 200.0 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT.values(), ids=SIGHT)
def test_models_truth_and_observations_differ_for_every_reader(sight):
    colours = re.findall(r"--c([0137]): (#\w{6});", read_asset("page.css"))
    assert [number for number, _ in colours] == [*"0137"] * 2  # the light scheme, then the dark one
    for scheme in (colours[:4], colours[4:]):
        for (_, one), (_, other) in itertools.combinations(scheme, 2):
            assert np.linalg.norm(perceived(one, sight) - perceived(other, sight)) > 25.0, (one, other)
    assert all(f"var(--c{number}, {colour})" in read_asset("figures.css") for number, colour in colours[:4])


# --- resolution reports


def resolution_rows(unit: str, at, loss: bool = True) -> list[dict]:
    return [
        {"unit": unit, "resolution": x, "change": 10.0**-i, "loss": 1.0 if loss else None, "loss_change": -(0.1**i)}
        | ({} if loss else {"loss_change": None})
        for i, x in enumerate(at)
    ]


@pytest.fixture
def report() -> dict:
    rows = [
        *resolution_rows("tokens", [5, 9, 33]),
        *resolution_rows("axis_nodes", [3, 12]),
        *resolution_rows("head_nodes", [3, 12]),
    ]
    rows += [*resolution_rows("steps", [1, 2, 4, 8, 16, 32, 64]), *resolution_rows("rtol", [1e-2, 1e-3])]
    own = {"tokens": 17, "axis_nodes": 6, "head_nodes": 6, "steps": 4, "rtol": 1e-3}
    return {"rows": rows, "own": own, "solver_error": 1e-5}


def test_a_resolution_report_is_drawn_with_a_panel_for_each_unit(report, tmp_path):
    drawn = save_figures(resolution_figures(report), tmp_path / "resolution.svg")
    assert len(panels(drawn)) == 5
    assert drawn.read_bytes() == save_figures(resolution_figures(report), tmp_path / "again.svg").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": resolution_rows("steps", [1, 2], loss=False)},
        {"rows": [{**row, "change": 0.0} for row in resolution_rows("head_nodes", [6, 12])]},
        {"rows": [{**row, "change": 0.0, "loss_change": 0.0} for row in resolution_rows("rtol", [1e-3])]},
        {"own": {}},
        {"solver_error": 0.0},
        {"solver_error": None},
    ],
    ids=["no loss", "no change", "one without change", "no own", "no distance", "no reference"],
)
def test_sparse_reports_are_drawn_without_a_warning(report, changes, tmp_path):
    drawn = resolution_figures({**report, **changes})
    assert len(panels(save_figures(drawn, tmp_path / "resolution.svg"))) == len(drawn) > 0


def test_a_report_without_rows_has_no_figures(report):
    assert resolution_figures({**report, "rows": []}) == ()


def test_ticks_of_a_narrow_axis_are_told_apart():
    assert tick_words([3.99992, 3.99996, 4.0]) == ["3.99992", "3.99996", "4"]
    assert tick_words([0.0, 0.5, 1.0]) == ["0", "0.5", "1"] and tick_words([]) == []


def test_few_counts_have_a_tick_each_and_few_times_round_ones():
    def ticks(x):
        svg, _ = figure_svg(Lines(title="t", x=Scale("x", log=True), y=Scale("y"), curves=(Curve.of("y", x, x),)))
        found = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("class") == "tx"]
        return [g.find(f"{SVG}text").text for g in found]

    assert ticks([1, 3, 4, 16]) == ["1", "3", "4", "16"]
    assert ticks([0.1634, 0.4217, 1.339]) == ["0.2", "0.5", "1"]


@pytest.mark.parametrize("seed", range(5))
def test_names_cover_no_point_and_no_other_name(seed):
    drawn = np.random.default_rng(seed)
    points = [(float(u), float(v)) for u, v in drawn.uniform(0.02, 0.98, (24, 2))]
    names = ["half of the samples missing" if k % 4 == 0 else f"{k} steps" for k in range(24)]
    labels = place_labels(points, names, 0.75)
    assert all(label is None or " ".join(label.lines) == name for label, name in zip(labels, names, strict=True))
    placed = {wide: sum(label is not None and label.wide is wide for label in labels) for wide in (False, True)}
    assert placed[False] > 6 and placed[True] > 0
    for width, wide in ((_NARROW, False), (_WIDE, True)):
        spots = [(width * u, 0.75 * width * v) for u, v in points]
        shown = [(label, label.box(*spot)) for label, spot in zip(labels, spots, strict=True)
                 if label is not None and label.wide <= wide]  # fmt: skip
        fresh = [box for label, box in shown if label.wide is wide]
        assert not any(a.meets(b) for a, (_, b) in itertools.product(fresh, shown) if a is not b)
        dots = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
        assert not any(box.meets(dot) for box in fresh for dot in dots)
        assert all(box.left >= 0 and box.right <= width and box.top >= 0 for box in fresh)
        for label, spot in zip(labels, spots, strict=True):
            if label is not None and label.wide is wide:  # its own point is the nearest
                box = label.box(*spot)
                assert min(spots, key=lambda other, box=box: box.distance(*other)) == spot


def test_labels_are_one_per_point():
    with pytest.raises(ValueError, match=r"labels = \('a',\): the curve has 2 points"):
        Curve.of("y", [1, 2], [1, 2], labels=("a",))
