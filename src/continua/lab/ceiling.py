"""`mnist1d-ceiling`: how much of a digit can be told at all once samples are dropped."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
import torch

from continua.core.errors import reject
from continua.core.intervals import Interval
from continua.core.seeds import generator_of
from continua.data import Mnist1dPosterior, raw_mnist1d
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, equals, stays_below
from continua.runs import Lines, Scale, Series

_TRAINING = 4000
"""The signals before these are the training split of MNIST-1D."""
_KEPT = 0.9
"""The share of the best accuracy that was asked for with half of the samples dropped."""


@final
@dataclasses.dataclass(frozen=True)
class ExactPosterior(AbstractCell):
    """Of `count` test signals from `first` on, less a random share of their samples: the largest posterior, and hits.

    The largest posterior is the probability of being right, so its mean is the accuracy, with less spread than hits.
    """

    dropped: float
    first: int
    count: int

    def measure(self) -> Row:
        posterior, (signals, labels) = Mnist1dPosterior.of_generator(), raw_mnist1d()
        generator = generator_of(81 + self.first)
        sure, right = [], []
        for index in range(_TRAINING + self.first, _TRAINING + self.first + self.count):
            samples = signals.shape[1]
            order = torch.rand(samples, generator=generator).argsort()
            kept = order[: round(samples * (1.0 - self.dropped))].sort().values
            logs = posterior.log_probabilities(signals[index][kept], kept)
            sure.append(float(logs.max().exp()))
            right.append(int(logs.argmax()) == int(labels[index]))
        return {"dropped": self.dropped, "sure": sure, "right": right}


@final
@dataclasses.dataclass(frozen=True)
class Mnist1dCeiling(AbstractExperiment):
    """The best accuracy that any classifier can have on MNIST-1D, by the share of samples that are dropped."""

    name: ClassVar[str] = "mnist1d-ceiling"
    claim: ClassVar[str] = (
        "the best classifier of MNIST-1D, which knows its generator, tells 99 % of whole signals; with half of their "
        "samples dropped at random it keeps less than nine tenths of that, so no other can keep more"
    )
    formula: ClassVar[str] = "max_f P(f(o) = y) = E max_y P(y | o)"
    source: ClassVar[str] = "beyond the source; the generator of S. Greydanus, arXiv 2011.14439"

    dropped: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    signals: int = 1000
    part: int = 50

    def __post_init__(self) -> None:
        if not {0.0, 0.5} <= set(self.dropped):
            reject("dropped", self.dropped, "the claim is about all samples and half of them", "Pass 0.0 and 0.5 too.")

    def quick(self) -> "Mnist1dCeiling":
        return Mnist1dCeiling(dropped=(0.0, 0.5), signals=150)

    def cells(self) -> Sequence[AbstractCell]:
        starts = range(0, self.signals, self.part)
        return [
            ExactPosterior(share, first, min(self.part, self.signals - first))
            for share in self.dropped
            for first in starts
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        sure = {s: np.concatenate([row["sure"] for row in rows if row["dropped"] == s]) for s in self.dropped}
        right = {s: np.concatenate([row["right"] for row in rows if row["dropped"] == s]) for s in self.dropped}
        best = {share: _mean(values) for share, values in sure.items()}
        gaps = {share: _mean(right[share] - sure[share]) for share in self.dropped}
        whole, half = 0.0, 0.5
        limit = _KEPT * best[whole].value
        judgement = all_of(
            at_least("best accuracy with all samples", best[whole].value, 0.99),
            stays_below("best accuracy with half of them", best[half], limit),
            equals("hits less probabilities, half dropped", gaps[half], 0.0, 4.0 * _error(right[half] - sure[half])),
        )
        measured = {f"best accuracy, {share:.0%} dropped": best[share] for share in self.dropped}
        hits = {f"hits, {share:.0%} dropped": float(right[share].mean()) for share in self.dropped}
        figure = Lines(
            title="the best that can be told",
            measured=f"{self.signals} test signals, a subset of samples each",
            x=Scale("share of the samples dropped"),
            y=Scale("accuracy"),
            series=(
                Series.of("exact posterior", self.dropped, [best[s].value for s in self.dropped], mark="both"),
                Series.of("its hits", self.dropped, [float(right[s].mean()) for s in self.dropped], mark="points"),
                Series.of("nine tenths of all", self.dropped, [limit] * len(self.dropped), mark="dashed"),
            ),
        )
        bound = {f"best accuracy, {half:.0%} dropped": limit}
        return Findings((figure,), {**measured, **hits}, bound, judgement)


def _error(values: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _mean(values: np.ndarray) -> Interval:
    """A mean with its interval of 95 %."""
    mean, half = float(values.mean()), 1.96 * _error(values)
    return Interval(mean, mean - half, mean + half)
