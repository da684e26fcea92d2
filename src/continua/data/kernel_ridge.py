"""Kernel references for the classes of series: ridge regression in a space of features, left-one-out in closed form."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

_PENALTIES = tuple(10.0**k for k in range(-4, 2))
_REACHES = (1.0, 4.0, 16.0, 64.0)
"""How far kernels reach, in units of the usual squared distance of neighbours."""
_LARGEST = 64
"""Points that a series is stretched to, at most."""
_MOST = 1500
"""Series that a reference is fitted to, at most: its cost is the cube of their number."""
_CONSTANT = 100.0
"""A constant in the kernel is a bias that the penalty hardly reaches."""
_TEMPERATURES = tuple(0.25 * 1.5**k for k in range(14))

Clocked = tuple[np.ndarray, np.ndarray]
"""A series: times (tokens,) and values (tokens, features)."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class KernelRidgeReference:
    """logits_k(x) = T sum_i alpha_ik (100 + k(x, x_i)), one-against-all kernel ridge over the series x_i.

        k(x, x') = 1/3 sum_f exp(-|f(x) - f(x')| / sqrt(h d_f))

    over three views f of a series on `points` equispaced times of its own span: its values, their differences, and the
    logarithms of their spectrum; d_f is the median squared distance of nearest neighbours. Reach h, penalty and
    temperature T have the least error and the least cross-entropy on series that are left out one at a time, which
    ridge knows in closed form: y_i - y^_i = alpha_i / A_ii, A the inverse of the penalised kernel. `held` are these
    logits of the series it was fitted to, from which a network learns what the reference leaves. Without series i the
    coefficients are alpha - A_i alpha_i / A_ii, for whatever is asked.
    """

    points: int
    views: tuple[np.ndarray, ...]
    """The views of the series that it was fitted to, each (series, numbers)."""
    widths: np.ndarray
    """h d_f of each view."""
    weights: np.ndarray
    held: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    inverse: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    """A, of the fit alone: nobody leaves out series of a reference that was read from a file."""
    chosen: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=int))
    """Which of the series it was given it was fitted to, in their order."""

    @classmethod
    def fit(cls, series: Sequence[Clocked], labels: Sequence[int], classes: int) -> "KernelRidgeReference":
        """From series and the number of each one's class; of very many, from as many of them as are affordable."""
        points = min(_LARGEST, max(len(times) for times, _ in series))
        views = view(series, points)
        chosen = np.unique(np.linspace(0, len(series) - 1, min(_MOST, len(series))).round().astype(int))
        known, y = tuple(each[chosen] for each in views), np.eye(classes)[np.array(labels)[chosen]] * 2.0 - 1.0
        near = np.array([_nearest(each) for each in known])
        found = [(_solve(_kernel(known, known, h * near), y), h * near) for h in _REACHES]
        (_, weights, left_out, inverse), widths = min(found, key=lambda each: each[0].error)
        own = [labels[i] for i in chosen]
        heat = min(_TEMPERATURES, key=lambda T: _cross_entropy(T * left_out, own))
        reference = cls(points, known, widths, heat * weights, inverse=inverse, chosen=chosen)
        held = reference.logits_of(views)  # of series that it was not fitted to, these are logits without them as well
        held[chosen] = heat * left_out
        return dataclasses.replace(reference, held=held)

    def logits(self, series: Sequence[Clocked]) -> np.ndarray:
        """Of some series, (series, classes)."""
        return self.logits_of(view(series, self.points))

    def logits_without(self, series: Sequence[Clocked], own: Sequence[int]) -> np.ndarray:
        """Of some series, each by the reference without one of those it was given, such as itself with all samples."""
        kernel = _kernel(view(series, self.points), self.views, self.widths)
        logits, places = kernel @ self.weights, {int(given): place for place, given in enumerate(self.chosen)}
        for row, given in enumerate(own):
            if (place := places.get(given)) is not None:
                column = self.inverse[:, place]
                logits[row] -= (kernel[row] @ column) * self.weights[place] / column[place]
        return logits

    def logits_of(self, views: Sequence[np.ndarray]) -> np.ndarray:
        """Of series by their views."""
        return _kernel(views, self.views, self.widths) @ self.weights


