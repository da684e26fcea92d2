"""Real-valued series in a CSV file: a row a sample, columns of times, of series and of values."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.data.rows import refuse_row

_TIME = "t"
"""The column of times where none is named; without it, the first."""


class CsvSeries(NamedTuple):
    """One series: its id, the rows of the file it stands in, times (rows,) and values (rows, columns) in float64.

    A missing value is nan.
    """

    id: str
    rows: list[int]
    times: Tensor
    values: Tensor


class CsvTable(NamedTuple):
    """All series of a file in the order of their first rows, and the names of the value columns."""

    series: list[CsvSeries]
    columns: tuple[str, ...]


class _Row(NamedTuple):
    number: int
    cells: dict[str, str]


def read_csv(
    file: Path, time: str | None = None, id: str | None = None, columns: Sequence[str] | None = None
) -> CsvTable:
    """A file with a header, cells parted by commas, and times that rise within each series.

    - `time`: the column of times, by default "t" or else the first;
    - `id`: the column that tells series apart; without it all rows are one series;
    - `columns`: those with values, by default all others in which a number stands.

    An empty cell or "nan" is a missing value. Whatever cannot be read is refused with its row.
    """
    header, rows = _rows(file)
    time = time or (_TIME if _TIME in header else header[0])
    given = [name for name in (time, id, *(columns or ())) if name is not None]
    for name in given:
        if name not in header:
            refuse_row(file, 1, f"no column {name!r} among {header}", "Name one of these.")
    if len(set(given)) < len(given):
        cure = "Give the times, the series and each value a column of its own."
        refuse_row(file, 1, f"a column is named twice in {given}", cure)
    others = [name for name in header if name not in given]
    chosen = tuple(columns or [name for name in others if _has_numbers(rows, name)])
    if not chosen:
        refuse_row(
            file, 1, f"no column of numbers beside {given}", "Add one; times and values have columns of their own."
        )
    grouped = dict[str, list[_Row]]()
    for row in rows:
        grouped.setdefault("" if id is None else row.cells[id], []).append(row)
    hint = " Rows of several series need a column of ids: --id NAME." if id is None else ""
    series = [
        CsvSeries(name, [row.number for row in own], _times(file, own, time, hint), _values(file, own, chosen))
        for name, own in grouped.items()
    ]
    return CsvTable(series, chosen)


def _rows(file: Path) -> tuple[list[str], list[_Row]]:
    """The names of the columns, and all rows that are not blank."""
    if not file.is_file():
        reject(
            "file",
            str(file),
            "this is a folder" if file.is_dir() else "there is no such file",
            "Pass the path of a CSV file.",
        )
    reader = csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig", errors="replace")), skipinitialspace=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        refuse_row(file, reader.line_num, f"this is no CSV ({error})", "Save the table as plain CSV.")
    if not lines:
        refuse_row(file, 1, "the file is empty", "Write a header and a row for each sample.")
    (first, header), *body = lines
    _check_header(file, first, header)
    if not body:
        refuse_row(file, first, "a header without rows", "Write a row for each sample below it.")
    for number, cells in body:
        if len(cells) != len(header):
            cure = "Give every row a cell for each column; a missing value is an empty cell."
            refuse_row(file, number, f"{len(cells)} cells, where the header has {len(header)}", cure)
    return header, [_Row(number, dict(zip(header, cells, strict=True))) for number, cells in body]


def _check_header(file: Path, number: int, header: list[str]) -> None:
    for mark in (";", "\t"):
        if len(header) == 1 and mark in header[0]:
            refuse_row(file, number, f"cells parted by {mark!r}", "Save the table with commas, and points in numbers.")
    if any(_number(name) is not None for name in header):
        refuse_row(file, number, f"numbers in the header {header}", "Write the names of the columns in the first row.")
    for name in header:
        if header.count(name) > 1:
            refuse_row(file, number, f"two columns are called {name!r}", "Give every column a name of its own.")


def _number(word: str) -> float | None:
    """The number that a cell holds, nan where it is empty, or nothing where it holds something else."""
    try:
        return float(word or "nan")
    except ValueError:
        return None


def _has_numbers(rows: list[_Row], name: str) -> bool:
    return any(number is not None and not math.isnan(number) for number in (_number(row.cells[name]) for row in rows))


def _times(file: Path, rows: list[_Row], name: str, hint: str) -> Tensor:
    times = list[float]()
    for row in rows:
        word = row.cells[name]
        time = _number(word)
        if time is None or not math.isfinite(time):
            cure = f"Write numbers, such as hours since the start, in the column {name!r}, or name another with --time."
            refuse_row(file, row.number, f"a time {word!r}", cure)
        if times and time == times[-1]:
            refuse_row(file, row.number, f"the time {word} for the second time", f"Keep one row for it.{hint}")
        if times and time < times[-1]:
            cure = f"Sort the rows by the column {name!r}.{hint}"
            refuse_row(file, row.number, f"the time {word} comes after {times[-1]:g}", cure)
        times.append(time)
    return torch.tensor(times, dtype=torch.float64)


def _values(file: Path, rows: list[_Row], columns: Sequence[str]) -> Tensor:
    return torch.tensor([[_value(file, row, name) for name in columns] for row in rows], dtype=torch.float64)


def _value(file: Path, row: _Row, name: str) -> float:
    value = _number(row.cells[name])
    if value is None or math.isinf(value):
        cure = "Write a number, leave the cell empty if it is missing, or choose other columns with --columns."
        refuse_row(file, row.number, f"{row.cells[name]!r} in the column {name!r}", cure)
    return value
