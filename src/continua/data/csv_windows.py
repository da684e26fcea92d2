"""Windows of neighbouring rows of the series in a CSV file, in three parts that share no row."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Bool, Int, Tensor
from continua.data.csv_file import CsvSeries, CsvTable, offer_others
from continua.data.files import refuse_row
from continua.data.task import Split

_TRAIN, _VALIDATION = 0.6, 0.2
"""Shares of the rows, or of the series, for training and validation; the rest is the test."""

_ENOUGH = 3
"""From so many series on, each goes to one part as it is."""

_SMALLEST, _LARGEST = 8, 64
"""Rows of a window: an eighth is held out, so there are no fewer than eight, and by default no more than 64."""

Parts = Mapping[Split, list[CsvSeries]]


class Windows(NamedTuple):
    """The parts of a file in units of `scale` about `mean`, and the windows in each: a series and its first row.

    `duration` is the time that the longest window takes, `short` how many series are shorter than one, `split_by` what
    the parts differ in, `rows` how many the file has, `missing` the cells of each column without a value, `left_out`
    the columns of words.
    """

    size: int
    columns: tuple[str, ...]
    parts: Parts
    starts: Mapping[Split, list[tuple[int, int]]]
    mean: Tensor
    scale: Tensor
    duration: float
    short: int
    split_by: str
    rows: int
    missing: Mapping[str, int]
    left_out: tuple[str, ...]

    def window(self, split: Split, number: int) -> tuple[Tensor, Tensor]:
        """Times of [0, 1] and values, nan where missing, of all rows of a window."""
        place, start = self.starts[split][number]
        series, rows = self.parts[split][place], slice(start, start + self.size)
        # subtracted in float64: times such as seconds since 1970 have no room for their differences in float32
        times = (series.times[rows] - series.times[start]) / self.duration
        return times.float(), ((series.values[rows] - self.mean) / self.scale).float()


def query_rows(complete: Bool[Tensor, " window"]) -> tuple[Int[Tensor, " between"], Int[Tensor, " beyond"]]:
    """Rows of a window that may be predicted: between seen ones, and beyond them in the last quarter."""
    rows = torch.arange(len(complete))
    seen = visible_rows(len(complete))
    inside = (rows >= 1) & (rows < seen - 1)  # the ends stay seen, so that what is held out lies between
    return rows[complete & inside], rows[complete & (rows >= seen)]


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
    return cut if cut > most and _fewest(table.series, cut) >= _fewest(table.series, most) else most


def _fewest(series: list[CsvSeries], size: int) -> int:
    """How many windows side by side fit into the part with the fewest."""
    return min(sum(len(each.rows) // size for each in own) for own in _split(series, size).values())


def build_windows(file: Path, table: CsvTable, size: int) -> Windows:
    """All windows of `size` rows in training, and in validation and test one for every quarter of a window.

    Three or more series that are as long as a window are split as they are, drawn at random, and shorter ones left
    out; with fewer, every series is cut in time. A window needs complete rows to predict: an eighth of its size, and
    two more, between the seen rows, and an eighth beyond them.
    """
    parts = _split(table.series, size)
    strides = {Split.TRAIN: 1, Split.VALIDATION: size // 4, Split.TEST: size // 4}
    starts = {
        split: [(place, start) for place, series in enumerate(own) for start in _starts(series, size, strides[split])]
        for split, own in parts.items()
    }
    for split, found in starts.items():
        if not found:
            _refuse_part(file, table.series, parts[split], split, size)
    mean, scale = _moments(file, parts[Split.TRAIN], table.columns)
    durations = [
        float(parts[split][place].times[start + size - 1] - parts[split][place].times[start])
        for split, found in starts.items()
        for place, start in found
    ]
    long = len(_as_long(table.series, size))
    return Windows(
        size, table.columns, parts, starts, mean, scale, max(durations),
        short=len(table.series) - long,
        split_by="series" if long >= _ENOUGH else "time",
        rows=sum(len(series.rows) for series in table.series),
        missing=table.missing(),
        left_out=table.left_out,
    )  # fmt: skip


def _as_long(series: list[CsvSeries], size: int) -> list[CsvSeries]:
    return [each for each in series if len(each.rows) >= size]


def _split(series: list[CsvSeries], size: int) -> Parts:
    """The parts for windows of `size` rows: whole series where enough are as long, else all of them cut in time."""
    long = _as_long(series, size)
    return _by_series(long) if len(long) >= _ENOUGH else _by_time(series)


def _by_series(series: list[CsvSeries]) -> Parts:
    order = torch.randperm(len(series), generator=generator_of(0)).tolist()
    held = max(1, round(_VALIDATION * len(series)))
    test, validation, train = order[:held], order[held : 2 * held], order[2 * held :]
    chosen = {Split.TRAIN: train, Split.VALIDATION: validation, Split.TEST: test}
    return {split: [series[i] for i in sorted(places)] for split, places in chosen.items()}


def _by_time(series: list[CsvSeries]) -> Parts:
    """The test comes last: what is predicted in it was never seen in training, not even between its rows."""
    parts: dict[Split, list[CsvSeries]] = {split: [] for split in Split}
    for each in series:
        for split, (first, last) in zip(Split, itertools.pairwise(_ends(len(each.rows))), strict=True):
            own = slice(first, last)
            parts[split].append(CsvSeries(each.id, each.rows[own], each.times[own], each.values[own]))
    return parts


def _ends(rows: int) -> list[int]:
    """Where the parts of a series begin and end that is cut in time."""
    return [0, math.floor(_TRAIN * rows), math.floor((_TRAIN + _VALIDATION) * rows), rows]


def _smallest_part(rows: int) -> int:
    """Rows of the smallest part of a series that is cut in time."""
    return min(last - first for first, last in itertools.pairwise(_ends(rows)))


def _moments(file: Path, train: list[CsvSeries], columns: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column over the values of the training part."""
    every = torch.cat([series.values for series in train])
    moments = list[tuple[Tensor, Tensor]]()
    for name, column in zip(columns, every.T, strict=True):
        values = column[~column.isnan()]
        # compared by its ends: rounding gives a constant column a deviation that is not 0
        if len(values) < 2 or float(values.min()) == float(values.max()):
            last = [row for series in train for row in series.rows][-1]
            what = f"is constant, {float(values[0]):g}" if len(values) > 1 else "has fewer than two values"
            cure = offer_others(columns, name, "Learn a column that varies: --columns.")
            refuse_row(file, last, f"up to here, where training ends, the column {name!r} {what}", cure)
        moments.append((values.mean(), values.std()))
    mean, scale = zip(*moments, strict=True)
    return torch.stack(mean), torch.stack(scale)


