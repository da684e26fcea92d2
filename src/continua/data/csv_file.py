"""Real-valued series in a CSV file: one sample per row, columns of times, of ids, of values, and static ones.

Times are numbers as they are, or dates (ISO 8601, or day.month.year) as days since 1970.
"""

import csv
import datetime
import difflib
import functools
import io
import itertools
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.data.files import read_number, read_text, refuse_row

_CLOCKS = ("t", "time", "date", "datetime", "timestamp")
"""Columns of times where none is named, in lower case; without one, the first column."""
_INDEX = "index"
"""What a first column without a name is called: the index that pandas writes."""


class CsvSeries(NamedTuple):
    """One series: its id, the rows of the file it stands in, times (rows,) and values (rows, columns) in float64.

    A missing value is nan; `static` holds what does not change along the series.
    """

    id: str
    rows: list[int]
    times: Tensor
    values: Tensor
    static: tuple[float, ...] = ()

    def cut(self, first: int, last: int) -> "CsvSeries":
        """Its samples from one place to another."""
        return self._replace(rows=self.rows[first:last], times=self.times[first:last], values=self.values[first:last])


class CsvTable(NamedTuple):
    """All series of a file in the order of their first rows, the names of the value columns, and of those left out.

    Left out are columns of words, where no columns were asked for. `statics` names the columns that do not change
    along any series; `unit` is that of the times, empty where the file has plain numbers.
    """

    file: Path
    series: list[CsvSeries]
    columns: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    statics: tuple[str, ...] = ()
    unit: str = ""

    def missing(self) -> dict[str, int]:
        """How many cells of each value column are missing."""
        counts = torch.cat([series.values for series in self.series]).isnan().sum(0)
        return dict(zip(self.columns, counts.tolist(), strict=True))

    def without(self, column: str, otherwise: str) -> str:
        """The cure for a column that cannot be learnt: an option, ready to be copied, that names all others."""
        others = ",".join(name for name in self.columns if name != column)
        return f"Learn the others: --columns {shlex.quote(others)}." if others else otherwise


class Cells(NamedTuple):
    """A file as it is: names of the columns, the number of each row, its cells, and the mark between them."""

    header: list[str]
    lines: list[int]
    rows: list[list[str]]
    mark: str = ","
    unnamed: bool = False
    """Whether the first column had no name."""

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def numbers(self, name: str) -> Float[Tensor, " rows"]:
        """The numbers of a column: nan where one is missing, infinity where there is a word."""
        return torch.tensor([read_number(word) for word in self.words(name)], dtype=torch.float64)

    def words(self, name: str) -> list[str]:
        """The cells of a column, with points in numbers: tables with semicolons are from places that write 0,5."""
        found = self.column(name)
        return [word.replace(",", ".") for word in found] if self.mark == ";" else found


def read_csv(
    file: Path,
    time_column: str | None = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    static: Sequence[str] = (),
) -> CsvTable:
    """A file with a header, cells parted by commas, semicolons or tabs, and times that rise within each series.

    - `time_column`: times, numbers or dates (ISO 8601, 31.5.2024), by default "t", "time", "date" or the first;
    - `id_column`: what tells series apart; without it all rows are one series;
    - `columns`: those with values, by default all others in which a number stands;
    - `static`: columns of numbers that are the same in all rows of a series, such as the height of a station; beside
      `id_column` those are found where no columns are named.

    An empty cell, "nan" or "n/a" is a missing value. Whatever cannot be read is refused with its row, a column that is
    not there with the nearest one, and a column without any value as well.
    """
    cells = read_cells(file)
    header = cells.header
    named = next((name for clock in _CLOCKS for name in header if name.lower() == clock), None)
    sure = time_column is not None or named is not None
    time = time_column or named or next(n for n in header if n != id_column)
    _check_names(file, header, time, id_column, (*(columns or ()), *static))
    by_id = dict[str, list[int]]()
    for row, word in enumerate([""] * len(cells.rows) if id_column is None else cells.column(id_column)):
        by_id.setdefault(word, []).append(row)
    others = [name for name in header if name not in (time, id_column, *static) and (name != _INDEX or columns)]
    by_name = {name: cells.numbers(name) for name in (*others, *static)}
    if columns is None and len(by_id) > 1:
        static = (*static, *(name for name in others if _is_static(by_name[name], list(by_id.values()))))
        others = [name for name in others if name not in static]
    chosen = tuple(columns or [name for name in others if bool(by_name[name].isfinite().any())])
    table = CsvTable(file, [], chosen, () if columns else tuple(name for name in others if name not in chosen))
    _check_values(table, cells, by_name, columns, others, [name for name in (time, id_column) if name is not None])
    times, unit = read_times(cells.words(time))
    words, clocks = cells.column(time), [time] if sure else [time, *others]
    values = torch.stack([by_name[name] for name in chosen], 1)
    for name, rows in by_id.items():
        numbered, own = [cells.lines[row] for row in rows], torch.tensor(times, dtype=torch.float64)[rows]
        cure = functools.partial(_cure_by_ids, header, cells.rows, clocks) if id_column is None else str
        named = "the first column" if cells.unnamed and time == _INDEX else repr(time)
        _check_times(file, numbered, own, [words[row] for row in rows], named, cure)
        fixed = tuple(_static_value(file, cells, column, by_name[column], rows) for column in static)
        table.series.append(CsvSeries(name, numbered, own, values[rows], fixed))
    return table._replace(statics=tuple(static), unit=unit)


