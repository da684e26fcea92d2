"""The resolution report as a section: what output and loss owe to how finely the axes are read."""

from collections.abc import Mapping
from typing import Any

from continua.runs import Section, Table, Verdict

_AXES = {"t": "token time", "d": "embedding", "h": "heads", "z": "depth"}


def resolution_section(report: Mapping[str, Any], measured: str = "") -> Section:
    """From the plain data of a resolution report: `own`, `rows`, `solver_invariance`, `reference`, `left_out`."""
    own = ", ".join(_resolution({"unit": unit, "resolution": value}) for unit, value in report["own"].items())
    rows = tuple(
        (_AXES[row["axis"]], _resolution(row), row["change"], row.get("loss"), row.get("loss_change"))
        for row in report["rows"]
    )
    table = Table(
        title="Other resolutions, no further training",
        caption=f"The model as it is: {own}. One axis is changed at a time.",
        measured=measured,
        columns=("axis", "resolution", "change of output", "loss", "change of loss"),
        rows=rows,
    )
    absent = tuple(f"Left out, {_AXES[x['axis']]}: {x['reason']}" for x in report.get("left_out", ()))
    gap, reference = report["solver_invariance"], report["reference"]
    text = (
        f"Solver invariance was not measured: {reference} could not be solved."
        if gap is None
        else f"Solver invariance: the output is {gap:.1e} away, relatively, from {reference}."
    )
    prose = ("A model of functions should say the same however finely its axes are sampled.", *absent)
    return Section("Resolution", prose, figures=(table,), verdict=Verdict(text))


def _resolution(row: Mapping[str, Any]) -> str:
    value, unit = row["resolution"], row["unit"]
    return f"tolerance {value:.0e}" if unit == "rtol" else f"{value:g} {unit[:-1] if value == 1 else unit}"
