"""A linear rule for the classes of series: ridge on the series stretched to one length."""

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

_PENALTIES = tuple(10.0**k for k in range(-4, 4))
_LARGEST = 64
"""Points that a series is stretched to, at most."""
_TEMPERATURES = tuple(0.25 * 1.5**k for k in range(14))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LabelRule:
    """logits_k = T <w_k, f - mean> + b_k: one-against-all ridge on f, a series on `points` even times of its own span.

    Penalty and temperature T have the least error and the least cross-entropy on series that are left out one at a
    time, which ridge knows in closed form: y_i - y^_i = r_i / (1 - H_ii), H the hat matrix. `held` are these logits of
    the series it was fitted to, from which a network learns what the rule leaves.
    """

    points: int
    mean: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    held: np.ndarray

    @classmethod
    def fit(cls, series: Sequence[tuple[np.ndarray, np.ndarray]], labels: Sequence[int], classes: int) -> "LabelRule":
        """From series as (times, values (tokens, features)), and the number of each one's class."""
        points = min(_LARGEST, max(len(times) for times, _ in series))
        features = np.stack([stretch(*each, points) for each in series])
        mean, y = features.mean(0), np.eye(classes)[np.array(labels)] * 2.0 - 1.0
        x, bias = features - mean, y.mean(0)
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        inner, best = u.T @ (y - bias), (np.inf, np.zeros_like(y), 0.0)
        for penalty in (p * float((s**2).mean()) for p in _PENALTIES):
            shrink = s**2 / (s**2 + penalty)
            hat = (u**2 * shrink).sum(1) + 1.0 / len(y)
            left_out = y - (y - bias - (u * shrink) @ inner) / (1.0 - hat)[:, None]
            error = float(((y - left_out) ** 2).mean())
            if error < best[0]:
                best = (error, left_out, penalty)
        _, left_out, penalty = best
        heat = min(_TEMPERATURES, key=lambda T: _cross_entropy(T * left_out, labels))
        weights = vt.T @ ((s / (s**2 + penalty))[:, None] * inner)
        return cls(points, mean, heat * weights, heat * bias, heat * left_out)

    def logits(self, times: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Of one series."""
        return (stretch(times, values, self.points) - self.mean) @ self.weights + self.bias


def stretch(times: np.ndarray, values: np.ndarray, points: int) -> np.ndarray:
    """A series (tokens, features) at so many even times of its span, feature after feature."""
    where = np.linspace(times[0], times[-1], points)
    return np.concatenate([np.interp(where, times, values[:, k]) for k in range(values.shape[1])])


def _cross_entropy(logits: np.ndarray, labels: Sequence[int]) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    chosen = shifted[np.arange(len(labels)), np.array(labels)]
    return float((np.log(np.exp(shifted).sum(1)) - chosen).mean())
