"""Windows of neighbouring rows of the series in a table, in three parts that share no row."""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import numpy as np
import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Tensor
from continua.data.csv_file import CsvSeries, CsvTable
from continua.data.files import refuse_row
from continua.data.series_transform import Rows, SeriesUnits
from continua.data.task import Split

_TRAIN, _VALIDATION = 0.6, 0.2
"""Shares of the rows, or of the series, for training and validation; the rest is the test."""

_ENOUGH = 3
"""From so many series on, each goes to one part as it is."""

_SMALLEST, _LARGEST = 8, 64
"""Rows of a window: an eighth is held out, so there are no fewer than eight, and by default no more than 64."""

_READ = 200
"""Windows of validation and of the test, where their rows suffice: what few of them choose is chosen by chance."""

Parts = Mapping[Split, list[CsvSeries]]


class Windows(NamedTuple):
    """The parts of a file in units of `scale` about `mean`, and the windows in each: a series and its first row.

    `duration` is the time that the longest window takes, `spacing` the usual time between rows as a fraction of it;
    static columns are in units of their own deviation.
    """

    table: CsvTable
    size: int
    parts: Parts
    starts: Mapping[Split, list[tuple[int, int]]]
    mean: Tensor
    scale: Tensor
    duration: float
    spacing: float
    static_moments: tuple[Tensor, Tensor]

    @property
    def short(self) -> int:
        """How many series are shorter than a window."""
        return sum(len(series.rows) < self.size for series in self.table.series)

    @property
    def split_by(self) -> str:
        """What the parts differ in."""
        return "series" if len(self.table.series) - self.short >= _ENOUGH else "time"

    def window(self, split: Split, number: int) -> Rows:
        """Times of [0, 1], values, nan where missing, and static numbers of all rows of a window."""
        place, start = self.starts[split][number]
        return self.units.rows(self.parts[split][place].cut(start, start + self.size))

    @property
    def units(self) -> SeriesUnits:
        """How rows become what a model reads."""
        mean, scale = (each.numpy() for each in self.static_moments)
        return SeriesUnits(self.table.columns, self.table.statics, self.table.unit, self.size, visible_rows(self.size),
                           self.mean.numpy(), self.scale.numpy(), self.duration, mean, scale)  # fmt: skip


