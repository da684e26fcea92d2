"""From rows of a table in its own units to what a model reads, and back: kept with a run, without the file itself."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import safetensors.numpy
import torch

from continua.core.batch import Batch, ReferenceAnswer
from continua.core.errors import reject
from continua.data.csv_file import CsvSeries
from continua.data.linear_features import ChannelSamples, LagFeatures
from continua.data.linear_reference import LinearAnswer, LinearReference


class Rows(NamedTuple):
    """Neighbouring rows: times (rows,), values (rows, channels), nan where missing, static numbers."""

    times: np.ndarray
    values: np.ndarray
    static: np.ndarray


class Prepared(NamedTuple):
    """What is seen, as tokens with their times, query times, and what the linear reference says of them."""

    tokens: np.ndarray
    times: np.ndarray
    query_times: np.ndarray
    reference: LinearAnswer


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SeriesUnits:
    """Values in units of `scale` about `mean`, times in units of `duration`, static numbers likewise scaled.

    `size` rows are a window, of which the first `seen` are given; `unit` is that of the file's times.
    """

    columns: tuple[str, ...]
    statics: tuple[str, ...]
    unit: str
    size: int
    seen: int
    mean: np.ndarray
    scale: np.ndarray
    duration: float
    static_mean: np.ndarray
    static_scale: np.ndarray

    def rows(self, series: CsvSeries) -> Rows:
        """Rows of any series: time since the first of them."""
        # subtracted in float64: times such as seconds since 1970 have no room for their differences in float32
        times = (series.times - series.times[0]).numpy() / self.duration
        static = (np.array(series.static) - self.static_mean) / self.static_scale
        return Rows(times, (series.values.numpy() - self.mean) / self.scale, static)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class SeriesTransform:
    """The units of a table and the linear reference that was fitted to its training part."""

    units: SeriesUnits
    reference: LinearReference

    def prepare(self, rows: Rows, queries: np.ndarray, fold: int | None = None) -> Prepared:
        """Rows, of which nan cells are not seen, asked at some times."""
        samples = ChannelSamples.of(rows.times, rows.values)
        scales = samples.scales(self.reference.features.spacing, self.reference.usual)
        tokens, times = as_tokens(rows, samples, scales)
        return Prepared(tokens, times, queries, self.reference.answer(samples, queries, fold))

    def files(self) -> dict[str, bytes]:
        """As a run keeps it: plain data, and arrays."""
        arrays, plain = dict[str, np.ndarray](), dict[str, Any]()
        for name, value in {**vars(self.units), **vars(self.reference.features)}.items():
            (arrays if isinstance(value, np.ndarray) else plain)[name] = value
        arrays["usual"] = self.reference.usual
        found, plain["lines"] = self.reference.arrays()
        content = safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in {**arrays, **found}.items()})
        return {"series.json": json.dumps(plain).encode(), "series.safetensors": content}

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> "SeriesTransform":
        """What `files` gave."""
        try:
            plain, arrays = json.loads(files["series.json"]), safetensors.numpy.load(files["series.safetensors"])
            every = {**plain, **arrays}
            units = {f.name: every[f.name] for f in dataclasses.fields(SeriesUnits)}
            features = LagFeatures(**{f.name: every[f.name] for f in dataclasses.fields(LagFeatures)})
            named = {name: tuple(units[name]) for name in ("columns", "statics")}
            reference = LinearReference.from_arrays(features, arrays, plain["lines"])
            return cls(SeriesUnits(**{**units, **named}), reference)
        except (KeyError, TypeError, ValueError) as error:
            cure = "Copy the run again, or train it with this version."
            reject("run", "models/transform", f"the transform of its series cannot be read ({error})", cure)


def as_tokens(rows: Rows, samples: ChannelSamples, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A token for each cell that is there: value, channel by 1 among 0s, static numbers; and its time."""
    row, channel = np.nonzero(~np.isnan(rows.values))
    mean = np.array([v.mean() if len(v) else 0.0 for v in samples.values])
    size = np.sqrt(np.array([v.var() if len(v) else 0.0 for v in samples.values]) + scales**2)
    values = (rows.values[row, channel] - mean[channel]) / size[channel]
    static = np.broadcast_to(rows.static, (len(row), len(rows.static)))
    tokens = np.concatenate([values[:, None], np.eye(rows.values.shape[1])[channel], static], 1)
    return tokens, rows.times[row]


def assemble(prepared: Sequence[Prepared]) -> Batch:
    """A batch without targets; absent tokens come last."""
    counts = torch.tensor([len(each.times) for each in prepared])
    values = torch.zeros(len(prepared), int(counts.max()), prepared[0].tokens.shape[1])
    times = torch.zeros(values.shape[:2])
    for row, each in enumerate(prepared):
        count = len(each.times)
        values[row, :count], times[row, :count] = torch.from_numpy(each.tokens), torch.from_numpy(each.times)
    references = zip(
        *((each.reference.values, each.reference.spread, each.reference.ahead) for each in prepared), strict=True
    )
    answers, spread, ahead = (torch.from_numpy(np.stack(each)) for each in references)
    inputs = (values, times, torch.arange(values.shape[1]) < counts[:, None])
    queries = torch.from_numpy(np.stack([each.query_times for each in prepared])).float()
    return Batch(inputs, None, query_times=queries, reference=ReferenceAnswer(answers.float(), spread.float(), ahead))
