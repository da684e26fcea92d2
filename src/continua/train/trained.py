"""A run that is used: its model with the transform of its data, for tables, labelled series and text in own units.

Empty cells of a table are filled between observations, and as far ahead as rows are asked for.
"""

import abc
import dataclasses
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import numpy as np
import torch

from continua.control import call_model
from continua.core.arguments import advise
from continua.core.checks import is_a
from continua.core.counts import say_count
from continua.core.errors import ArgumentError, reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Tensor
from continua.data import (
    AbstractTask,
    Csv,
    CsvSeries,
    CsvTable,
    LabelTransform,
    Prepared,
    Rows,
    SeriesTransform,
    Uea,
    assemble,
    encode,
    read_csv,
    read_ts,
)
from continua.model import ContinuousTransformer, Decoding, Window, generate
from continua.model import load as load_model
from continua.runs import Run
from continua.train.learner import place

_BATCH = 64


class FilledSeries(NamedTuple):
    """A series with all its cells (rows, columns) in the file's units; the ends of the interval, nan where observed."""

    series: CsvSeries
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    continued: int = 0
    """Rows so far ahead that they go on from other answers."""
    doubts: tuple[str, ...] = ()
    """Why intervals are narrower than they should be: rows that training has never asked for, or too few to go on."""


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
        observed = np.flatnonzero(there.any(1))
        first, last = int(observed.min()), int(observed.max())
        inside = [row for row in range(last + 1) if not there[row].all()]
        for row, answer in zip(inside, self._ask([self._around(rows, row, last) for row in inside]), strict=True):
            found[:, row] = np.where(there[row], found[:, row], answer[:, 0])
        continued = self._go_ahead(found, rows, last) if last + 1 < len(rows.times) else 0
        mean, low, high = (units.mean + units.scale * each for each in found)
        named = f"series {series.id!r}: " if series.id else ""
        doubts = [f"{named}{why}" for why in self._doubts(first, len(observed))]
        return FilledSeries(series, np.where(there, series.values.numpy(), mean), low, high, continued, tuple(doubts))

    def _doubts(self, earlier: int, observed: int) -> list[str]:
        """What was not so in training, of a series with rows before its first observation, and so many observed."""
        seen, found = self.transform.units.seen, []
        if observed < seen:
            few, what = say_count(observed, "observed row"), "the intervals are too narrow. Give that many rows or more"
            found += [f"{few}, where windows of training had {seen}: {what}"]
        if earlier:
            rows = "1 row stands" if earlier == 1 else f"{earlier} rows stand"
            found += [
                f"{rows} before the first observation, which training never asked for: the intervals are too narrow"
            ]
        return found

    def _around(self, rows: Rows, row: int, last: int) -> _Query:
        """The rows about one, as many as were seen in training, no farther away in time than a window reaches."""
        seen = self.transform.units.seen
        first = max(0, min(row - seen // 2, last + 1 - seen))
        return _Query(_cut(rows, first, min(first + seen, last + 1), rows.times[row]), rows.times[row : row + 1])

    def _go_ahead(self, found: np.ndarray, rows: Rows, last: int) -> int:
        """Answers all rows after the last observation; how many of them go on from earlier answers."""
        units, features = self.transform.units, self.transform.reference.features
        known, asked, widths = _cut(rows, 0, last + 1), list(range(last + 1, len(rows.times))), np.zeros(2)
        reach = known.times[-1] + features.spacing * features.horizon + 1e-9
        continued = int((rows.times > reach).sum())
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
        return continued

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


class AbstractTrained(abc.ABC):
    """The continuous model of a run, as it was tested, and what turns data of the user's units into what it reads."""

    model: ContinuousTransformer

    @abc.abstractmethod
    def predict(self, given: Any) -> Any:
        """What the model answers, in the units of the data."""

    @final
    def at(self, **resolution: Any) -> Any:
        """The same with the model at another resolution: `continua.load(run).at(steps=8).predict(...)`."""
        return dataclasses.replace(self, model=self.model.at(**resolution).eval())  # pyright: ignore[reportArgumentType]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedSeries(AbstractTrained):
    """A run of `continua train csv`: fills the empty cells of a table."""

    model: ContinuousTransformer
    transform: SeriesTransform
    time: str | None = None
    id: str | None = None

    def read(self, file: str | os.PathLike[str]) -> CsvTable:
        """A table with the columns that the model has learnt."""
        units = self.transform.units
        try:
            table = read_csv(Path(file), self.time, self.id, units.columns, units.statics)
        except ArgumentError as error:  # whose cure may be an option of training
            named = f"the columns {', '.join(units.columns)}, each with at least one value"
            own = [sentence for sentence in re.split(r"(?<=\.)\s+", error.cure) if "--" not in sentence]
            cure = " ".join(own) or f"Write the file as that of training: {named}."
            reject("input" if error.argument == "file" else error.argument, error.value, error.why, cure)
        if table.unit != units.unit:
            kinds = [f"{unit or 'plain numbers'}" for unit in (table.unit, units.unit)]
            cure = "Write the times as the training file has them."
            reject("input", str(file), f"its times are {kinds[0]}, and the model has learnt {kinds[1]}", cure)
        for series in table.series:
            if bool(series.values.isnan().all()):
                named = f"the series {series.id!r} has" if series.id else "it has"
                reject("input", str(file), f"{named} no value to go on from", "Write at least one observed row.")
        return table

    def predict(self, given: Any) -> list[FilledSeries]:
        """Every empty cell of a CSV file or table, with the ends that eight of ten values lie between.

        A DataFrame of pandas is read as the file it would be; its index, where that is no plain count, is a column.
        """
        if hasattr(given, "to_csv"):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "table.csv"
                counted = given.index.name is None and type(given.index).__name__ == "RangeIndex"
                given.to_csv(file, index=not counted)
                return self.predict(file)
        is_a((CsvTable, str, os.PathLike), "Pass the path of a CSV file, or a DataFrame.", given=given)
        table = given if isinstance(given, CsvTable) else self.read(given)
        filled = SeriesFiller(self.model, self.transform).fill(table)
        for doubt in (doubt for each in filled for doubt in each.doubts):
            warnings.warn(doubt, stacklevel=2)
        return filled


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLabels(AbstractTrained):
    """A run of `continua train uea`: the probabilities of the classes of series."""

    model: ContinuousTransformer
    transform: LabelTransform

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of the probabilities."""
        return self.transform.classes

    @torch.no_grad()
    def predict(
        self, given: str | os.PathLike[str] | Sequence[Float[Tensor, "tokens features"] | np.ndarray]
    ) -> Float[Tensor, "series classes"]:
        """The probability of every class, for a `.ts` file or for series in its units."""
        if isinstance(given, str | os.PathLike):
            given = read_ts(Path(given), self.classes, labelled=False).series
        given = [torch.as_tensor(series, dtype=torch.get_default_dtype()) for series in given]
        features = len(self.transform.mean)
        for place_, series in enumerate(given):
            if series.ndim != 2 or series.shape[1] != features:
                cure = f"Pass tensors (tokens, {features})."
                reject(f"series[{place_}]", tuple(series.shape), f"the model has learnt {features} dimensions", cure)
        found = []
        for start in range(0, len(given), 64):
            batch = place(self.transform.prepare(given[start : start + 64]), self.model)
            found.append(batch.logits(call_model(self.model, batch).output).softmax(-1).cpu())
        return torch.cat(found)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedText(AbstractTrained):
    """A run of `continua train text`: writes on."""

    model: ContinuousTransformer
    alphabet: str
    context_length: int

    @advise("predict", {"tokens": "max_new_tokens=", "top_p": "temperature= and top_k=: there is no top_p"})
    def predict(
        self, given: str, max_new_tokens: int = 500, temperature: float = 0.8, top_k: int | None = None, seed: int = 0
    ) -> str:
        """The new characters alone, without the given ones, drawn as by `continua generate`."""
        is_a(str, "Pass one text, and call once per text.", given=given)
        prompt = encode(given, self.alphabet, "prompt").unsqueeze(0)
        window = Window(self.context_length)
        drawn = generate(self.model, prompt, max_new_tokens, Decoding(temperature, top_k), window, generator_of(seed))
        return "".join(self.alphabet[int(number)] for number in drawn[0, prompt.shape[1] :])


def transform_files(task: AbstractTask) -> dict[str, bytes]:
    """What a run keeps of its data beside the models, so that they can be used without the file."""
    if isinstance(task, Csv):
        return task.series.transform.files()
    return task.transform.files() if isinstance(task, Uea) else {}


def load(folder: str | os.PathLike[str], model: str = "continuous") -> Any:
    """What `continua.save` wrote, or the `model` that a run ended with, and the transform of its data.

    A folder of `save` gives the model. A run gives an object with `.model` and `.predict`, which takes and gives data
    in their own units: of `train csv` a CSV file or a DataFrame (`TrainedSeries`), of `train uea` series
    (`TrainedLabels`), of `train text` a text (`TrainedText`); of other tasks, the model alone. Its parameters are those
    that were tested: of the lowest validation loss, or the last ones (docs/runs.md).
    """
    path = Path(folder)
    if not (path / "manifest.json").is_file() or (path / "model.json").is_file():
        return load_model(folder)
    run = Run.open(path)
    facts, config = run.manifest["facts"].get("task", {}), run.manifest["config"]
    if not (path / "models" / model).is_dir():
        known = sorted(each.name for each in path.glob("models/*") if each.name != "transform")
        go_on = f"Let it finish, or go on with it: `continua train --resume {path}`."
        cure = f"It has {', '.join(known)}." if known else go_on
        reject("run", str(folder), f"it has no model {model!r} yet", cure)
    try:
        found = cast(ContinuousTransformer, load_model(path / "models" / model).eval())
    except ArgumentError as error:  # which speaks of a folder, and the user of a run
        reject("run", str(folder), error.why, error.cure)
    files = {each.name: each.read_bytes() for each in (path / "models" / "transform").glob("*") if each.is_file()}
    if "series.json" in files:
        return TrainedSeries(found, SeriesTransform.read(files), config.get("time_column"), config.get("id_column"))
    if "labels.json" in files:
        return TrainedLabels(found, LabelTransform.read(files))
    return TrainedText(found, facts["alphabet"], facts["context_length"]) if "alphabet" in facts else found
