"""Series as people hold them, arrays or lists with gaps, as the tokens that a model reads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor


class SeriesTokens(NamedTuple):
    """What `model(values, times, present)` takes: observed samples first, in the order of time, then padding."""

    values: Float[Tensor, "batch tokens features"]
    times: Float[Tensor, "batch tokens"]
    present: Bool[Tensor, "batch tokens"]

    def rows(self, index: Any) -> "SeriesTokens":
        """Some of the series."""
        return SeriesTokens(*(tensor[index] for tensor in self))


def is_ragged(series: Any) -> bool:
    """Whether these are series of different lengths, or arrays of two axes each: a list that is no array."""
    if not isinstance(series, Sequence) and getattr(series, "dtype", None) != np.dtype(object):
        return False
    return len(series) > 0 and any(np.ndim(one) > 0 for one in series) and len({np.shape(one) for one in series}) > 1


def stack_ragged(series: Sequence[Any]) -> np.ndarray:
    """Series (times,) or (times, channels) of any lengths as one array (series, times, channels), NaN at the ends."""
    rows = [np.asarray(one, dtype=np.float64) for one in series]
    rows = [row[:, None] if row.ndim == 1 else row for row in rows]
    for i, row in enumerate(rows):
        if row.ndim != 2 or len(row) == 0 or row.shape[1] != rows[0].shape[1]:
            cure = "Pass arrays (times,) or (times, channels), all with the same number of channels."
            reject(f"X[{i}]", row.shape, "this is no series, or not one like X[0]", cure)
    stacked = np.full((len(rows), max(map(len, rows)), rows[0].shape[1]), np.nan)
    for place, row in zip(stacked, rows, strict=True):
        place[: len(row)] = row
    return stacked


def to_tokens(series: np.ndarray, spacing: float) -> SeriesTokens:
    """An array (series, times, channels), evenly sampled with NaN where nothing was observed, as tokens.

    A time at which no channel was observed is no token. Where only some channels were, the others are zero, hence their
    mean if the series were centred.
    """
    seen = np.isfinite(series)
    present = _present(series)
    order = np.argsort(~present, axis=1, kind="stable")  # absent tokens last, as every quadrature rule wants them
    times = np.broadcast_to(spacing * np.arange(series.shape[1]), present.shape)
    values = np.take_along_axis(np.where(seen, series, 0.0), order[..., None], 1)
    arranged = values, np.take_along_axis(times, order, 1), np.take_along_axis(present, order, 1)
    longest = int(present.sum(-1).max())
    return SeriesTokens(*(torch.from_numpy(np.ascontiguousarray(x[:, :longest])) for x in arranged))


def to_clocks(series: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Times at which anything was observed, and the values there with gaps interpolated, of each series by itself."""
    filled, where = fill_gaps(series), np.arange(series.shape[1], dtype=np.float64)
    return [(where[own], values[own]) for own, values in zip(_present(series), filled, strict=True)]


def _present(series: np.ndarray) -> np.ndarray:
    """Which times of each series, (series, times), are there; each has some."""
    present = np.asarray(np.isfinite(series).any(-1))
    if not present.any(-1).all():
        row = int(np.flatnonzero(~present.any(-1))[0])
        reject(f"X[{row}]", "all NaN", "nothing of this series was observed", "Leave it out.")
    return present


def fill_gaps(series: np.ndarray) -> np.ndarray:
    """The same array with every gap of a channel interpolated in time, constant beyond its ends; zero if all is gap."""
    filled = np.where(np.isfinite(series), series, 0.0)
    where = np.arange(series.shape[1])
    for i, k in np.argwhere(~np.isfinite(series).all(1)):
        known = np.isfinite(series[i, :, k])
        if known.any():
            filled[i, :, k] = np.interp(where, where[known], series[i, known, k])
    return filled
