"""Linear features of irregular, asynchronous samples at a query: interpolated neighbours, and differences of lags."""

import dataclasses
from typing import NamedTuple, final

import numpy as np

_BEFORE, _OTHERS, _AROUND = 47, 32, 12
"""Most lags of the own channel, of all others together, and neighbours to either side of a query."""
_NEAR = 3
"""Neighbours of other channels to either side of a query."""
_FAR = 4
"""Distances to the nearest sample, in spacings, count up to here."""


class ChannelQueries(NamedTuple):
    """Queries (queries,) of one channel: where they stand, what naive references answer, and features of what is left.

    `node` is the number of spacings to the last sample (`ahead` of all samples) or to the nearest one (between). `last`
    is the last value, or the interpolant; `line` goes on from it on the line through the first and last sample.
    """

    ahead: np.ndarray
    node: np.ndarray
    last: np.ndarray
    line: np.ndarray
    before: np.ndarray
    """Features (size,) of all queries ahead."""
    around: np.ndarray
    """Features (queries, size) of those between."""


@final
@dataclasses.dataclass(frozen=True)
class LagFeatures:
    """Differences of channels along lags of `spacing`, for queries up to `horizon` spacings ahead of what is seen.

    - Ahead: naive references are the last value x_c(T) and the line from there; features are the differences
      x^_c(T - k d) - x^_c(T - (k+1) d), k = 0, 1, ..., of the own channel and, fewer, of the others, with x^ the linear
      interpolant of the samples and d the spacing.
    - Between: the naive reference is the interpolant x^_c(t); features are x^_c(t + k d) - x^_c(t), k = +-1, +-2, ...,
    and
      those of others about their mean, once as they are and once times the distance of t to the nearest sample.

    All are in units of each channel's own scale in the window and do not change with its level.
    """

    channels: int
    spacing: float
    seen: int
    horizon: int

    @property
    def before(self) -> int:
        return min(_BEFORE, self.seen - 1)

    @property
    def others(self) -> int:
        return min(self.before, max(1, _OTHERS // max(1, self.channels - 1)))

    @property
    def around(self) -> int:
        return min(_AROUND, max(1, self.seen // 3))

    def size(self, ahead: bool) -> int:
        """How many features a query has."""
        if ahead:
            return self.before + (self.channels - 1) * self.others + 1
        return 2 * (2 * self.around + (self.channels - 1) * (2 * _NEAR + 1) + 1)

    def nodes(self, ahead: bool) -> int:
        """Whole numbers of spacings that coefficients and spreads are kept for."""
        return self.horizon + 1 if ahead else _FAR + 1

    def cells(
        self, samples: "ChannelSamples", times: np.ndarray, channel: int, scales: np.ndarray
    ) -> ChannelQueries | None:
        """The queries at these times of a channel; nothing of a channel without any sample."""
        clock, values = samples.times[channel], samples.values[channel]
        if len(clock) == 0:
            return None
        ahead = times > clock[-1]
        nearest = np.abs(times[:, None] - clock).min(1) / self.spacing
        node = np.where(ahead, nearest, np.minimum(nearest, float(_FAR)))
        last = samples.along(channel, times)
        slope = (values[-1] - values[0]) / (clock[-1] - clock[0]) if len(clock) > 1 else 0.0
        line = last + slope * np.maximum(times - clock[-1], 0.0)
        before = self._before(samples, channel, scales) if ahead.any() else np.zeros(0)
        return ChannelQueries(ahead, node, last, line, before, self._around(samples, times, channel, scales, node))

    def _before(self, samples: "ChannelSamples", channel: int, scales: np.ndarray) -> np.ndarray:
        now = max(float(times[-1]) for times in samples.times if len(times))
        own = samples.along(channel, samples.times[channel][-1] - self.spacing * np.arange(self.before + 1))
        lags = now - self.spacing * np.arange(self.others + 1)
        others = [-np.diff(samples.along(c, lags)) / scales[c] for c in range(self.channels) if c != channel]
        return np.concatenate([-np.diff(own) / scales[channel], *others, [1.0]])

    def _around(
        self, samples: "ChannelSamples", times: np.ndarray, channel: int, scales: np.ndarray, node: np.ndarray
    ) -> np.ndarray:
        steps = np.concatenate([np.arange(-self.around, 0), [0], np.arange(1, self.around + 1)])
        own = samples.along(channel, times[:, None] + self.spacing * steps)
        middle = own[:, self.around, None]
        parts = [np.delete(own - middle, self.around, 1) / scales[channel], np.ones((len(times), 1))]
        near = times[:, None] + self.spacing * np.arange(-_NEAR, _NEAR + 1)
        for other in (c for c in range(self.channels) if c != channel):
            found = samples.along(other, near)
            parts.append((found - found.mean(1, keepdims=True)) / scales[other])
        once = np.concatenate(parts, 1)
        return np.concatenate([once, (node - 1.0)[:, None] * once], 1)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ChannelSamples:
    """The samples of each channel by itself: times and values, each (samples of the channel,)."""

    times: list[np.ndarray]
    values: list[np.ndarray]

    @classmethod
    def of(cls, times: np.ndarray, values: np.ndarray) -> "ChannelSamples":
        """From rows (rows,), (rows, channels), of which nan cells are not there."""
        there = ~np.isnan(values)
        places = range(values.shape[1])
        return cls([times[there[:, c]] for c in places], [values[there[:, c], c] for c in places])

    def along(self, channel: int, where: np.ndarray) -> np.ndarray:
        """x^_c at some times: linear between samples, constant beyond them, 0 without any."""
        times = self.times[channel]
        return np.interp(where, times, self.values[channel]) if len(times) else np.zeros(where.shape)

    def scales(self, spacing: float, usual: np.ndarray) -> np.ndarray:
        """The size of a step of one spacing in each channel, drawn towards the usual one of the training part.

        s_c^2 = (sum_i dx_i^2 / g_i + 4 u_c^2) / (n + 4), with g_i the gap of neighbours in spacings, at least 1/4.
        """
        found = []
        for times, values, own in zip(self.times, self.values, usual, strict=True):
            gaps = np.maximum(np.diff(times) / spacing, 0.25)
            squares = np.diff(values) ** 2 / gaps
            found.append(np.sqrt((squares.sum() + 4.0 * own**2) / (len(squares) + 4.0)))
        return np.array(found)