def _is_static(numbers: Tensor, by_series: list[list[int]]) -> bool:
    """Whether a column is the same in all rows of each series, and differs between them."""
    firsts = {float(numbers[rows[0]]) for rows in by_series}
    return bool(numbers.isfinite().all()) and len(firsts) > 1 and all(
        bool((numbers[rows] == numbers[rows[0]]).all()) for rows in by_series
    )  # fmt: skip


def _static_value(file: Path, cells: Cells, column: str, numbers: Tensor, rows: list[int]) -> float:
    """The one number of a column in all rows of a series."""
    own = numbers[rows]
    for row, number in zip(rows, own.tolist(), strict=True):
        if not math.isfinite(number) or number != float(own[0]):
            cure = "A static column has one number in all rows of a series; pass it as one of --columns instead."
            refuse_row(file, cells.lines[row], f"{number:g} in the static column {column!r}", cure)
    return float(own[0])


def _check_values(
    table: CsvTable,
    cells: Cells,
    by_name: Mapping[str, Tensor],
    columns: Sequence[str] | None,
    others: Sequence[str],
    taken: list[str],
) -> None:
    """Every column that is learnt has a number in some row and no words."""
    file, lines = table.file, cells.lines
    for name in columns or others:
        if bool(by_name[name].isnan().all()):
            cure = table.without(name, "Write its values.")
            refuse_row(file, lines[0], f"from here on no row has a value in the column {name!r}", cure)
        if columns and not bool(by_name[name].isfinite().any()):
            cure = "Choose columns of numbers; an id that tells series apart goes to --id-column."
            reject("columns", name, f"no row of {file} has a number in this column", cure)
    if not table.columns:
        cure = "Add one; times and values have columns of their own."
        seen = ""
        for name in others[:1]:
            row, word = next((row, word) for row, word in enumerate(cells.column(name)) if word)
            seen = f"; {name!r} has {word!r} in row {lines[row]}"
            cure = "Write plain numbers, such as 1234.5, without units and without marks between thousands."
        refuse_row(file, 1, f"no column of numbers beside {taken}{seen}", cure)
    for name in table.columns:
        for row in by_name[name].isinf().nonzero()[:, 0].tolist()[:1]:
            cure = "Write a number, leave the cell empty if it is missing, or choose other columns with --columns."
            refuse_row(file, lines[row], f"{cells.column(name)[row]!r} in the column {name!r}", cure)


