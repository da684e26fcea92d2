"""What a model's output and loss owe to the resolution of its axes, as a table."""

import dataclasses
from typing import Any, final

UNITS = {"tokens": "t", "nodes": "d", "heads": "h", "steps": "z", "rtol": "z"}
"""What a resolution counts, and the axis it belongs to."""


@final
@dataclasses.dataclass(frozen=True)
class ResolutionRow:
    """The model at another resolution of one axis, against itself.

    - `axis`: t (token time), d (embedding), h (heads) or z (depth); `unit`: what `resolution` counts;
    - `change`: |y - y0| / |y0|, y0 the output of the model as it is (|y| where y0 = 0);
    - `loss`, `loss_change`: the loss there, and what it is more than that of y0; `None` where no loss was given.
    """

    unit: str
    resolution: int | float
    change: float
    loss: float | None = None
    loss_change: float | None = None

    @property
    def axis(self) -> str:
        """The axis whose resolution is another."""
        return UNITS[self.unit]


@final
@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What could not be measured, and why; without a resolution, the whole axis."""

    unit: str
    resolution: int | float | None
    reason: str

    @property
    def axis(self) -> str:
        """The axis that was asked about."""
        return UNITS[self.unit]


@final
@dataclasses.dataclass(frozen=True)
class ResolutionReport:
    """Axis x resolution -> change of output and loss, and how far the training solver is from a tight one.

    - `own`: the model's own resolutions, by unit; `loss`: its loss as it is;
    - `solver_invariance`: |y0 - y| / |y|, y the output under the `reference` solver; `None` where that solve failed.
    """

    rows: tuple[ResolutionRow, ...]
    own: dict[str, int | float]
    solver_invariance: float | None
    reference: str
    loss: float | None = None
    left_out: tuple[LeftOut, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The report as plain data, which JSON can hold and `continua.report.resolution_figure` draws."""
        listed = {name: [{"axis": x.axis, **dataclasses.asdict(x)} for x in getattr(self, name)] for name in _LISTS}
        whole = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _LISTS}
        return {**whole, "own": dict(self.own), **listed}

    def __str__(self) -> str:
        head = ["axis", "resolution", "change of output", "loss", "change of loss"]
        lines = [head, *([row.axis, _count(row.unit, row.resolution), *_numbers(row)] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(word.ljust(n) for word, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        own = ", ".join(_count(unit, value) for unit, value in self.own.items())
        loss = "" if self.loss is None else f"; loss {self.loss:.6g}"
        absent = [f"left out, {x.axis}{_place(x)}: {x.reason}" for x in self.left_out]
        gap = "not measured" if self.solver_invariance is None else f"{self.solver_invariance:.1e}"
        invariance = f"solver invariance {gap}, against {self.reference}"
        return "\n".join([f"the model as it is: {own}{loss}", *table, invariance, *absent])


_LISTS = ("rows", "left_out")


def _numbers(row: ResolutionRow) -> list[str]:
    loss = "" if row.loss is None else f"{row.loss:.6g}"
    return [f"{row.change:.1e}", loss, "" if row.loss_change is None else f"{row.loss_change:+.1e}"]


def _count(unit: str, value: int | float) -> str:
    return f"{unit} {value:.0e}" if unit == "rtol" else f"{value:g} {unit[:-1] if value == 1 else unit}"


def _place(left: LeftOut) -> str:
    return "" if left.resolution is None else f" at {_count(left.unit, left.resolution)}"
