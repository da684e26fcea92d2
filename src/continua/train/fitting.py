"""Series as people hold them, arrays or lists with gaps, as tokens; and a model trained on those that fit in memory."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import nn

from continua.core.checks import at_least, positive
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor
from continua.optim import CosineDecay, Schedule, adamw, clip_gradients

Loss = Callable[[Tensor, Tensor], Float[Tensor, ""]]
_CHECKS = 20
"""How often the held-out part is read, evenly spread over the updates."""


class SeriesTokens(NamedTuple):
    """What `model(values, times, present)` takes: observed samples first, in the order of time, then padding."""

    values: Float[Tensor, "batch tokens features"]
    times: Float[Tensor, "batch tokens"]
    present: Bool[Tensor, "batch tokens"]

    def rows(self, index: Any) -> "SeriesTokens":
        """Some of the series."""
        return SeriesTokens(*(tensor[index] for tensor in self))


def refuse_pairs(series: Any) -> None:
    """Rejects a list of tuples (times, values): as arrays they would be series of two times with many channels."""
    pair = series[0] if isinstance(series, Sequence) and len(series) > 0 else None
    if isinstance(pair, tuple) and len(pair) == 2 and all(np.ndim(one) > 0 for one in pair):
        why = "series are equispaced, and arrays without times"
        cure = "Pass values alone, with NaN where a common grid has no sample; or times as a channel, np.stack([times, "
        cure += "values], -1) for each series; or train continua.transformer, which takes model(values, times)."
        reject("X[0]", f"tuple of two arrays {tuple(np.shape(one) for one in pair)}", why, cure)


def is_ragged(series: Any) -> bool:
    """Whether these are series of different lengths, or arrays of two axes each: a list that is no array."""
    if not isinstance(series, Sequence) and getattr(series, "dtype", None) != np.dtype(object):
        return False
    return len(series) > 0 and any(np.ndim(one) > 0 for one in series) and len({np.shape(one) for one in series}) > 1


def stack_ragged(series: Iterable[Any]) -> np.ndarray:
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
    """An array (series, times, channels), equispaced with NaN where nothing was observed, as tokens.

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


@final
@dataclasses.dataclass(frozen=True)
class Fitting:
    """AdamW with a cosine schedule for at most `updates` updates; `patience` readings of the held-out part without
    a lower loss end it, and the best parameters are kept."""

    updates: int = 400
    batch_size: int = 64
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    patience: int = 6

    def __post_init__(self) -> None:
        at_least(1, updates=self.updates, batch_size=self.batch_size, patience=self.patience)
        positive(learning_rate=self.learning_rate)

    def run(
        self,
        model: nn.Module,
        tokens: SeriesTokens,
        targets: Tensor,
        held_out: Tensor,
        loss: Loss,
        generator: torch.Generator,
    ) -> tuple[int, list[float]]:
        """Trains the model in place; `held_out` (series,) is true for those that choose, and may be false for all.

        Returns the number of updates and the losses of the held-out part, the first of them before any update.
        """
        optimiser = adamw(model, self.learning_rate, self.weight_decay, (0.9, 0.95))
        schedule = Schedule(optimiser, CosineDecay(warmup=max(1, self.updates // 20), total=self.updates))
        training, choosing = (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
        watch = _Best(model)
        if len(choosing):
            watch.see(_held_out_loss(model, tokens, targets, choosing, loss))
        every = max(1, self.updates // _CHECKS)
        order, update = training.new_empty(0), 0
        for update in range(1, self.updates + 1):
            if len(order) == 0:
                order = training[torch.randperm(len(training), generator=generator)]
            rows, order = order[: self.batch_size], order[self.batch_size :]
            optimiser.zero_grad()
            loss(model(*tokens.rows(rows)), targets[rows]).backward()
            clip_gradients(model, 1.0)
            optimiser.step()
            schedule.step()
            if len(choosing) and (update % every == 0 or update == self.updates):
                watch.see(_held_out_loss(model, tokens, targets, choosing, loss))
                if watch.idle >= self.patience:
                    break
        watch.restore()
        return update, watch.losses


@torch.no_grad()
def _held_out_loss(model: nn.Module, tokens: SeriesTokens, targets: Tensor, rows: Tensor, loss: Loss) -> float:
    model.eval()
    found = loss(model(*tokens.rows(rows)), targets[rows]).item()
    model.train()
    return found


@final
class _Best:
    """The parameters of the lowest loss so far, and for how many readings nothing was lower."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.losses, self.idle = model, list[float](), 0
        self._weights: dict[str, Tensor] | None = None

    def see(self, loss: float) -> None:
        if not self.losses or loss < min(self.losses):
            self.idle, self._weights = 0, copy.deepcopy(self.model.state_dict())
        else:
            self.idle += 1
        self.losses.append(loss)

    def restore(self) -> None:
        if self._weights is not None:
            self.model.load_state_dict(self._weights)
