"""Series of the user's own from a CSV file: what was between the samples, and what comes after them?"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.checks import at_least, share
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.csv_file import read_csv
from continua.data.csv_windows import Windows, build_windows, fitting_window, query_rows, visible_rows
from continua.data.files import version_of
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_LEVEL, _SPREAD = 0.4, 0.2
"""How far a column is moved in training, in its own deviations, and by which share it is stretched."""


@final
@dataclasses.dataclass(frozen=True)
class Csv(AbstractTask):
    """Windows of `window` neighbouring rows of a CSV file (`read_csv`), at the times they have.

    Without a `window`, one of 64 rows, or fewer where the file is short (`fitting_window`).
    The first three quarters of a window are seen, except an eighth of its rows that is held out; predicted are the
    values at these (interpolation) and at as many rows of the last quarter (extrapolation), drawn from the rows without
    a missing value. A token holds each column's value, 0 where it is missing, and each column's 1 or 0 for there or
    missing; rows without any value are absent. Token time is the time since the first row of a window, in units of the
    longest window of the file, which spans [0, 1].

    Columns are centred and scaled by the training part. The file is split by series where it has three or more, else
    by time (`build_windows`). A `dropped` share of the seen rows is left out at random.
    """

    file: Path
    window: int | None = None
    time: str | None = None
    id: str | None = None
    columns: tuple[str, ...] | None = None
    dropped: float = 0.0

    name = "csv"

    def __post_init__(self) -> None:
        at_least(8, window=self.window)  # an eighth of the rows is held out
        share(0.9, dropped=self.dropped)

    @property
    def form(self) -> Form:
        windows, columns = self._windows, self._windows.table.columns
        offset, scale = tuple(windows.mean.tolist()), tuple(windows.scale.tolist())
        wording = Wording(columns, offset, scale, "time since the first row of the window", windows.duration)
        features, spacing = 2 * len(columns), 1.0 / (windows.size - 1)
        return Form(len(columns), Question.VALUE, features, queries=True, spacing=spacing, wording=wording)

    def count(self, split: Split) -> int:
        return len(self._windows.starts[split])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        drawn = [self._draw(split, number) for number in index.tolist()]
        values, times, queries, targets = zip(*drawn, strict=True)
        lengths = torch.tensor([len(each) for each in times])
        present = torch.arange(int(lengths.max())) < lengths[:, None]
        inputs = (pad_sequence(list(values), batch_first=True), pad_sequence(list(times), batch_first=True), present)
        return Batch(inputs, torch.stack(targets), query_times=torch.stack(queries))

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Else a file of a few thousand rows is learnt by heart."""
        return redraw_rows(rescale_columns(batch, _LEVEL, _SPREAD, generator), generator)

    def details(self) -> dict[str, Any]:
        windows, columns = self._windows, self._windows.table.columns
        return {
            "columns": list(columns),
            "rows in a window": windows.size,
            "missing cells": windows.table.missing(),
            "mean": dict(zip(columns, windows.mean.tolist(), strict=True)),
            "scale": dict(zip(columns, windows.scale.tolist(), strict=True)),
            "time of a window": windows.duration,
            "split by": windows.split_by,
            "series shorter than a window": windows.short,
            "notes": list(_notes(windows)),
            "augmentation": "the rows that are held out are drawn anew in every update, the columns of a window moved "
            f"by about {_LEVEL} and stretched by about {_SPREAD:.0%} at random",
        }

    def variants(self) -> Mapping[str, AbstractTask]:
        return {"half of the rows unseen": dataclasses.replace(self, dropped=0.5)}

    @property
    def _windows(self) -> Windows:
        return _read(self, version_of(self.file))

    def _draw(self, split: Split, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values and times of the rows that are seen of a window, query times, and the values there."""
        times, values = self._windows.window(split, number)
        # a window has one generator, whatever batch it stands in, and draws its queries first: all variants share them
        generator = generator_of(branch_seed(list(Split).index(split), number))
        there = ~values.isnan()
        size = len(times)
        queries = torch.cat([_choose(rows, size // 8, generator) for rows in query_rows(there.all(1))])
        seen = there.any(1)
        seen[visible_rows(size) :] = False
        seen[queries] = False
        rows = seen.nonzero()[:, 0]
        if self.dropped:
            rows = _choose(rows, max(2, round(len(rows) * (1.0 - self.dropped))), generator)
        return _as_tokens(values[rows]), times[rows], times[queries], values[queries]


@functools.lru_cache(maxsize=2)
def _read(task: Csv, version: tuple[int, ...]) -> Windows:
    table = read_csv(task.file, task.time, task.id, task.columns)
    return build_windows(table, fitting_window(table) if task.window is None else task.window)


def _notes(windows: Windows) -> Iterator[str]:
    """What a reader should know of the file before training: what is missing, and what is not used."""
    table, missing = windows.table, windows.table.missing()
    if any(missing.values()):
        cells = sum(series.values.numel() for series in table.series)
        where = ", ".join(f"{name} {count}" for name, count in missing.items() if count)
        yield f"{sum(missing.values())} of {cells} cells are missing ({where}): they are masked and never predicted"
    if table.left_out:
        yield f"columns without numbers are left out: {', '.join(table.left_out)}"
    if windows.short and windows.split_by == "series":
        yield f"{windows.short} series shorter than a window of {windows.size} rows are left out"


def _choose(rows: Int[Tensor, " all"], count: int, generator: torch.Generator) -> Int[Tensor, " some"]:
    """So many of the rows, drawn at random, in their order."""
    return rows[torch.randperm(len(rows), generator=generator)[:count]].sort().values


def _as_tokens(values: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows features"]:
    """Values with their missing cells marked: 0 where one is missing, and behind them 1 or 0 for there or missing."""
    return torch.cat([values.nan_to_num(0.0), (~values.isnan()).to(values.dtype)], -1)


def rescale_columns(batch: Batch, level: float, spread: float, generator: torch.Generator) -> Batch:
    """y -> a y + b for each column of each sequence and its targets: ln a ~ N(0, spread^2), b ~ N(0, level^2)."""
    assert batch.targets is not None
    values, there = batch.inputs[0].chunk(2, -1)
    drawn = torch.randn(2, len(values), 1, values.shape[-1], generator=generator)
    a, b = (spread * drawn[0]).exp(), level * drawn[1]
    tokens = torch.cat([(a * values + b) * there, there], -1)
    return Batch((tokens, *batch.inputs[1:]), a * batch.targets + b, query_times=batch.query_times)


def redraw_rows(batch: Batch, generator: torch.Generator) -> Batch:
    """Other rows held out between the seen ones, as many, drawn from all that are complete; the ends stay seen."""
    values, times, present = batch.inputs
    assert batch.targets is not None and batch.query_times is not None
    # the first half of the queries lies between seen rows; these go back into the pool, those beyond stay
    held, columns = batch.targets.shape[1] // 2, batch.targets.shape[2]
    pool = torch.cat([values, _as_tokens(batch.targets[:, :held])], 1)
    clock = torch.cat([times, batch.query_times[:, :held]], 1)
    there = torch.cat([present, present.new_ones(len(present), held)], 1)
    order = clock.masked_fill(~there, math.inf).argsort(1)
    pool, clock, there = pool.take_along_dim(order.unsqueeze(-1), 1), clock.gather(1, order), there.gather(1, order)

    index, last = torch.arange(there.shape[1]), there.sum(1, keepdim=True) - 1
    complete = (pool[..., columns:] > 0).all(-1) & (index > 0) & (index < last)
    # the highest of random numbers are a random subset without a loop over sequences; incomplete rows have the lowest
    chance = torch.rand(there.shape, generator=generator).masked_fill(~complete, -1.0)
    drawn = chance.topk(held, 1).indices.sort(1).values
    seen = there & ~torch.zeros_like(there).scatter(1, drawn, True)
    rows = (~seen).byte().argsort(dim=1, stable=True)[:, : times.shape[1]]
    present = seen.gather(1, rows)
    tokens = pool.take_along_dim(rows.unsqueeze(-1), 1).masked_fill(~present.unsqueeze(-1), 0.0)
    targets = pool[..., :columns].take_along_dim(drawn.unsqueeze(-1), 1)
    return Batch(
        (tokens, clock.gather(1, rows).masked_fill(~present, 0.0), present),
        torch.cat([targets, batch.targets[:, held:]], 1),
        query_times=torch.cat([clock.gather(1, drawn), batch.query_times[:, held:]], 1),
    )
