"""Figures are made from plain numbers, are well-formed, and are the same for the same numbers."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from continua.report import SolveRecord, resolution_figure, solve_figure


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


def test_a_solve_is_drawn_as_svg_and_png(record, tmp_path):
    drawn, painted = solve_figure(record, tmp_path / "new" / "solve")
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    assert painted.read_bytes().startswith(b"\x89PNG")
    assert {drawn.name, painted.name} == {"solve.svg", "solve.png"}


def test_the_same_numbers_give_the_same_file(record, tmp_path):
    first, second = (solve_figure(record, tmp_path / name)[0] for name in ("first", "second"))
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
    for path in solve_figure(dataclasses.replace(record, **changes), tmp_path / "solve"):
        assert path.stat().st_size > 0


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
    drawn, painted = resolution_figure(report, tmp_path / "resolution")
    root = ElementTree.parse(drawn).getroot()
    ids = [element.get("id", "") for element in root.iter()]
    assert sum(name.startswith("axes_") for name in ids) == 5
    assert painted.read_bytes().startswith(b"\x89PNG")
    assert drawn.read_bytes() == resolution_figure(report, tmp_path / "again")[0].read_bytes()


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
    for path in resolution_figure({**report, **changes}, tmp_path / "resolution"):
        assert path.stat().st_size > 0


@pytest.mark.parametrize("changes", [{"rows": []}, {"own": None}], ids=["no rows", "no own"])
def test_a_report_without_rows_is_refused(report, changes, tmp_path):
    spoiled = {name: value for name, value in {**report, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=r"report = \[.*there is nothing to draw.*Pass report\.plain\(\)"):
        resolution_figure(spoiled, tmp_path / "resolution")
