"""Series of the user's own from a CSV file: what was between the samples, and what comes after them?"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from continua.core.batch import Batch
from continua.core.checks import at_least, fraction
from continua.core.seeds import branch_seed
from continua.core.shapes import Int, Tensor
from continua.data.csv_file import CsvTable, read_csv
from continua.data.csv_windows import Windows, build_windows, fitting_window, query_rows, visible_rows
from continua.data.files import version_of
from continua.data.linear_features import ChannelSamples, LagFeatures
from continua.data.linear_reference import FOLDS, Asked, LinearReference
from continua.data.series_transform import Prepared, Rows, SeriesTransform, assemble
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_DRAWS = 8
"""How often the rows that are asked of a training window are drawn."""
_FITTED = 3
"""In so many of them the linear reference is fitted to rows between others."""
_MOST = 2000
"""Training windows that the linear reference is fitted to, at most."""


@final
@dataclasses.dataclass(frozen=True)
class Csv(AbstractTask):
    """Windows of `window` neighbouring rows of a CSV file (`read_csv`), at the times they have.

    Without a `window`, one of 64 rows, or fewer where the file is short (`fitting_window`). The first three quarters of
    a window are seen, except an eighth of its rows: of half of these all cells are asked for, of the others some
    (interpolation). Asked for are also as many rows of the last quarter (extrapolation).

    A token is a cell that is there: its value, in units of its channel's deviation about its channel's mean in what is
    seen of the window, its channel, and the static numbers of the series. Any cell may be missing. Token time is the
    time since the first row of a window, in units of the longest window of the file, which spans [0, 1]. The answer is
    what a linear reference says (`LinearReference`) plus what the network adds, in units of the reference's usual
    error; training windows have the reference that was fitted without them.

    The file is split by series where it has three or more, else by time (`build_windows`); if `whole`, not at all. The
    fraction `missing` of the seen cells is left out at random.
    """

    file: Path
    window: int | None = None
    time_column: str | None = None
    id_column: str | None = None
    columns: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    missing: float = 0.0
    whole: bool = False

    name = "csv"

    def __post_init__(self) -> None:
        at_least(8, window=self.window)  # an eighth of the rows is held out
        fraction(0.9, missing=self.missing)

    @property
    def form(self) -> Form:
        windows, table = self.series.windows, self.series.windows.table
        channels, offset, scale = len(table.columns), windows.mean.tolist(), windows.scale.tolist()
        unit = f", {table.unit}" if table.unit else ""
        time = f"time since the first row of the window{unit}"
        wording = Wording(table.columns, tuple(offset), tuple(scale), time, windows.duration)
        features, spacing = 1 + channels + len(table.statics), 1.0 / (windows.size - 1)
        return Form(4 * channels, Question.SERIES, features, queries=True, spacing=spacing, wording=wording,
                    channels=channels, added=True)  # fmt: skip

    def count(self, split: Split) -> int:
        return len(self.series.windows.starts[split])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        return self.series.batch(split, [(number, 0) for number in index.tolist()], self.missing)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        assert batch.index is not None
        draws = torch.randint(_DRAWS, (len(batch.index),), generator=generator).tolist()
        return self.series.batch(Split.TRAIN, list(zip(batch.index.tolist(), draws, strict=True)), self.missing)

    def details(self) -> dict[str, Any]:
        windows, table = self.series.windows, self.series.windows.table
        return {
            "columns": list(table.columns),
            "static columns": list(table.statics),
            "rows in a window": windows.size,
            "missing cells": table.missing(),
            "mean": dict(zip(table.columns, windows.mean.tolist(), strict=True)),
            "scale": dict(zip(table.columns, windows.scale.tolist(), strict=True)),
            "time of a window": windows.duration,
            "split by": "nothing" if self.whole else windows.split_by,
            "split": self._split_words(),
            "series shorter than a window": windows.short,
            "notes": list(_notes(windows)),
            "augmentation": f"other rows of a window are asked for each time, in {_DRAWS} ways",
            **({"validation": "windows of the training part"} if self.whole else {}),
        }

    def variants(self) -> Mapping[str, AbstractTask]:
        return {"half of the cells unseen": dataclasses.replace(self, missing=0.5)}

    def references(self, split: Split) -> dict[str, tuple[Tensor, Tensor]]:
        """Reference methods on all windows of a split: answers and targets, each (windows, queries, channels)."""
        return self.series.references(split)

    @property
    def series(self) -> "SeriesWindows":
        """The windows with the linear reference that was fitted to them."""
        table = _read(self.file, version_of(self.file), self.time_column, self.id_column, self.columns, self.static)
        return _build(table, fitting_window(table) if self.window is None else self.window, self.whole)

    def _split_words(self) -> str:
        windows = self.series.windows
        if self.whole:
            return "every row is trained on, nothing is held out"
        parts = {split: windows.parts[split] for split in Split}
        if windows.split_by == "series":
            named = {split: ", ".join(each.id for each in part) for split, part in parts.items()}
            return "; ".join(f"{split.value}: series {names}" for split, names in named.items())
        counts = {split: sum(len(each.rows) for each in part) for split, part in parts.items()}
        return "by time: " + ", then ".join(f"{rows} rows {split.value}" for split, rows in counts.items())


@final
class SeriesWindows:
    """Windows of series, and the linear reference that was fitted to those of the training part."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.channels = len(windows.table.columns)
        self._cache: dict[tuple[Any, ...], tuple[Prepared, np.ndarray]] = {}

    @functools.cached_property
    def transform(self) -> SeriesTransform:
        """Fitted when it is first asked for, which may take seconds."""
        seen = visible_rows(self.windows.size)
        features = LagFeatures(self.channels, self.windows.spacing, seen, self.windows.size - seen)
        reference = LinearReference.fit(
            features, self._windows_to_fit(Split.TRAIN), self._windows_to_fit(Split.VALIDATION)
        )
        return SeriesTransform(self.windows.units, reference)

    def batch(self, split: Split, drawn: Sequence[tuple[int, int]], missing: float = 0.0) -> Batch:
        """Windows of a split by their number, with one of the ways in which rows may be asked for."""
        found = [self._sample(split, number, draw, missing) for number, draw in drawn]
        batch, targets = (
            assemble([each for each, _ in found]),
            torch.from_numpy(np.stack([y for _, y in found])).float(),
        )
        return dataclasses.replace(batch, targets=targets, index=torch.tensor([number for number, _ in drawn]))

    def references(self, split: Split) -> dict[str, tuple[Tensor, Tensor]]:
        """What reference methods answer on the windows of a split, with the truth beside."""
        found = [self._sample(split, number, 0, 0.0) for number in range(len(self.windows.starts[split]))]
        truth, references = (
            torch.from_numpy(np.stack([y for _, y in found])).float(),
            [each.reference for each, _ in found],
        )
        named = {
            "linear interpolation, last value": [reference.last for reference in references],
            "linear interpolation, straight line": [reference.line for reference in references],
            "ridge on differences": [reference.ridge for reference in references],
            "linear reference, network off": [reference.values for reference in references],
        }
        return {name: (torch.from_numpy(np.stack(own)).float(), truth) for name, own in named.items()}

    def dense(self, split: Split, number: int, count: int) -> Batch:
        """What is seen of a window, asked at equispaced times over the whole of it."""
        rows, _ = self._draw(split, number, 0)
        return assemble([self.transform.prepare(rows, np.linspace(rows.times[0], rows.times[-1], count))])

    def token_values(self, split: Split, number: int) -> np.ndarray:
        """The values of the tokens of a window, in deviations of their columns."""
        rows, _ = self._draw(split, number, 0)
        return rows.values[~np.isnan(rows.values)]

    def _sample(self, split: Split, number: int, draw: int, missing: float) -> tuple[Prepared, np.ndarray]:
        """A window and its targets, nan where they are not known."""
        key = (split, number, draw, missing)
        if key not in self._cache:
            rows, asked = self._draw(split, number, draw, missing)
            fold = self._fold(number) if split is Split.TRAIN else None
            self._cache[key] = (self.transform.prepare(rows, asked.times, fold), asked.values)
        return self._cache[key]

    def _fold(self, number: int) -> int:
        return min(FOLDS - 1, FOLDS * number // len(self.windows.starts[Split.TRAIN]))

    def _draw(self, split: Split, number: int, draw: int, missing: float = 0.0) -> tuple[Rows, Asked]:
        """What is seen of a window, and what is asked: rows between, first, and as many rows ahead."""
        rows = self.windows.window(split, number)
        # a window has one generator, whatever batch it stands in, and draws its queries first: all variants share them
        random = np.random.default_rng(branch_seed(branch_seed(list(Split).index(split), number), draw))
        there, size = ~np.isnan(rows.values), len(rows.times)
        between, ahead = (
            np.sort(random.permutation(each)[: size // 8]) for each in query_rows(np.asarray(there.any(1)))
        )
        hidden = np.zeros_like(there)
        hidden[visible_rows(size) :] = True
        some = random.random((len(between), self.channels)) < 0.5
        none = ~(some & there[between]).any(1)
        hidden[between] = some | (none | (random.random(len(between)) < 0.5))[:, None]
        seen = there & ~hidden
        if missing:
            seen &= _keep(seen, missing, random)
        chosen = np.concatenate([between, ahead])
        targets = np.where(hidden, rows.values, np.nan)[chosen]
        rows = rows._replace(values=np.where(seen, rows.values, np.nan))
        return rows, Asked(ChannelSamples.of(rows.times, rows.values), rows.times[chosen], targets)

    def _windows_to_fit(self, split: Split) -> list[Asked]:
        """Windows for the fit of the linear reference: asked as in training, and at all rows ahead."""
        every = range(len(self.windows.starts[split]))
        chosen = every if len(every) <= _MOST else np.linspace(0, len(every) - 1, _MOST).round().astype(int).tolist()
        found = []
        for number in chosen:
            rows, beyond = self.windows.window(split, number), slice(visible_rows(self.windows.size), None)
            for draw in range(_FITTED):
                _, asked = self._draw(split, number, draw)
                half = len(asked.times) // 2
                later = (rows.times[beyond], rows.values[beyond]) if draw == 0 else (rows.times[:0], rows.values[:0])
                times, values = (
                    np.concatenate([asked.times[:half], later[0]]),
                    np.concatenate([asked.values[:half], later[1]]),
                )
                found.append(Asked(asked.samples, times, values))
        return found


def _keep(seen: np.ndarray, missing: float, random: np.random.Generator) -> np.ndarray:
    """A random fraction of the cells that are seen, two at least."""
    places = np.flatnonzero(seen)
    kept = np.zeros(seen.size, dtype=bool)
    kept[random.permutation(places)[: max(2, round(len(places) * (1.0 - missing)))]] = True
    return kept.reshape(seen.shape)


@functools.lru_cache(maxsize=2)
def _read(file: Path, version: tuple[int, ...], *how: Any) -> CsvTable:
    return read_csv(file, *how)


_BUILT: list[tuple[CsvTable, int, bool, SeriesWindows]] = []
"""The last tables with their windows: a fit takes seconds, and tables cannot be keys."""


def _build(table: CsvTable, size: int, whole: bool) -> SeriesWindows:
    for known, *how, built in _BUILT:
        if known is table and how == [size, whole]:
            return built
    _BUILT.append((table, size, whole, SeriesWindows(build_windows(table, size, whole))))
    del _BUILT[:-2]
    return _BUILT[-1][-1]


def _notes(windows: Windows) -> Iterator[str]:
    """What a reader should know of the file before training: what is missing, and what is not used."""
    table, missing = windows.table, windows.table.missing()
    yield f"windows of {windows.size} rows, trained up to {windows.size - visible_rows(windows.size)} ahead"
    if any(missing.values()):
        cells = sum(series.values.numel() for series in table.series)
        where = ", ".join(f"{name} {count}" for name, count in missing.items() if count)
        yield f"{sum(missing.values())} of {cells} cells are missing ({where})"
    if table.statics:
        yield f"static columns: {', '.join(table.statics)}"
    if table.left_out:
        yield f"columns without numbers are left out: {', '.join(table.left_out)}"
    if windows.short and windows.split_by == "series":
        yield f"{windows.short} series shorter than a window of {windows.size} rows are left out"