def query_rows(filled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a window that may be asked for: between seen ones, and beyond them in the last quarter."""
    rows = np.arange(len(filled))
    seen = visible_rows(len(filled))
    inside = (rows >= 1) & (rows < seen - 1)  # the ends stay seen, so that what is held out lies between
    return rows[filled & inside], rows[filled & (rows >= seen)]


def visible_rows(window: int) -> int:
    """How many rows of a window come before its last quarter."""
    return window - window // 4


def fitting_window(table: CsvTable) -> int:
    """A size of windows that suits a table: 64 rows, or fewer where its series are short.

    Half of the series, or three at least, are as long as it. Where the longest one, cut in time, has two larger windows
    side by side in its smallest part, these are taken, unless the smallest part of the file then holds fewer.
    """
    lengths = sorted((len(series.rows) for series in table.series), reverse=True)
    cut = max(_SMALLEST, min(_LARGEST, _smallest_part(lengths[0]) // 2))
    if len(lengths) < _ENOUGH:
        return cut
    most = min(_LARGEST, lengths[max(_ENOUGH, (len(lengths) + 1) // 2) - 1])
    if most < _SMALLEST:
        return cut

    def fewest(size: int) -> int:
        """How many windows side by side fit into the part with the fewest."""
        parts = _split(table.series, size).values()
        return min(sum(len(series.rows) // size for series in part) for part in parts)

    return cut if cut > most and fewest(cut) >= fewest(most) else most


def build_windows(table: CsvTable, size: int, whole: bool = False) -> Windows:
    """All windows of `size` rows in training, in validation and test some 200, or one for every quarter of a window.

    Three or more series that are as long as a window are split as they are, drawn at random, and shorter ones left
    out; with fewer, every series is cut in time. A window needs rows with a value: an eighth of its size, and two more,
    between the seen rows, and an eighth beyond them. If `whole`, training has every row, and nothing is held out.
    """
    parts = {split: list(table.series) for split in Split} if whole else _split(table.series, size)
    starts, longest = dict[Split, list[tuple[int, int]]](), 0.0
    for split, part in parts.items():
        rows = sum(len(series.rows) for series in part)
        stride = 1 if split is Split.TRAIN else max(1, min(size // 4, rows // _READ))
        found = [(place, start) for place, series in enumerate(part) for start in _starts(series, size, stride)]
        if not found:
            _refuse_part(table, part, split, size)
        starts[split] = found
        longest = max(longest, *(float(part[i].times[start + size - 1] - part[i].times[start]) for i, start in found))
    gaps = torch.cat([each.times.diff() for each in parts[Split.TRAIN]])
    moments, static = _moments(table, parts[Split.TRAIN]), _static_moments(parts[Split.TRAIN])
    return Windows(table, size, parts, starts, *moments, longest, float(gaps.median()) / longest, static)


def _static_moments(train: list[CsvSeries]) -> tuple[Tensor, Tensor]:
    found = torch.tensor([series.static for series in train], dtype=torch.float64)
    spread = found.std(0) if len(found) > 1 and found.numel() else torch.zeros_like(found[0])
    return found.sum(0) / len(found), torch.where(spread > 0, spread, 1.0)


def _split(series: list[CsvSeries], size: int) -> Parts:
    """The parts for windows of `size` rows: whole series where enough are as long, else all of them cut in time."""
    long = [each for each in series if len(each.rows) >= size]
    if len(long) >= _ENOUGH:
        order = torch.randperm(len(long), generator=generator_of(0)).tolist()
        held = max(1, round(_VALIDATION * len(long)))
        drawn = (order[2 * held :], order[held : 2 * held], order[:held])
        return {split: [long[i] for i in sorted(own)] for split, own in zip(Split, drawn, strict=True)}
    # the test comes last: what is predicted in it was never seen in training, not even between its rows
    cuts = zip(*([each.cut(*part) for part in _cuts(len(each.rows))] for each in series), strict=True)
    return {split: list(part) for split, part in zip(Split, cuts, strict=True)}


def _cuts(rows: int) -> list[tuple[int, int]]:
    """Where the parts of a series begin and end that is cut in time."""
    ends = [0, math.floor(_TRAIN * rows), math.floor((_TRAIN + _VALIDATION) * rows), rows]
    return list(itertools.pairwise(ends))


def _smallest_part(rows: int) -> int:
    return min(last - first for first, last in _cuts(rows))


def _moments(table: CsvTable, train: list[CsvSeries]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column over the values of the training part."""
    every = torch.cat([series.values for series in train])
    columns = [column[~column.isnan()] for column in every.T]
    for name, values in zip(table.columns, columns, strict=True):
        # compared by its ends: rounding gives a constant column a deviation that is not 0
        if len(values) < 2 or float(values.min()) == float(values.max()):
            what = f"is constant, {float(values[0]):g}" if len(values) > 1 else "has fewer than two values"
            cure = table.without(name, "Learn a column that varies: --columns.")
            what = f"up to here, where training ends, the column {name!r} {what}"
            refuse_row(table.file, [row for series in train for row in series.rows][-1], what, cure)
    return torch.stack([values.mean() for values in columns]), torch.stack([values.std() for values in columns])


def _starts(series: CsvSeries, size: int, stride: int) -> list[int]:
    if len(series.rows) < size:
        return []
    filled = (~series.values.isnan().all(1)).unfold(0, size, stride)
    seen, queries = visible_rows(size), size // 8
    # two more than are held out, so that some of the rows remain to be seen
    enough = (filled[:, 1 : seen - 1].sum(1) >= queries + 2) & (filled[:, seen:].sum(1) >= queries)
    return (stride * enough.nonzero()[:, 0]).tolist()


def _refuse_part(table: CsvTable, part: list[CsvSeries], split: Split, size: int) -> NoReturn:
    last = max(row for each in table.series for row in each.rows)
    longest = max(len(each.rows) for each in part)
    if longest >= size:
        what = f"up to here no window of {size} rows for {split.value} has enough rows with a value"
        refuse_row(table.file, last, what, "Choose other columns with --columns, or leave empty rows out.")
    lengths = sorted((len(each.rows) for each in table.series), reverse=True)
    possible = max(_smallest_part(lengths[0]), *lengths[_ENOUGH - 1 : _ENOUGH], 0)
    cure = "Pass a file with 40 rows or more: a fifth of them is the test, and a window has 8."
    if possible >= _SMALLEST:
        cure = f"Pass --window {possible} or less (not below {_SMALLEST}), or more rows."
    what = f"the file ends, and {split.value} has {longest} rows at most, fewer than a window of {size}"
    refuse_row(table.file, last, what, cure)
