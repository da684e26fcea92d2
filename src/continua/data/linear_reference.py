"""Linear reference for series: ridge on differences, between samples and ahead of them, and the size of its errors."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from continua.data.linear_features import ChannelQueries, ChannelSamples, LagFeatures

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge penalties, as fractions of the mean square of a feature; beside them, no coefficients at all."""
_CLEARLY = 0.98
"""A reference with more to it replaces a simpler one where its error is at most this fraction of the other's."""
FOLDS = 4
"""Parts of the training windows: what a network learns from are errors on windows that no reference was fitted to."""


class Asked(NamedTuple):
    """What is seen of a window, and times at which values (queries, channels) are known, nan where they are not."""

    samples: ChannelSamples
    times: np.ndarray
    values: np.ndarray


class LinearAnswer(NamedTuple):
    """What references say at query times, each (queries, channels).

    `last`: interpolant and last value; `line`: interpolant and straight line; `ridge`: ridge on differences to the last
    value; `values`: the linear reference, whose usual error is `spread`; `ahead`: whether a channel has no later
    sample.
    """

    last: np.ndarray
    line: np.ndarray
    ridge: np.ndarray
    values: np.ndarray
    spread: np.ndarray
    ahead: np.ndarray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LinearReference:
    """y^ = naive + s_c <w(n), f>, features f and nodes n of `LagFeatures`, s_c the channel's scale in the window.

    Coefficients are ridge estimates, ahead with one set per whole number n of spacings and linear between two of them,
    with the penalty of the least error on validation and on training windows that were not fitted to, both
    as fractions of the naive reference's. What is simpler stands where the other is not clearly better on both of them:
    the last value beside ridge, ridge from the last value beside ridge from the straight line, or beside the line
    alone. `spread` is the root mean square error at n, in units of s_c.
    """

    features: LagFeatures
    usual: np.ndarray
    fits: dict[tuple[int, bool], "_Fit"]
    plain: dict[int, "_Fit"]
    """Ahead, ridge on differences to the last value, whatever start is better: a reference of its own."""

    @classmethod
    def fit(cls, features: LagFeatures, train: Sequence[Asked], validation: Sequence[Asked]) -> "LinearReference":
        """From training windows in their order; contiguous quarters of them are the folds."""
        usual = _usual_scales(features, train)
        folds = np.minimum(FOLDS * np.arange(len(train)) // max(1, len(train)), FOLDS - 1)
        fits, plain = {}, {}
        parts = [(train, folds), (validation, np.zeros(len(validation), dtype=int))]
        scales = [[each.samples.scales(features.spacing, usual) for each in part] for part, _ in parts]
        for channel in range(features.channels):
            cells = [
                [features.cells(each.samples, each.times, channel, s) for each, s in zip(part, own, strict=True)]
                for (part, _), own in zip(parts, scales, strict=True)
            ]
            for ahead in (False, True):
                own, held = (
                    _Table.of(found, part, [s[channel] for s in sizes], which, channel, ahead, features)
                    for found, (part, which), sizes in zip(cells, parts, scales, strict=True)
                )
                nodes = features.nodes(ahead)
                ridges = _ridges(own, nodes if ahead else 1)
                fits[channel, ahead] = _Fit.best(own, held, nodes, ridges, (False, True) if ahead else (False,))
                if ahead:
                    plain[channel] = _Fit.best(own, held, nodes, ridges, (False,))
        return cls(features, usual, fits, plain)

    def answer(self, samples: ChannelSamples, times: np.ndarray, fold: int | None = None) -> LinearAnswer:
        """What the reference says of some times; with `fold`, the one that was fitted without that part of training."""
        scales = samples.scales(self.features.spacing, self.usual)
        shape = (len(times), self.features.channels)
        last, line, ridge, values, spread = (np.full(shape, float(one)) for one in (0, 0, 0, 0, 1))
        ahead = np.ones(shape, dtype=bool)
        for channel, scale in enumerate(scales):
            cells = self.features.cells(samples, times, channel, scales)
            if cells is None:  # never observed: the mean of training, give or take a deviation
                continue
            last[:, channel], line[:, channel], ahead[:, channel] = cells.last, cells.line, cells.ahead
            parts = [(self.fits[channel, later], cells.ahead == later) for later in (False, True)]
            for fit, here in parts:
                values[here, channel] = fit.answers(cells, here, scale, fold)
                spread[here, channel] = scale * np.interp(
                    cells.node[here], np.arange(len(fit.deviations)), fit.deviations
                )
            ridge[:, channel] = values[:, channel]
            ridge[cells.ahead, channel] = self.plain[channel].answers(cells, cells.ahead, scale, fold)
        return LinearAnswer(last, line, ridge, values, spread, ahead)

    def arrays(self) -> tuple[dict[str, np.ndarray], list[bool]]:
        """Coefficients and deviations by name, and whether each fit starts from the line; folds are not kept."""
        fits = {**{f"{channel}-{int(ahead)}": fit for (channel, ahead), fit in self.fits.items()},
                **{f"{channel}-plain": fit for channel, fit in self.plain.items()}}  # fmt: skip
        found = {f"weights-{name}": fit.weights[-1:] for name, fit in fits.items()}
        return found | {f"deviations-{name}": fit.deviations for name, fit in fits.items()}, [
            f.line for f in fits.values()
        ]

    @classmethod
    def from_arrays(
        cls, features: LagFeatures, arrays: Mapping[str, np.ndarray], lines: list[bool]
    ) -> "LinearReference":
        """What `arrays` gave, with the `usual` scales beside."""
        keys = [(channel, ahead) for channel in range(features.channels) for ahead in (False, True)]
        names = [f"{channel}-{int(ahead)}" for channel, ahead in keys] + [
            f"{c}-plain" for c in range(features.channels)
        ]
        every = [
            _Fit(arrays[f"weights-{name}"], arrays[f"deviations-{name}"], line)
            for name, line in zip(names, lines, strict=True)
        ]
        return cls(features, arrays["usual"], dict(zip(keys, every, strict=False)), dict(enumerate(every[len(keys) :])))


def _usual_scales(features: LagFeatures, train: Sequence[Asked]) -> np.ndarray:
    nothing = np.zeros(features.channels)
    every = np.array([each.samples.scales(features.spacing, nothing) for each in train])
    return np.maximum(np.sqrt((every**2).mean(0)), 1e-6)


class _Table(NamedTuple):
    """Known cells of one channel and part: features, distances from both naive references over s_c, nodes, folds."""

    features: np.ndarray
    from_last: np.ndarray
    from_line: np.ndarray
    nodes: np.ndarray
    folds: np.ndarray
    ahead: bool

    @classmethod
    def of(
        cls,
        cells: Sequence[ChannelQueries | None],
        asked: Sequence[Asked],
        scales: Sequence[float],
        folds: np.ndarray,
        channel: int,
        ahead: bool,
        lags: LagFeatures,
    ) -> "_Table":
        """Without cells farther ahead than the horizon: where rows are missing they would share its coefficients."""
        size = lags.size(ahead)
        found = [(np.zeros((0, size)), *(np.zeros(0) for _ in range(3)), np.zeros(0, dtype=int))]
        for own, each, scale, fold in zip(cells, asked, scales, folds.tolist(), strict=True):
            if own is None:
                continue
            here = (own.ahead == ahead) & ~np.isnan(each.values[:, channel])
            here &= own.node < (lags.horizon + 0.5 if ahead else np.inf)
            count, truth = int(here.sum()), each.values[here, channel]
            rows = np.broadcast_to(own.before, (count, size)) if ahead and count else own.around[here][:, :size]
            if count:
                found.append((rows, (truth - own.last[here]) / scale, (truth - own.line[here]) / scale, own.node[here],
                              np.full(count, fold)))  # fmt: skip
        rows, last, line, nodes, which = (np.concatenate(each) for each in zip(*found, strict=True))
        return cls(rows, last, line, nodes, which, ahead)

    def targets(self, line: bool) -> np.ndarray:
        return self.from_line if line else self.from_last

    def normal(self, fold: int, kinds: int) -> "_Normal":
        """Normal equations of a fold, with F the features times the hat functions of the nodes."""
        own, size = self.folds == fold, self.features.shape[1]
        low, _, share = _hats(self.nodes[own], kinds)
        features, targets = self.features[own], np.stack([self.from_last[own], self.from_line[own]], 1)
        diagonal, beside = np.zeros((kinds, size, size)), np.zeros((max(0, kinds - 1), size, size))
        right = np.zeros((kinds, size, 2))
        for node in range(kinds):
            here = low == node
            f, s, y = features[here], share[here, None], targets[here]
            left = (1.0 - s) * f
            diagonal[node] += left.T @ left
            right[node] += left.T @ y
            if bool((s > 0).any()):  # never at the last node
                diagonal[node + 1] += (s * f).T @ (s * f)
                beside[node] += left.T @ (s * f)
                right[node + 1] += (s * f).T @ y
        return _Normal(diagonal, beside, right)

    def residuals(self, weights: np.ndarray, line: bool) -> np.ndarray:
        return self.targets(line) - (_weights_at(self.nodes, weights) * self.features).sum(1)


class _Normal(NamedTuple):
    """F^T F and F^T y for both starts y (last value, line): a node shares rows with itself and its neighbours alone.

    `diagonal` (nodes, size, size), `beside` (nodes - 1, size, size), `right` (nodes, size, 2).
    """

    diagonal: np.ndarray
    beside: np.ndarray
    right: np.ndarray

    def minus(self, other: "_Normal") -> "_Normal":
        """Without the rows of another."""
        return _Normal(*(a - b for a, b in zip(self, other, strict=True)))

    def solve(self, penalty: float) -> np.ndarray:
        """(F^T F + penalty c I)^-1 F^T y (2, nodes, size), with c the mean of the diagonal over nodes that have rows.

        Block elimination: S_k = D_k - E_{k-1}^T S_{k-1}^-1 E_{k-1}, and back.
        """
        entries = np.diagonal(self.diagonal, axis1=1, axis2=2)
        mean = entries[entries > 0].mean() if bool((entries > 0).any()) else 1.0
        identity, size = penalty * mean * np.eye(entries.shape[1]), entries.shape[1]
        solved = list[np.ndarray]()  # S_k^-1 (E_k, what is left of the right-hand side)
        for node, own in enumerate(self.diagonal):
            block, right = own + identity, self.right[node]
            after = self.beside[node] if node < len(self.beside) else np.zeros((size, 0))
            if node:
                before = self.beside[node - 1].T
                block = block - before @ solved[-1][:, :size]
                right = right - before @ solved[-1][:, size:]
            solved.append(np.linalg.solve(block, np.concatenate([after, right], 1)))
        found = [solved[-1][:, -2:]]
        for own in reversed(solved[:-1]):
            found.append(own[:, size:] - own[:, :size] @ found[-1])
        return np.stack(found[::-1]).transpose(2, 0, 1)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """Coefficients (folds + 1, nodes, features), the last of all folds together, and deviations at each node."""

    weights: np.ndarray
    deviations: np.ndarray
    line: bool

    @classmethod
    def best(
        cls, train: _Table, held: _Table, nodes: int, ridges: Sequence[np.ndarray], lines: Sequence[bool]
    ) -> "_Fit":
        nothing = np.zeros_like(ridges[0][0])
        if len(train.nodes) == 0:
            return cls(nothing, np.ones(nodes), False)
        found, least = (nothing, False), [1.0, 1.0]
        for line in lines:
            candidates = [each[int(line)] for each in ridges] + ([nothing] if line else [])
            shares = [_shares(train, held, weights, line) for weights in candidates]
            best = min(range(len(shares)), key=lambda k: sum(shares[k]))
            if all(own <= _CLEARLY * one for own, one in zip(shares[best], least, strict=False)):
                found, least = (candidates[best], line), shares[best]
        weights, line = found
        return cls(weights, _deviations(train.nodes, _out_of_fold(train, weights, line), nodes), line)

    def answers(self, cells: ChannelQueries, here: np.ndarray, scale: float, fold: int | None) -> np.ndarray:
        """naive + s_c <w, f> of some of the queries."""
        weights, naive = self.weights[-1 if fold is None else fold], (cells.line if self.line else cells.last)[here]
        if not here.any() or not weights.any():
            return naive
        features = cells.before if bool(cells.ahead[here].all()) else cells.around[here]
        return naive + scale * (_weights_at(cells.node[here], weights) * features).sum(1)


def _ridges(train: _Table, kinds: int) -> list[np.ndarray]:
    """Coefficients (2, folds + 1, nodes, size) of every penalty for both starts: without each fold, and with all."""
    folds = [train.normal(fold, kinds) for fold in range(FOLDS)]
    every = _Normal(*(np.sum(each, 0) for each in zip(*folds, strict=True)))
    parts = [*(every.minus(fold) for fold in folds), every]
    return [np.stack([part.solve(penalty) for part in parts], 1) for penalty in _PENALTIES]


def _shares(train: _Table, held: _Table, weights: np.ndarray, line: bool) -> list[float]:
    """Squared errors as fractions of the last value's: on windows that were not fitted, on validation."""
    errors = [_out_of_fold(train, weights, line), held.residuals(weights[-1], line)]
    naive = [float((each.from_last**2).mean()) if len(each.nodes) else 0.0 for each in (train, held)]
    return [float((own**2).mean()) / one for own, one in zip(errors, naive, strict=True) if one > 0.0]


def _out_of_fold(train: _Table, weights: np.ndarray, line: bool) -> np.ndarray:
    errors = np.zeros(len(train.nodes))
    for fold in range(FOLDS):
        own = train.folds == fold
        errors[own] = train.residuals(weights[fold], line)[own]
    return errors


def _hats(nodes: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The whole numbers on both sides of each node, and the fraction of the upper one."""
    low = np.clip(np.floor(nodes + 1e-6).astype(int), 0, kinds - 1)
    high = np.minimum(low + 1, kinds - 1)
    return low, high, np.where((high > low) & (nodes - low > 1e-6), np.clip(nodes - low, 0.0, 1.0), 0.0)


def _weights_at(nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    low, high, share = _hats(nodes, len(weights))
    return (1.0 - share)[:, None] * weights[low] + share[:, None] * weights[high]


def _deviations(nodes: np.ndarray, errors: np.ndarray, kinds: int) -> np.ndarray:
    """Root mean squares at each node, drawn towards the overall one as if by five errors of that size."""
    low, high, share = _hats(nodes, kinds)
    total, count, overall = np.zeros(kinds), np.zeros(kinds), float((errors**2).mean())
    for place, weight in ((low, 1.0 - share), (high, share)):
        np.add.at(total, place, weight * errors**2)
        np.add.at(count, place, weight)
    return np.sqrt(np.maximum((total + 5.0 * overall) / (count + 5.0), 1e-12))
