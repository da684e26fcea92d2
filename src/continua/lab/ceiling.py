"""`mnist1d-ceiling`: how much of a digit can be told at all once samples are missing."""

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.errors import reject
from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data import raw_mnist1d
from continua.lab.experiment import AbstractExperiment, AtMost, Findings
from continua.lab.intervals import Interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, equals, stays_below
from continua.runs import Curve, Lines, Scale

_TRAINING = 4000
"""The signals before these are the training split of MNIST-1D."""
_KEPT = 0.9
"""The fraction of the best accuracy that was asked for with half of the samples missing."""
_SCALES = 25
"""Nodes of the trapezoidal rule for the scale of a template, which is drawn evenly."""


@final
class ExactPosterior(AbstractCell):
    """Of `count` test signals from `first` on, less a random fraction of samples: the largest posterior, and hits.

    The largest posterior is the probability of being right, so its mean is the accuracy, with less spread than hits.
    """

    missing: float
    first: int
    count: int

    def measure(self) -> Row:
        posterior, (signals, labels) = Mnist1dPosterior.of_generator(), raw_mnist1d()
        generator = generator_of(81 + self.first)
        sure, right = [], []
        for index in range(_TRAINING + self.first, _TRAINING + self.first + self.count):
            samples = signals.shape[1]
            order = torch.rand(samples, generator=generator).argsort()
            kept = order[: round(samples * (1.0 - self.missing))].sort().values
            logs = posterior.log_probabilities(signals[index][kept], kept)
            sure.append(float(logs.max().exp()))
            right.append(int(logs.argmax()) == int(labels[index]))
        return {"missing": self.missing, "sure": sure, "right": right}


