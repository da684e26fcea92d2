"""Series of the user's own from a CSV file: what was between the samples, and what comes after them?"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import branched, generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.asked import redrawn, rescaled, token
from continua.data.csv_file import read_csv
from continua.data.csv_windows import Windows, askable, fitting_window, seen_of, windows_of
from continua.data.files import remembered
from continua.data.measures import asked_errors
from continua.data.task import AbstractTask, Form, Preset, Question, Split, Wording

_LEVEL, _SPREAD = 0.4, 0.2
"""How far a column is moved in training, in its own deviations, and by which share it is stretched."""


@final
@dataclasses.dataclass(frozen=True)
class Csv(AbstractTask):
    """Windows of `window` neighbouring rows of a CSV file (`read_csv`), at the times they have.

    Without a `window`, one of 64 rows, or fewer where the file is short (`fitting_window`).
    The first three quarters of a window are seen, except an eighth of its rows that is held out; asked are the values
    at these (interpolation) and at as many rows of the last quarter (extrapolation), drawn from the rows without a
    missing value. A token holds each column's value, 0 where it is missing, and each column's 1 or 0 for there or
    missing; rows without any value are absent. The longest window spans token time [0, 1].

    Columns are centred and scaled by the training part. The file is split by series where it has three or more, else
    by time (`windows_of`). A `dropped` share of the seen rows is left out at random.
    """

    file: Path
    window: int | None = None
    time: str | None = None
    id: str | None = None
    columns: tuple[str, ...] | None = None
    dropped: float = 0.0

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 8:
            reject("window", self.window, "an eighth of its rows is held out", "Pass 8 or more.")
        if not 0.0 <= self.dropped <= 0.9:
            reject("dropped", self.dropped, "some rows must be seen", "Pass a share from 0 to 0.9.")

    @property
    def name(self) -> str:
        return "csv"

    @property
    def form(self) -> Form:
        outputs = len(self._windows.columns)
        return Form(outputs, Question.VALUE, features=2 * outputs, asks=True, spacing=1.0 / (self._windows.size - 1))

    @property
    def augmentation(self) -> str:
        anew = "the rows that are held out are drawn anew in every update"
        return f"{anew}, the columns of a window moved by about {_LEVEL} and stretched by about {_SPREAD:.0%} at random"

    def presets(self) -> Mapping[str, Preset]:
        batch = min(32, self.count(Split.TRAIN))
        demo = Preset(48, 4, 96, steps=3, stem_radius=6.0, stem_gaps=True, updates=500, batch=batch)
        return {"demo": demo, "full": dataclasses.replace(demo, updates=2000)}

    def count(self, split: Split) -> int:
        return len(self._windows.starts[split])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        drawn = [self._drawn(split, number) for number in index.tolist()]
        values, times, asked, targets = zip(*drawn, strict=True)
        lengths = torch.tensor([len(each) for each in times])
        present = torch.arange(int(lengths.max())) < lengths[:, None]
        inputs = (pad_sequence(list(values), batch_first=True), pad_sequence(list(times), batch_first=True), present)
        return Batch(inputs, torch.stack(targets), query_times=torch.stack(asked))

    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Else a file of a few thousand rows is learnt by heart."""
        return redrawn(rescaled(batch, _LEVEL, _SPREAD, generator), generator)

    def measures(self, output: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
        return asked_errors(output, targets)

    @property
    def better(self) -> int:
        return -1

    @property
    def wording(self) -> Wording:
        windows = self._windows
        offset, scale = tuple(windows.mean.tolist()), tuple(windows.scale.tolist())
        return Wording(windows.columns, offset, scale, "time since the first row of the window", windows.duration)

    def facts(self) -> dict[str, Any]:
        windows = self._windows
        return {
            "training samples": self.count(Split.TRAIN),
            "test samples": self.count(Split.TEST),
            "columns": list(windows.columns),
            "rows in a window": windows.size,
            "missing cells": dict(windows.missing),
            "mean": dict(zip(windows.columns, windows.mean.tolist(), strict=True)),
            "scale": dict(zip(windows.columns, windows.scale.tolist(), strict=True)),
            "time of a window": windows.duration,
            "split by": windows.split_by,
            "series shorter than a window": windows.short,
            "notes": list(_notes(windows)),
        }

    def variants(self) -> Mapping[str, AbstractTask]:
        return {"half of the rows unseen": dataclasses.replace(self, dropped=0.5)}

    @property
    def _windows(self) -> Windows:
        return _windows(self.file, self.window, self.time, self.id, self.columns)

    def _drawn(self, split: Split, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values and times of the rows that are seen of a window, asked times, and the values there."""
        times, values = self._windows.window(split, number)
        generator = generator_of(branched(list(Split).index(split), number))
        there = ~values.isnan()
        between, beyond = askable(there.all(1))
        size = len(times)
        asked = torch.cat([_some(rows, size // 8, generator) for rows in (between, beyond)])
        seen = there.any(1)
        seen[seen_of(size) :] = False
        seen[asked] = False
        rows = seen.nonzero()[:, 0]
        if self.dropped:
            rows = _some(rows, max(2, round(len(rows) * (1.0 - self.dropped))), generator)
        return token(values[rows]), times[rows], times[asked], values[asked]


@remembered
def _windows(
    file: Path, window: int | None, time: str | None, id: str | None, columns: tuple[str, ...] | None
) -> Windows:
    table = read_csv(file, time, id, columns)
    return windows_of(file, table, fitting_window(table) if window is None else window)


def _notes(windows: Windows) -> Iterator[str]:
    """What a reader should know of the file before training: what is missing, and what is not used."""
    missing, cells = sum(windows.missing.values()), windows.rows * len(windows.columns)
    if missing:
        where = ", ".join(f"{name} {count}" for name, count in windows.missing.items() if count)
        yield f"{missing} of {cells} cells are missing ({where}): they are masked and never asked"
    if windows.left_out:
        yield f"columns without numbers are left out: {', '.join(windows.left_out)}"
    if windows.short and windows.split_by == "series":
        yield f"{windows.short} series shorter than a window of {windows.size} rows are left out"


def _some(rows: Int[Tensor, " all"], count: int, generator: torch.Generator) -> Int[Tensor, " some"]:
    """So many of the rows, drawn at random, in their order."""
    return rows[torch.randperm(len(rows), generator=generator)[:count]].sort().values
