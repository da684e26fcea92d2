"""The exact posterior of MNIST-1D's generator: what can be told of a digit from some of its samples, at best."""

import dataclasses
import functools
import math
import random
from typing import Any, final

import numpy as np
import torch

from continua.core.extras import extra
from continua.core.shapes import Float, Int, Tensor

_SCALES = 25
"""Nodes of the trapezoidal rule for the scale of a template, which is drawn evenly."""


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
        matrix = np.stack([np.interp(np.linspace(0.0, 1.0, samples), finer, row) for row in np.eye(length)], 1)
        smoothed = extra("scipy.ndimage", "data").gaussian_filter1d
        noise = arguments.corr_noise_scale * smoothed(np.eye(length), 2, axis=0)
        white = arguments.iid_noise_scale**2 * matrix @ matrix.T
        means, covariances = [], []
        for padding in range(lowest, highest + 1):
            coarse = np.linspace(0.0, 1.0, arguments.template_len + padding)
            # 1e-8 marks where the template is, also where it is zero
            padded = [np.concatenate([template + 1e-8, np.zeros(padding)]) for template in templates]
            dilated = np.stack([np.interp(finer, coarse, row) for row in padded])
            for shift in range(arguments.max_translation):
                moved = np.roll(dilated, shift, 1)
                smooth = matrix @ (np.where(moved[0] != 0.0, 0.0, 1.0)[:, None] * noise)
                means.append(moved @ matrix.T)
                covariances.append(smooth @ smooth.T + white)
        half = arguments.scale_coeff / 2.0
        return cls(
            torch.tensor(np.stack(means)),
            torch.tensor(np.stack(covariances)),
            torch.tensor(matrix @ np.linspace(-0.5, 0.5, length)),
            arguments.shear_scale / 2.0,
            torch.linspace(1.0 - half, 1.0 + half, _SCALES, dtype=torch.float64),
        )

    def log_probabilities(self, values: Float[Tensor, " kept"], kept: Int[Tensor, " kept"]) -> Float[Tensor, " digits"]:
        """log P(digit | the samples with the indices `kept`), of values in the generator's own units."""
        places, digits, _ = self.means.shape
        factor = torch.linalg.cholesky(self.covariances[:, kept][:, :, kept])
        seen, ramp = values.double().expand(places, 1, -1), self.ramp[kept].expand(places, 1, -1)
        sides = torch.cat([seen, ramp, self.means[:, :, kept]], 1).mT
        seen, ramp, means = torch.linalg.solve_triangular(factor, sides, upper=False).mT.split([1, 1, digits], 1)
        # |seen - s means + c ramp|^2 = a + 2 b c + d c^2
        s = self.scales.view(-1, 1, 1)
        a = seen.square().sum(-1) - 2.0 * s * (means * seen).sum(-1) + s.square() * means.square().sum(-1)
        b = (ramp * seen).sum(-1) - s * (ramp * means).sum(-1)
        d = ramp.square().sum(-1)
        inside = _log_between((b / d - self.slope) * d.sqrt(), (b / d + self.slope) * d.sqrt())
        logs = -0.5 * (a - b.square() / d) + inside - 0.5 * d.log()
        ends = torch.zeros(len(self.scales), 1, 1, dtype=torch.float64)
        ends[0] = ends[-1] = -math.log(2.0)
        logs = logs + ends - factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
        return logs.logsumexp((0, 1)).log_softmax(0)


def _log_between(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)) of the normal distribution, also far from the middle."""
    low, high = torch.where(low + high > 0, -high, low), torch.where(low + high > 0, -low, high)
    upper = torch.special.log_ndtr(high)
    return upper + torch.log(-torch.expm1(torch.special.log_ndtr(low) - upper))


@functools.cache
def raw_mnist1d() -> tuple[Tensor, Tensor]:
    """All 5,000 signals (signals, 40) of the data set in the generator's own units, and labels, in its own order.

    The package gives them less their mean and over their deviation, which it does not tell.
    """
    package: Any = extra("mnist1d.data", "data")
    arguments, templates = package.get_dataset_args(), package.get_templates()
    states = random.getstate(), np.random.get_state()
    try:
        extra("mnist1d.utils", "data").set_seed(arguments.seed)
        each = arguments.num_samples // 10
        signals = [package.transform(row, templates["t"], arguments)[0] for row in templates["x"] for _ in range(each)]
        order = np.random.permutation(len(signals))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return torch.tensor(np.stack(signals)[order]), torch.tensor(order // each)