@final
class Mnist1dCeiling(AbstractExperiment):
    """The best accuracy that any classifier can have on MNIST-1D, by the fraction of samples that are missing."""

    name = "mnist1d-ceiling"
    claim = (
        "the best classifier of MNIST-1D, which knows its generator, tells 99 % of whole signals; with half of their "
        "samples missing at random it keeps less than nine tenths of that, so no other can keep more"
    )
    formula = "max_f P(f(o) = y) = E max_y P(y | o)"
    source = "beyond the source; the generator of S. Greydanus, arXiv 2011.14439"

    missing: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    signals: int = 1000
    part: int = 50

    def __post_init__(self) -> None:
        if not {0.0, 0.5} <= set(self.missing):
            reject("missing", self.missing, "the claim is about all samples and half of them", "Pass 0.0 and 0.5 too.")

    def quick(self) -> "Mnist1dCeiling":
        return Mnist1dCeiling(missing=(0.0, 0.5), signals=120)

    def cells(self) -> Sequence[AbstractCell]:
        starts = range(0, self.signals, self.part)
        return [
            ExactPosterior(share, first, min(self.part, self.signals - first))
            for share in self.missing
            for first in starts
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        sure, right = (
            {s: np.concatenate([row[kind] for row in rows if row["missing"] == s]) for s in self.missing}
            for kind in ("sure", "right")
        )
        best = {share: _mean(values) for share, values in sure.items()}
        whole, half = 0.0, 0.5
        gaps, limit = right[half] - sure[half], _KEPT * best[whole].value
        judgement = all_of(
            at_least("best accuracy with all samples", best[whole].value, 0.99),
            stays_below("best accuracy with half of them", best[half], limit),
            # The margin follows the spread: it is the posterior that is checked here, not the number of signals.
            equals("hits less probabilities, half missing", _mean(gaps), 0.0, 4.0 * _error(gaps)),
        )
        measured = {f"best accuracy, {share:.0%} missing": best[share] for share in self.missing}
        hits = {f"hits, {share:.0%} missing": float(right[share].mean()) for share in self.missing}
        figure = Lines(
            title="the best that can be told",
            measured=f"{self.signals} test signals, a subset of samples each",
            x=Scale("fraction of the samples missing"),
            y=Scale("accuracy"),
            curves=(
                Curve.of("exact posterior", self.missing, [best[s].value for s in self.missing], mark="both"),
                Curve.of("its hits", self.missing, [float(right[s].mean()) for s in self.missing], mark="points"),
                Curve.of("nine tenths of all", self.missing, [limit] * len(self.missing), mark="dashed"),
            ),
        )
        bound = {f"best accuracy, {half:.0%} missing": AtMost(limit)}
        return Findings((figure,), {**measured, **hits}, bound, judgement)


def _error(values: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _mean(values: np.ndarray) -> Interval:
    """A mean with its interval of 95 %."""
    mean, half = float(values.mean()), 1.96 * _error(values)
    return Interval(mean, mean - half, mean + half)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Mnist1dPosterior:
    """P(digit | samples) under the generator of the package `mnist1d` with its own arguments.

    A signal is o = A (s f + (1 - 1_f) G e + sigma n - c r): the template f of a digit, padded by one of 25 lengths and
    shifted by one of 48, times a scale s; smoothed noise G e wherever the template is not; white noise sigma n; a ramp
    r with a slope c; and A, the interpolation from 72 to 40 samples. Given padding, shift, s and c it is Gaussian. The
    sum over paddings and shifts is exact, so is the integral over c (a truncated Gaussian); that over s is a
    trapezoidal rule. The digit of highest posterior is right more often than any other function of the samples.
    """

    means: Float[Tensor, "places digits samples"]
    covariances: Float[Tensor, "places samples samples"]
    ramp: Float[Tensor, " samples"]
    slope: float
    scales: Float[Tensor, " scales"]

    @classmethod
    def of_generator(cls) -> "Mnist1dPosterior":
        """The posterior for the arguments that the package has by default."""
        arguments = extra("mnist1d.data", "data").get_dataset_args()
        templates = extra("mnist1d.data", "data").get_templates()["x"]
        lowest, highest = arguments.padding
        length, samples = arguments.template_len + highest, arguments.final_seq_length
        finer = np.linspace(0.0, 1.0, length)
        # interpolation is linear, so its matrix is what it makes of the unit vectors; likewise the smoothing below
        matrix = np.stack([np.interp(np.linspace(0.0, 1.0, samples), finer, row) for row in np.eye(length)], 1)
        smooth = extra("scipy.ndimage", "data").gaussian_filter1d
        noise = arguments.corr_noise_scale * smooth(np.eye(length), 2, axis=0)
        white = arguments.iid_noise_scale**2 * matrix @ matrix.T
        means, covariances = [], []
        for padding in range(lowest, highest + 1):
            coarse = np.linspace(0.0, 1.0, arguments.template_len + padding)
            # as the package does: 1e-8 marks where the template is, also where it is zero
            padded = [np.concatenate([template + 1e-8, np.zeros(padding)]) for template in templates]
            dilated = np.stack([np.interp(finer, coarse, row) for row in padded])
            for shift in range(arguments.max_translation):
                moved = np.roll(dilated, shift, 1)
                # all templates have one length, hence one mask and one covariance per place
                masked = matrix @ (np.where(moved[0] != 0.0, 0.0, 1.0)[:, None] * noise)
                means.append(moved @ matrix.T)
                covariances.append(masked @ masked.T + white)
        half = arguments.scale_coeff / 2.0
        return cls(
            torch.tensor(np.stack(means)),
            torch.tensor(np.stack(covariances)),
            torch.tensor(matrix @ np.linspace(-0.5, 0.5, length)),
            arguments.shear_scale / 2.0,
            torch.linspace(1.0 - half, 1.0 + half, _SCALES, dtype=torch.float64),
        )

    def log_probabilities(self, values: Float[Tensor, " seen"], seen: Int[Tensor, " seen"]) -> Float[Tensor, " digits"]:
        """log P(digit | the samples with the indices `seen`), of values in the generator's own units."""
        places, digits, _ = self.means.shape
        # leaving samples out of a Gaussian is taking rows and columns out of its covariance
        factor = torch.linalg.cholesky(self.covariances[:, seen][:, :, seen])
        signal, ramp = values.double().expand(places, 1, -1), self.ramp[seen].expand(places, 1, -1)
        sides = torch.cat([signal, ramp, self.means[:, :, seen]], 1).mT
        signal, ramp, means = torch.linalg.solve_triangular(factor, sides, upper=False).mT.split([1, 1, digits], 1)
        # in whitened coordinates |signal - s means + c ramp|^2 = a + 2 b c + d c^2, Gaussian in c about -b/d
        s = self.scales.view(-1, 1, 1)
        a = signal.square().sum(-1) - 2.0 * s * (means * signal).sum(-1) + s.square() * means.square().sum(-1)
        b = (ramp * signal).sum(-1) - s * (ramp * means).sum(-1)
        d = ramp.square().sum(-1)
        inside = _log_between((b / d - self.slope) * d.sqrt(), (b / d + self.slope) * d.sqrt())
        logs = -0.5 * (a - b.square() / d) + inside - 0.5 * d.log()
        ends = torch.zeros(len(self.scales), 1, 1, dtype=torch.float64)
        ends[0] = ends[-1] = -math.log(2.0)
        logs = logs + ends - factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
        return logs.logsumexp((0, 1)).log_softmax(0)


def _log_between(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)) of the normal distribution, also far from the middle.

    Intervals right of 0 are mirrored: there both values of Phi are 1 to rounding, left of 0 their logarithms differ.
    """
    low, high = torch.where(low + high > 0, -high, low), torch.where(low + high > 0, -low, high)
    upper = torch.special.log_ndtr(high)
    return upper + torch.log(-torch.expm1(torch.special.log_ndtr(low) - upper))
