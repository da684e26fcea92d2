"""Real-valued series in a CSV file: one sample per row, columns of times, of series and of values."""

import csv
import difflib
import functools
import io
import itertools
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.data.files import read_number, read_text, refuse_row

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

    def cut(self, first: int, last: int) -> "CsvSeries":
        """Its samples from one place to another."""
        return CsvSeries(self.id, self.rows[first:last], self.times[first:last], self.values[first:last])


class CsvTable(NamedTuple):
    """All series of a file in the order of their first rows, the names of the value columns, and of those left out.

    Left out are columns of words, where no columns were asked for.
    """

    file: Path
    series: list[CsvSeries]
    columns: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def missing(self) -> dict[str, int]:
        """How many cells of each value column are missing."""
        counts = torch.cat([series.values for series in self.series]).isnan().sum(0)
        return dict(zip(self.columns, counts.tolist(), strict=True))

    def without(self, column: str, otherwise: str) -> str:
        """The cure for a column that cannot be learnt: an option, ready to be copied, that names all others."""
        others = ",".join(name for name in self.columns if name != column)
        return f"Learn the others: --columns {shlex.quote(others)}." if others else otherwise


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
    header, lines, cells = _read_cells(file)
    sure = time is not None or _TIME in header
    time = time or (_TIME if _TIME in header else next((name for name in header if name != id), header[0]))
    _check_names(file, header, time, id, columns)
    numbers = torch.tensor([[read_number(cell) for cell in row] for row in cells], dtype=torch.float64)
    by_name = dict(zip(header, numbers.T, strict=True))
    others = [name for name in header if name not in (time, id)]
    chosen = tuple(columns or [name for name in others if bool(by_name[name].isfinite().any())])
    table = CsvTable(file, [], chosen, () if columns else tuple(name for name in others if name not in chosen))
    for name in columns or others:
        if bool(by_name[name].isnan().all()):
            cure = table.without(name, "Write its values.")
            refuse_row(file, lines[0], f"from here on no row has a value in the column {name!r}", cure)
        if columns and not bool(by_name[name].isfinite().any()):
            cure = "Choose columns of numbers; an id that tells series apart goes to --id."
            reject("columns", name, f"no row of {file} has a number in this column", cure)
    if not chosen:
        cure = "Add one; times and values have columns of their own."
        refuse_row(file, 1, f"no column of numbers beside {[name for name in (time, id) if name is not None]}", cure)
    values = torch.stack([by_name[name] for name in chosen], 1)
    for row, place in values.isinf().nonzero().tolist():
        cure = "Write a number, leave the cell empty if it is missing, or choose other columns with --columns."
        word = cells[row][header.index(chosen[place])]
        refuse_row(file, lines[row], f"{word!r} in the column {chosen[place]!r}", cure)
    by_id = dict[str, list[int]]()
    for row, words in enumerate(cells):
        by_id.setdefault("" if id is None else words[header.index(id)], []).append(row)
    words = [row[header.index(time)] for row in cells]
    clocks = [time] if sure else [time, *others]
    for name, rows in by_id.items():
        numbered, times = [lines[row] for row in rows], by_name[time][rows]
        cure = functools.partial(_cure_by_ids, header, cells, clocks) if id is None else str
        _check_times(file, numbered, times, [words[row] for row in rows], time, cure)
        table.series.append(CsvSeries(name, numbered, times, values[rows]))
    return table


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


def _cure_by_ids(header: list[str], cells: list[list[str]], clocks: Sequence[str], otherwise: str) -> str:
    """The option for a column of ids: one of few words, within each of which the times rise. Or another cure."""
    for clock, name in itertools.product(clocks, header):
        by_word = dict[str, list[float]]()
        for row in cells:
            by_word.setdefault(row[header.index(name)], []).append(read_number(row[header.index(clock)]))
        rise = all(a < b for times in by_word.values() for a, b in itertools.pairwise(times))
        # persons and days tell each other's rows apart: where no column is surely the times, the fewer are the ids
        fewer = len(clocks) == 1 or len(by_word) < len({row[header.index(clock)] for row in cells})
        if rise and fewer and name != clock and 1 < len(by_word) <= len(cells) // 3:
            time = f" --time {shlex.quote(clock)}" if clock != clocks[0] else ""
            return f"The column {name!r} seems to tell series apart: pass --id {shlex.quote(name)}{time}."
    return f"{otherwise} Rows of several series need a column of ids: --id NAME."


def _check_times(
    file: Path, lines: list[int], times: Tensor, words: list[str], column: str, cure: Callable[[str], str]
) -> None:
    """Every time is a number, and later than the one before; `words` are the cells it was read from."""
    for line, time, word, before in zip(lines, times.tolist(), words, [-math.inf, *times.tolist()], strict=False):
        if not math.isfinite(time):
            numbers = f"Write numbers, such as hours since the start, in the column {column!r}"
            refuse_row(file, line, f"a time {word!r}", f"{numbers}, or name another with --time.")
        if time == before:
            refuse_row(file, line, f"the time {word} for the second time", cure("Keep one row for it."))
        if time < before:
            refuse_row(file, line, f"the time {word} comes after {before:g}", cure(f"Sort the rows by {column!r}."))


def _read_cells(file: Path) -> tuple[list[str], list[int], list[list[str]]]:
    """The names of the columns; of all rows that are not blank, their numbers and their cells."""
    # newline=None: a file with the line ends of old Macs would be one single row to the csv module
    reader = csv.reader(io.StringIO(read_text(file, "CSV file"), newline=None), skipinitialspace=True)
    try:
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        refuse_row(file, reader.line_num, f"this is no CSV ({error})", "Save the table as plain CSV.")
    if not found:
        reject("file", str(file), "the file has no cell that is filled", "Write a header and a row for each sample.")
    (first, header), *body = found
    for mark in (";", "\t"):
        if len(header) == 1 and mark in header[0]:
            refuse_row(file, first, f"cells parted by {mark!r}", "Save the table with commas, and points in numbers.")
    if any(not math.isinf(read_number(name)) for name in header):
        refuse_row(file, first, f"numbers in the header {header}", "Write the names of the columns in the first row.")
    for name in header:
        if header.count(name) > 1:
            refuse_row(file, first, f"two columns are called {name!r}", "Give every column a name of its own.")
    if not body:
        refuse_row(file, first, "a header without rows", "Write a row for each sample below it.")
    for number, row in body:
        if len(row) != len(header):
            cure = "Give every row a cell for each column; a missing value is an empty cell."
            refuse_row(file, number, f"{len(row)} cells, where the header has {len(header)}", cure)
    return header, [number for number, _ in body], [row for _, row in body]
