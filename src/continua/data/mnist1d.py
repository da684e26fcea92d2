"""MNIST-1D: forty samples of a distorted, shifted, noisy digit, one of ten classes, and its exact posterior."""

import contextlib
import dataclasses
import functools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
import torch

from continua.core.batch import Batch
from continua.core.checks import share
from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.sampling import drop_samples, interpolate, roll
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_VALIDATION = 500
"""Of the 4,000 training samples, the last 500 are for validation where they are held out."""
_SCALES = 25
"""Nodes of the trapezoidal rule for the scale of a template, which is drawn evenly."""


@final
@dataclasses.dataclass(frozen=True)
class Mnist1d(AbstractTask):
    """The data set of S. Greydanus, Scaling down deep learning (2020), generated here by the package `mnist1d`.

    Token time is the place in the signal, from 0 to 1. The split is the generator's own: 4,000 for training, 1,000 for
    the test.

    - `shift`: training signals are shifted in a circle, as the generator itself does with its templates;
    - `dropped`: of every training batch a random share of the samples, from 0 to this, is dropped;
    - `test_dropped`, `test_samples`: the test with this share dropped (drawn from `seed`), or interpolated at so many
      equispaced times;
    - `held_out`: train on 3,500 and validate on the other 500; otherwise the test split is also the validation.
    """

    shift: bool = True
    dropped: float = 0.0
    test_dropped: float = 0.0
    test_samples: int | None = None
    held_out: bool = False
    seed: int = 0

    name = "mnist1d"

    def __post_init__(self) -> None:
        share(0.9, dropped=self.dropped, test_dropped=self.test_dropped)

    @property
    def form(self) -> Form:
        return Form(outputs=10, question=Question.LABEL, features=1, span=1.0, spacing=1.0 / 39.0)

    @property
    def augmentation(self) -> str:
        shift = ["circular shifts by a random number of samples"] if self.shift else []
        drop = [f"0 to {self.dropped:.0%} of the samples dropped at random"] if self.dropped else []
        return " and ".join(shift + drop)

    def count(self, split: Split) -> int:
        return len(self._part(split)[1])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        values, labels = (tensor[index] for tensor in self._part(split))
        times = torch.linspace(0.0, 1.0, values.shape[1]).expand(len(index), -1)
        if split is not Split.TRAIN and self.test_dropped > 0.0:
            # each sample has a subset of its own, whatever the batch it stands in
            own = [drop_samples(v[None], times[:1], self.test_dropped, generator_of(self.seed * 10**6 + int(i)))
                   for v, i in zip(values, index, strict=True)]  # fmt: skip
            values, times = torch.cat([v for v, _ in own]), torch.cat([t for _, t in own])
        if split is not Split.TRAIN and self.test_samples is not None:
            values, times = interpolate(values, times, self.test_samples)
        return Batch((values, times), labels)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        values, times = batch.inputs
        if self.shift:
            values = roll(values, generator)
        if self.dropped > 0.0:
            dropped = self.dropped * float(torch.rand((), generator=generator))
            values, times = drop_samples(values, times, dropped, generator)
        return Batch((values, times), batch.targets)

    @property
    def wording(self) -> Wording:
        return Wording()

    def facts(self) -> dict[str, Any]:
        counts = {"training samples": self.count(Split.TRAIN), "test samples": self.count(Split.TEST), "classes": 10}
        return counts if self.held_out else {**counts, "validation": "the test samples"}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {
            "half of the samples dropped": dataclasses.replace(self, test_dropped=0.5),
            "80 interpolated samples": dataclasses.replace(self, test_samples=80),
        }

    def _part(self, split: Split) -> tuple[Tensor, Tensor]:
        train, test = _generate()
        if split is Split.TEST or (split is Split.VALIDATION and not self.held_out):
            return test
        if not self.held_out:
            return train
        own = slice(-_VALIDATION, None) if split is Split.VALIDATION else slice(0, -_VALIDATION)
        return train[0][own], train[1][own]


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


@contextlib.contextmanager
def _preserve_random_states() -> Iterator[None]:
    """The package seeds the global random states of Python and numpy, which are not ours to change."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@functools.cache
def _generate() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Values (samples, 40, 1) and labels of both splits."""
    with _preserve_random_states():
        data = extra("mnist1d.data", "data").make_dataset()

    def part(suffix: str) -> tuple[Tensor, Tensor]:
        values = torch.tensor(data["x" + suffix], dtype=torch.float32)
        return values.unsqueeze(-1), torch.tensor(data["y" + suffix])

    return part(""), part("_test")


@functools.cache
def raw_mnist1d() -> tuple[Tensor, Tensor]:
    """All 5,000 signals (signals, 40) of the data set in the generator's own units, and labels, in its own order.

    The package gives them less their mean and over their deviation, which it does not return; so they are drawn again
    from the same seed, by the same calls in the same order.
    """
    package: Any = extra("mnist1d.data", "data")
    arguments, templates = package.get_dataset_args(), package.get_templates()
    with _preserve_random_states():
        extra("mnist1d.utils", "data").set_seed(arguments.seed)
        each = arguments.num_samples // 10
        signals = [package.transform(row, templates["t"], arguments)[0] for row in templates["x"] for _ in range(each)]
        order = np.random.permutation(len(signals))
    return torch.tensor(np.stack(signals)[order]), torch.tensor(order // each)