def ridge_answers(known: np.ndarray, labels: Sequence[int], classes: int, asked: np.ndarray) -> np.ndarray:
    """The classes that plain ridge regression gives: a reference, with its penalty by leave-one-out as well."""
    mean, y = known.mean(0), np.eye(classes)[np.array(labels)] * 2.0 - 1.0
    size = float(((known - mean) ** 2).sum(1).mean())
    weights = _solve(_CONSTANT + (known - mean) @ (known - mean).T / size, y).weights
    return ((_CONSTANT + (asked - mean) @ (known - mean).T / size) @ weights).argmax(1)


def nearest_answers(known: np.ndarray, labels: Sequence[int], asked: np.ndarray) -> np.ndarray:
    """The classes of the nearest neighbours by squared distance: another reference."""
    return np.array(labels)[_distances(asked, known).argmin(1)]


def view(series: Sequence[Clocked], points: int) -> tuple[np.ndarray, ...]:
    """Values, differences and logarithms of spectra, each (series, numbers), of series stretched to one length."""
    values = np.stack([stretch(*each, points) for each in series])
    swing = values - values.mean(-1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(swing, axis=-1))[..., 1:] / points**0.5
    # what is far below the deviation of a feature, which is 1, is noise
    views = (values, np.diff(values, axis=-1), np.log(1e-2 + spectrum))
    return tuple(each.reshape(len(series), -1) for each in views)


def stretch(times: np.ndarray, values: np.ndarray, points: int) -> np.ndarray:
    """A series at so many equispaced times of its span, (features, points)."""
    where = np.linspace(times[0], times[-1], points)
    return np.stack([np.interp(where, times, values[:, k]) for k in range(values.shape[1])])


def _kernel(left: Sequence[np.ndarray], right: Sequence[np.ndarray], widths: np.ndarray) -> np.ndarray:
    parts = [np.exp(-np.sqrt(_distances(a, b) / width)) for a, b, width in zip(left, right, widths, strict=True)]
    return _CONSTANT + sum(parts) / len(parts)  # pyright: ignore[reportReturnType]


def _distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Squared distances of all pairs, (left, right)."""
    # row by row: |a|^2 + |b|^2 - 2 <a, b> would lose what is near, and depend on which series are asked together
    return np.stack([((right - row) ** 2).sum(1) for row in left])


def _nearest(known: np.ndarray) -> float:
    """The median squared distance of nearest neighbours; the mean of all where copies make it 0."""
    squares = _distances(known, known)
    found = float(np.median(np.sort(squares + np.diag(np.full(len(squares), np.inf)), 1)[:, 0]))
    return found if 0.0 < found < np.inf else max(float(squares.mean()), 1e-12)


class _Ridge(NamedTuple):
    """Of the penalty with the least error on what is left out: that error, the coefficients, the answers for each left
    out, and the inverse of the penalised kernel."""

    error: float
    weights: np.ndarray
    left_out: np.ndarray
    inverse: np.ndarray


def _solve(kernel: np.ndarray, y: np.ndarray) -> _Ridge:
    values, vectors = np.linalg.eigh(kernel)
    inner, best = vectors.T @ y, _Ridge(np.inf, np.zeros_like(y), np.zeros_like(y), values)
    for penalty in _PENALTIES:
        inverse = 1.0 / (np.maximum(values, 0.0) + penalty)
        weights = vectors @ (inverse[:, None] * inner)
        left_out = y - weights / ((vectors**2) @ inverse)[:, None]
        error = float(((y - left_out) ** 2).mean())
        if error < best.error:
            best = _Ridge(error, weights, left_out, inverse)
    return best._replace(inverse=(vectors * best.inverse) @ vectors.T)


def _cross_entropy(logits: np.ndarray, labels: Sequence[int]) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    chosen = shifted[np.arange(len(labels)), np.array(labels)]
    return float((np.log(np.exp(shifted).sum(1)) - chosen).mean())