def _check_names(file: Path, header: list[str], time: str, id: str | None, columns: Sequence[str] | None) -> None:
    """Every column that was asked for is there and has one meaning."""
    meaning = dict[str, str]()
    for argument, name in (("time_column", time), ("id_column", id), *(("columns", name) for name in columns or ())):
        if name is None:
            continue
        if name not in header:
            near = difflib.get_close_matches(name, header, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            reject(argument, name, f"{file} has no such column", f"{meant}Its columns are {', '.join(header)}.")
        if name in meaning:
            held = {"time_column": "holds the times", "id_column": "holds the ids", "columns": "is named before"}
            cure = "Give the times, the ids and each value a column of its own."
            reject(argument, name, f"this column of {file} {held[meaning[name]]}", cure)
        meaning[name] = argument


def _cure_by_ids(header: list[str], cells: list[list[str]], clocks: Sequence[str], otherwise: str) -> str:
    """The option for a column of ids: one of few words, within each of which the times rise. Or another cure."""
    for clock, name in itertools.product(clocks, header):
        by_word = dict[str, list[float]]()
        for row, time in zip(cells, read_times([row[header.index(clock)] for row in cells])[0], strict=True):
            by_word.setdefault(row[header.index(name)], []).append(time)
        rise = all(a < b for times in by_word.values() for a, b in itertools.pairwise(times))
        # persons and days tell each other's rows apart: where no column is surely the times, the fewer are the ids
        fewer = len(clocks) == 1 or len(by_word) < len({row[header.index(clock)] for row in cells})
        if rise and fewer and name != clock and 1 < len(by_word) <= len(cells) // 3:
            time = f" --time-column {shlex.quote(clock)}" if clock != clocks[0] else ""
            return f"The column {name!r} seems to tell series apart: pass --id-column {shlex.quote(name)}{time}."
    return f"{otherwise} Rows of several series need a column of ids: --id-column NAME."


def _check_times(
    file: Path, lines: list[int], times: Tensor, words: list[str], column: str, cure: Callable[[str], str]
) -> None:
    """Every time is a number, and later than the one before; `words` are the cells it was read from."""
    for line, time, word, before in zip(lines, times.tolist(), words, [-math.inf, *times.tolist()], strict=False):
        if not math.isfinite(time):
            numbers = f"Write numbers, such as hours since the start, or dates, such as 2024-05-31, in {column}"
            what = f"a time {word!r}" + (
                ", a date with slashes, where some write the day first and some the month"
                if word.count("/") == 2
                else ""
            )
            refuse_row(file, line, what, f"{numbers}, or name another with --time-column.")
        if time == before:
            refuse_row(file, line, f"the time {word} for the second time", cure("Keep one row for it."))
        if time < before:
            refuse_row(
                file,
                line,
                f"the time {word} comes after {words[lines.index(line) - 1]}",
                cure(f"Sort the rows by {column}."),
            )


def read_cells(file: Path) -> Cells:
    """The cells of all rows that are not blank; a first column without a name is the `index`."""
    content = read_text(file, "CSV file", otherwise="cp1252")  # what spreadsheets of the west save beside UTF-8
    first = next((line for line in content.splitlines() if line.strip()), "")
    mark = next((mark for mark in (",", ";", "\t") if mark in first), ",")
    # newline=None: a file with the line ends of old Macs would be one single row to the csv module
    reader = csv.reader(io.StringIO(content, newline=None), skipinitialspace=True, delimiter=mark)
    try:
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        refuse_row(file, reader.line_num, f"this is no CSV ({error})", "Save the table as plain CSV.")
    if not found:
        reject("file", str(file), "the file has no cell that is filled", "Write a header and a row for each sample.")
    (number, header), *body = found
    unnamed = header[0] == "" and _INDEX not in header
    header[0] = _INDEX if unnamed else header[0]
    _check_header(file, number, header)
    if not body:
        refuse_row(file, number, "a header without rows", "Write a row for each sample below it.")
    for number, row in body:
        if len(row) != len(header):
            cure = "Give every row a cell for each column; a missing value is an empty cell."
            refuse_row(file, number, f"{len(row)} cells, where the header has {len(header)}", cure)
    return Cells(header, [number for number, _ in body], [row for _, row in body], mark, unnamed)


def _check_header(file: Path, number: int, header: list[str]) -> None:
    for place, name in enumerate(header, start=1):
        if name == "":
            refuse_row(file, number, f"column {place} has no name", "Write the names of the columns in the first row.")
        if math.isfinite(read_number(name)):
            cure = "Write the names of the columns in the first row."
            refuse_row(file, number, f"numbers in the header {header}", cure)
        if header.count(name) > 1:
            refuse_row(file, number, f"two columns are called {name!r}", "Give every column a name of its own.")


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_QUARTER = re.compile(r"(\d{4})-?[qQ]([1-4])")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(.*)")
DAY = "days"
"""The unit of times that are dates."""


def read_times(words: Sequence[str]) -> tuple[list[float], str]:
    """The times of a column, and their unit: empty where they are numbers, days where they are dates.

    What is neither is infinite; in a column of dates a plain number is neither.
    """
    numbers = [read_number(word) for word in words]
    if all(math.isfinite(number) for number in numbers):
        return numbers, ""
    days = [_read_date(word) for word in words]
    dates = sum(math.isfinite(day) for day in days)
    return (days, DAY) if dates > sum(math.isfinite(number) for number in numbers) else (numbers, "")


def _read_date(word: str) -> float:
    """Days since 1970 of a date, a date with a time of day, a month 2024-05 or a quarter 2024Q2; infinity otherwise.

    Dates with dots have the day first wherever they are written; with slashes some write the month first. A
    time without a zone is taken as universal time.
    """
    if found := _MONTH.fullmatch(word):
        word = f"{word}-01"
    elif found := _QUARTER.fullmatch(word):
        word = f"{found[1]}-{3 * int(found[2]) - 2:02d}-01"
    elif found := _DOTTED.fullmatch(word):
        word = f"{found[3]}-{int(found[2]):02d}-{int(found[1]):02d}{found[4]}"
    if word.isdigit():
        return math.inf
    try:
        moment = datetime.datetime.fromisoformat(word)
    except ValueError:
        return math.inf
    moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) / datetime.timedelta(days=1)
