"""Numbers and words in rows."""

import dataclasses
from typing import final

from continua.core.errors import reject
from continua.runs.figures.figure import AbstractFigure

Cell = str | int | float | None


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Table(AbstractFigure):
    """Rows of cells under named columns; the first column names the row, `None` is an empty cell."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                cure = "Pass one cell a column, None where there is nothing to say."
                reject(f"rows[{place}]", row, f"there are {len(self.columns)} columns", cure)

    @property
    def kind(self) -> str:
        return "table"