def _starts(series: CsvSeries, size: int, stride: int) -> list[int]:
    if len(series.rows) < size:
        return []
    complete = (~series.values.isnan().any(1)).unfold(0, size, stride)
    seen, queries = visible_rows(size), size // 8
    # two more than are held out, so that some of the complete rows remain to be seen
    enough = (complete[:, 1 : seen - 1].sum(1) >= queries + 2) & (complete[:, seen:].sum(1) >= queries)
    return (stride * enough.nonzero()[:, 0]).tolist()


def _refuse_part(file: Path, series: list[CsvSeries], part: list[CsvSeries], split: Split, size: int) -> NoReturn:
    last = max(row for each in series for row in each.rows)
    longest = max(len(each.rows) for each in part)
    if longest >= size:
        what = f"up to here no window of {size} rows for {split.value} has enough rows without a missing value"
        refuse_row(file, last, what, "Choose fewer columns with --columns, or fill the gaps.")
    lengths = sorted((len(each.rows) for each in series), reverse=True)
    possible = _smallest_part(lengths[0])
    if len(lengths) >= _ENOUGH:
        possible = max(possible, lengths[_ENOUGH - 1])
    cure = "Pass a file with 40 rows or more: a fifth of them is the test, and a window has 8."
    if possible >= _SMALLEST:
        cure = f"Pass --context {possible} or less (not below {_SMALLEST}), or more rows."
    what = f"the file ends, and {split.value} has {longest} rows at most, fewer than a window of {size}"
    refuse_row(file, last, what, cure)
