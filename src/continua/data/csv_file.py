"""Real-valued series in a CSV file: one sample per row, columns of times, of series and of values."""

import csv
import difflib
import io
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.data.files import read_text, refuse_row

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
    """All series of a file in the order of their first rows, the names of the value columns, and of those left out.

    Left out are columns of words, where no columns were asked for.
    """

    series: list[CsvSeries]
    columns: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def missing(self) -> dict[str, int]:
        """How many cells of each value column are missing."""
        counts = torch.cat([series.values for series in self.series]).isnan().sum(0)
        return dict(zip(self.columns, counts.tolist(), strict=True))


class _CsvRow(NamedTuple):
    number: int
    cells: dict[str, str]


def read_csv(
    file: Path, time: str | None = None, id: str | None = None, columns: Sequence[str] | None = None
) -> CsvTable:
    """A file with a header, cells parted by commas, and times that rise within each series.

    - `time`: the column of times, by default "t" or else the first;
    - `id`: the column that tells series apart; without it all rows are one series;
    - `columns`: those with values, by default all others in which a number stands.

    An empty cell or "nan" is a missing value. Whatever cannot be read is refused with its row, a column that is not
    there with the nearest one, and a column without any value as well.
    """
    header, rows = _read_rows(file)
    time = time or (_TIME if _TIME in header else next((name for name in header if name != id), header[0]))
    _check_names(file, header, time, id, columns)
    others = [name for name in header if name not in (time, id)]
    chosen = tuple(columns or [name for name in others if _has_numbers(rows, name)])
    _check_columns(file, rows, others, columns, chosen)
    if not chosen:
        cure = "Add one; times and values have columns of their own."
        refuse_row(file, 1, f"no column of numbers beside {[name for name in (time, id) if name is not None]}", cure)
    by_id = dict[str, list[_CsvRow]]()
    for row in rows:
        by_id.setdefault("" if id is None else row.cells[id], []).append(row)
    hint = " Rows of several series need a column of ids: --id NAME." if id is None else ""
    series = [
        CsvSeries(name, [row.number for row in own], _times(file, own, time, hint), _values(file, own, chosen))
        for name, own in by_id.items()
    ]
    return CsvTable(series, chosen, () if columns else tuple(name for name in others if name not in chosen))


def offer_others(columns: Sequence[str], without: str, otherwise: str) -> str:
    """The cure for a column that cannot be learnt: an option, ready to be copied, that names all others."""
    others = ",".join(name for name in columns if name != without)
    return f"Learn the others: --columns {shlex.quote(others)}." if others else otherwise


def _check_names(file: Path, header: list[str], time: str, id: str | None, columns: Sequence[str] | None) -> None:
    """Every column that was asked for is there and has one meaning."""
    meaning = dict[str, str]()
    for argument, name in (("time", time), ("id", id), *(("columns", name) for name in columns or ())):
        if name is None:
            continue
        if name not in header:
            near = difflib.get_close_matches(name, header, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            reject(argument, name, f"{file} has no such column", f"{meant}Its columns are {', '.join(header)}.")
        if name in meaning:
            also = {"time": "holds the times", "id": "holds the ids", "columns": "is named before"}[meaning[name]]
            cure = "Give the times, the ids and each value a column of its own."
            reject(argument, name, f"this column of {file} {also}", cure)
        meaning[name] = argument


def _check_columns(
    file: Path, rows: list[_CsvRow], others: list[str], columns: Sequence[str] | None, chosen: Sequence[str]
) -> None:
    """Refuses a column that holds nothing at all; without `columns` one of words is left out, but not an empty one."""
    for name in columns or others:
        if all((number := _number(row.cells[name])) is not None and math.isnan(number) for row in rows):
            what = f"from here on no row has a value in the column {name!r}"
            refuse_row(file, rows[0].number, what, offer_others(chosen, name, "Write its values."))
        if columns and not _has_numbers(rows, name):
            cure = "Choose columns of numbers; an id that tells series apart goes to --id."
            reject("columns", name, f"no row of {file} has a number in this column", cure)


def _read_rows(file: Path) -> tuple[list[str], list[_CsvRow]]:
    """The names of the columns, and all rows that are not blank."""
    # newline=None: a file with the line ends of old Macs would be one single row to the csv module
    reader = csv.reader(io.StringIO(read_text(file, "CSV file"), newline=None), skipinitialspace=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        refuse_row(file, reader.line_num, f"this is no CSV ({error})", "Save the table as plain CSV.")
    if not lines:
        reject("file", str(file), "the file has no cell that is filled", "Write a header and a row for each sample.")
    (first, header), *body = lines
    _check_header(file, first, header)
    if not body:
        refuse_row(file, first, "a header without rows", "Write a row for each sample below it.")
    for number, cells in body:
        if len(cells) != len(header):
            cure = "Give every row a cell for each column; a missing value is an empty cell."
            refuse_row(file, number, f"{len(cells)} cells, where the header has {len(header)}", cure)
    return header, [_CsvRow(number, dict(zip(header, cells, strict=True))) for number, cells in body]


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


def _has_numbers(rows: list[_CsvRow], name: str) -> bool:
    return any(number is not None and not math.isnan(number) for number in (_number(row.cells[name]) for row in rows))


def _times(file: Path, rows: list[_CsvRow], name: str, hint: str) -> Tensor:
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


def _values(file: Path, rows: list[_CsvRow], columns: Sequence[str]) -> Tensor:
    return torch.tensor([[_value(file, row, name) for name in columns] for row in rows], dtype=torch.float64)


def _value(file: Path, row: _CsvRow, name: str) -> float:
    value = _number(row.cells[name])
    if value is None or math.isinf(value):
        cure = "Write a number, leave the cell empty if it is missing, or choose other columns with --columns."
        refuse_row(file, row.number, f"{row.cells[name]!r} in the column {name!r}", cure)
    return value
