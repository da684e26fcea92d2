"""Empty cells of a table, filled by a trained model: between observations, and as far ahead as rows are asked for."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch

from continua.control import call_model
from continua.data import CsvSeries, CsvTable, Prepared, Rows, SeriesTransform, assemble
from continua.model import ContinuousTransformer
from continua.train.learner import place

_BATCH = 64


class FilledSeries(NamedTuple):
    """A series with all its cells (rows, columns) in the file's units; the ends of the interval, nan where observed."""

    series: CsvSeries
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Query(NamedTuple):
    """Rows that are seen, and times to ask for."""

    rows: Rows
    times: np.ndarray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SeriesFiller:
    """A model with the transform of its data: what it says of every empty cell of a series.

    A cell with later observations is asked for beside the rows around it, as many as were seen in training. Rows after
    the last observation are asked for a quarter of a window at a time; beyond that the answers themselves are taken as
    observed, and the variance of the interval's ends adds up.
    """

    model: ContinuousTransformer
    transform: SeriesTransform

    def fill(self, table: CsvTable) -> list[FilledSeries]:
        """All series of a table, whose columns are those that the model has learnt."""
        return [self.fill_series(series) for series in table.series]

    def fill_series(self, series: CsvSeries) -> FilledSeries:
        units = self.transform.units
        rows = units.rows(series)
        there = ~np.isnan(rows.values)
        shape = rows.values.shape
        found = np.stack([rows.values, np.full(shape, np.nan), np.full(shape, np.nan)])
        last = int(np.flatnonzero(there.any(1)).max())
        inside = [row for row in range(last + 1) if not there[row].all()]
        for row, answer in zip(inside, self._ask([self._around(rows, row, last) for row in inside]), strict=True):
            found[:, row] = np.where(there[row], found[:, row], answer[:, 0])
        if last + 1 < len(rows.times):
            self._go_ahead(found, rows, last)
        mean, low, high = (units.mean + units.scale * each for each in found)
        return FilledSeries(series, np.where(there, series.values.numpy(), mean), low, high)

    def _around(self, rows: Rows, row: int, last: int) -> _Query:
        """The rows about one, as many as were seen in training, no farther away in time than a window reaches."""
        seen = self.transform.units.seen
        first = max(0, min(row - seen // 2, last + 1 - seen))
        return _Query(_cut(rows, first, min(first + seen, last + 1), rows.times[row]), rows.times[row : row + 1])

    def _go_ahead(self, found: np.ndarray, rows: Rows, last: int) -> None:
        units, features = self.transform.units, self.transform.reference.features
        known, asked, widths = _cut(rows, 0, last + 1), list(range(last + 1, len(rows.times))), np.zeros(2)
        while asked:
            now = known.times[-1]
            grid = now + features.spacing * np.arange(1, features.horizon + 1)
            near = [row for row in asked if rows.times[row] <= grid[-1] + 1e-9]
            times = np.concatenate([rows.times[near], grid])
            seen = _cut(known, max(0, len(known.times) - units.seen), len(known.times), now)
            ((mean, low, high),) = self._ask([_Query(seen, times)])
            low, high = mean - np.hypot(mean - low, widths[0]), mean + np.hypot(high - mean, widths[1])
            for number, row in enumerate(near):
                found[:, row] = mean[number], low[number], high[number]
            end = len(near) + features.horizon - 1
            widths = np.array([mean[end] - low[end], high[end] - mean[end]])
            values = np.concatenate([known.values, mean[len(near) :]])
            known = known._replace(times=np.concatenate([known.times, grid]), values=values)
            asked = asked[len(near) :]

    @torch.no_grad()
    def _ask(self, queries: Sequence[_Query]) -> list[np.ndarray]:
        """Means, lows and highs (3, queries, channels) of each, in deviations of the columns."""
        answers, model = [], self.model.in_eval_mode()
        for start in range(0, len(queries), _BATCH):
            batch = place(assemble([self._prepare(query) for query in queries[start : start + _BATCH]]), self.model)
            assert batch.reference is not None
            found = batch.reference.answer(call_model(model, batch).output)
            answers += list(torch.stack(tuple(found), 1).double().cpu().numpy())
        return answers

    def _prepare(self, query: _Query) -> Prepared:
        first = query.rows.times[0]
        return self.transform.prepare(query.rows._replace(times=query.rows.times - first), query.times - first)


def _cut(rows: Rows, first: int, last: int, about: float | None = None) -> Rows:
    """Rows from one to before another that have a value; with `about`, those at most a unit of time away from it.

    Where none is so near, the nearest one is taken to stand a unit away: models read times of a few windows at most.
    """
    times, values = rows.times[first:last], rows.values[first:last]
    kept = ~np.isnan(values).all(1)
    times, values = times[kept], values[kept]
    if about is not None:
        near = np.abs(times - about) <= 1.0
        if not near.any():
            nearest = int(np.abs(times - about).argmin())
            near[nearest] = True
            times = np.clip(times, about - 1.0, about + 1.0)
        times, values = times[near], values[near]
    return Rows(times, values, rows.static)
