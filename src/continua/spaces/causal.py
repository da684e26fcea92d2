"""Quadrature rules for causal sequences: query `i` integrates over the tokens with `t_j <= t_i` only.

Masking a global rule is first order only, and `w_i = (t_{i+1} - t_{i-1})/2` tells query `i` when the next
sample comes. Here row `i` is the measure `sum_{j < i} w_j delta_j + w_ii delta_i`, and nothing in it depends
on a later time.
"""

import abc
from dataclasses import dataclass
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor
from continua.spaces.positions import checked_samples
from continua.spaces.samples import AbstractSampleRule, shared_among_ties, trapezoid_cells


class AbstractCausalRule(AbstractSampleRule):
    """A sample rule that stands for every running integral at once; `mass` holds the columns `w_j`."""

    @abc.abstractmethod
    def own(
        self, positions: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens"] | None:
        """The mass `w_ii` of token `i` in its own row, or None when it is the column mass `w_i`."""


@final
@dataclass(frozen=True)
class BackwardRectangle(AbstractCausalRule):
    """Each sample stands for the time since the one before.

        w_j = t_j - t_{j-1} ,   w_1 = t_1 - start

    First order for every `int_start^{t_i}`; no leak, and every row reads the same masses. With `t_j = j` and
    `start = 0` all masses are 1: text under this rule is the counting measure. Tied tokens see each other and
    share the mass of their time.
    """

    start: float = 0.0

    @property
    def order(self) -> float:
        return 1.0

    def own(
        self, positions: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> None:
        return None

    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        early = present[:, :1] & (times[:, :1] <= self.start)
        if bool(early.any()):
            first = times[int(early.nonzero()[0, 0]), 0].item()
            why = f"a first sample, at {first}, does not come after it and would have no mass"
            reject(
                "start",
                self.start,
                why,
                "Choose an earlier start, such as one spacing before the first sample.",
            )
        gaps = torch.diff(times, dim=1, prepend=times.new_full((times.shape[0], 1), self.start))
        return shared_among_ties(times, present, gaps)


@final
@dataclass(frozen=True)
class CausalTrapezoid(AbstractCausalRule):
    """The trapezoidal rule of every running integral; rows differ on the diagonal only.

        w_j = (t_{j+1} - t_{j-1})/2 ,   w_1 = (t_2 - t_1)/2 ,   w_ii = (t_i - t_{i-1})/2

    Second order for every `int_{t_1}^{t_i}`. The column `w_j` knows `t_{j+1}`, but only rows `i > j` read it.
    The last column is read by no row and is that of `Trapezoid`. Row 1 sees itself alone, and its normalised
    integral is its own value under any positive mass: `w_11 = 1`. Row `i` is
    `scipy.integrate.cumulative_trapezoid` up to `t_i`.

    Times must increase strictly. Tied tokens see each other, so one of them would read the other's column,
    and with it the next time: masses that differ on the diagonal only cannot serve ties without a leak.
    """

    @property
    def order(self) -> float:
        return 2.0

    def own(
        self, positions: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens"]:
        times, seen = checked_samples(positions, present)
        _check_strict(times, seen)
        halves = 0.5 * torch.diff(times, dim=1)
        masses = torch.cat([torch.ones_like(times[:, :1]), halves], dim=1)
        return torch.where(seen, masses, 0.0)

    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        _check_strict(times, present)
        return trapezoid_cells(times, present)


def _check_strict(times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]) -> None:
    tied = (torch.diff(times, dim=1) <= 0) & present[:, 1:]
    if bool(tied.any()):
        row, token = tied.nonzero()[0].tolist()
        why = "tied tokens see each other, and the mass of one would tell the other the next time"
        cure = "Separate the times, or use BackwardRectangle(start=...)."
        reject(f"positions[{row}, {token}:{token + 2}]", times[row, token : token + 2].detach(), why, cure)
