"""Figures are made from plain numbers, are well-formed, and are the same for the same numbers."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from continua.report import (
    PontryaginRecord,
    SolveRecord,
    figure_svg,
    pontryagin_figures,
    resolution_figures,
    save_figures,
    solve_figures,
)
from continua.runs import Lines, Scale, Series
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
    assert len(panels(save_figures([figures()[name]] * 3, tmp_path / "new" / "three.svg"))) == 3


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
    series = Series.of("y", range(len(y)), y, mark="both")
    svg, data = figure_svg(Lines(title="t", x=Scale("x"), y=Scale("y", log=log), series=(series,)))
    ticks = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("class") == "ty"]
    assert 1 <= len(ticks) <= 12 and all(-1e-3 <= float(g.get("data-v")) <= 1.001 for g in ticks)
    assert data["y"]["low"] < data["y"]["high"] and "nan" not in svg and "inf" not in svg


# --- one solve


@pytest.fixture
def record() -> SolveRecord:
    random = np.random.default_rng(0)
    grid = [0.0, 0.1, 0.4, 0.5, 0.8, 1.0]
    return SolveRecord(
        depths=np.linspace(0.0, 1.0, 9).tolist(),
        tokens=random.normal(size=(9, 7, 5)).cumsum(0),
        times=np.sort(random.random(7)).tolist(),
        grid=grid,
        errors=[0.2, 0.9, 0.01, 0.5, 0.3],
        costate_depths=grid[::-1],
        costates=np.exp(random.normal(size=(6, 7))),
        breaks=(0.5,),
    )


def test_a_solve_is_drawn_with_tokens_costates_steps_and_errors(record, tmp_path):
    path = save_figures(solve_figures(record), tmp_path / "new" / "solve.svg")
    assert path == tmp_path / "new" / "solve.svg" and len(panels(path)) == 4
    assert [figure.kind for figure in solve_figures(record)] == ["paths", "lines", "steps", "lines"]


def test_the_same_numbers_give_the_same_file(record, tmp_path):
    first, second = (save_figures(solve_figures(record), tmp_path / name) for name in ("first.svg", "second.svg"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"errors": ()},  # a given grid has no estimates
        {"breaks": ()},
        {"tokens": np.zeros((9, 7, 1))},  # no second direction, and no motion at all
        {"costates": np.zeros((6, 7))},  # nothing flows back
        {"times": [0.0] * 7},
    ],
    ids=["no errors", "no breaks", "width 1", "no costate", "one time"],
)
def test_sparse_records_are_drawn_without_a_warning(record, changes, tmp_path):
    drawn = solve_figures(dataclasses.replace(record, **changes))
    assert len(panels(save_figures(drawn, tmp_path / "solve.svg"))) == (3 if "errors" in changes else 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"times": [0.0, 1.0]}, "tokens"),
        ({"costate_depths": [0.0, 1.0]}, "costates"),
        ({"errors": [0.5]}, "errors"),
        ({"grid": [0.0], "errors": []}, "errors"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(record, changes, named, unchecked):
    with pytest.raises(ValueError, match=f"^{named} = "):
        dataclasses.replace(record, **changes)


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
        *resolution_rows("nodes", [3, 12]),
        *resolution_rows("heads", [3, 12]),
    ]
    rows += [*resolution_rows("steps", [1, 2, 4, 8, 16, 32, 64]), *resolution_rows("rtol", [1e-2, 1e-3])]
    own = {"tokens": 17, "nodes": 6, "heads": 6, "steps": 4, "rtol": 1e-3}
    return {"rows": rows, "own": own, "solver_invariance": 1e-5}


def test_a_resolution_report_is_drawn_with_a_panel_for_each_unit(report, tmp_path):
    drawn = save_figures(resolution_figures(report), tmp_path / "resolution.svg")
    assert len(panels(drawn)) == 5
    assert drawn.read_bytes() == save_figures(resolution_figures(report), tmp_path / "again.svg").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": resolution_rows("steps", [1, 2], loss=False)},
        {"rows": [{**row, "change": 0.0} for row in resolution_rows("heads", [6, 12])]},
        {"rows": [{**row, "change": 0.0, "loss_change": 0.0} for row in resolution_rows("rtol", [1e-3])]},
        {"own": {}},
        {"solver_invariance": 0.0},
        {"solver_invariance": None},
    ],
    ids=["no loss", "no change", "one without change", "no own", "no distance", "no reference"],
)
def test_sparse_reports_are_drawn_without_a_warning(report, changes, tmp_path):
    drawn = resolution_figures({**report, **changes})
    assert len(panels(save_figures(drawn, tmp_path / "resolution.svg"))) == len(drawn) > 0


@pytest.mark.parametrize("changes", [{"rows": []}, {"own": None}], ids=["no rows", "no own"])
def test_a_report_without_rows_is_refused(report, changes):
    spoiled = {name: value for name, value in {**report, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=r"report = \[.*there is nothing to draw.*Pass report\.plain\(\)"):
        resolution_figures(spoiled)


# --- conditions of optimality


@pytest.fixture
def conditions() -> PontryaginRecord:
    random, depths = np.random.default_rng(0), np.linspace(0.0, 1.0, 9)
    return PontryaginRecord(
        depths=depths,
        hamiltonian=0.1 + 0.01 * random.normal(size=(9, 3)).cumsum(0),
        costates=np.exp(-depths),
        gradients=np.abs(np.sin(6.0 * depths)) + 0.1,
        defects=10.0 ** random.normal(-6.0, 1.0, size=8),
        projected=0.2,
        breaks=(0.5,),
    )


def test_conditions_of_optimality_are_drawn_and_the_same_each_time(conditions, tmp_path):
    first, second = (save_figures(pontryagin_figures(conditions), tmp_path / name) for name in ("a.svg", "b.svg"))
    assert len(panels(first)) == 4 and first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", ["gradients", "defects", "costates", "hamiltonian"])
def test_zeros_are_drawn_without_a_warning(conditions, name, tmp_path):
    empty = dataclasses.replace(
        conditions, **{name: np.zeros_like(getattr(conditions, name))}, projected=0.0, breaks=()
    )
    assert len(panels(save_figures(pontryagin_figures(empty), tmp_path / "zeros.svg"))) == 4


@pytest.mark.parametrize("name", ["gradients", "defects", "costates", "hamiltonian"])
def test_conditions_that_do_not_fit_are_refused(conditions, name, unchecked):
    with pytest.raises(ValueError, match=f"^{name} = "):
        dataclasses.replace(conditions, **{name: np.zeros((4, 1))})
