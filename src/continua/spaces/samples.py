"""Quadrature rules for samples that are given: masses `w_i` from sorted, irregular positions `t_i`.

Sequences of different lengths share a batch by padding at the end: `present` is true on the first tokens of
each row. Absent tokens get exactly zero mass, whatever sits at their positions, and the others are weighted
as if alone. A row without any present token is the empty measure. Masses are computed once per solve, so
checking the positions here costs one synchronisation with the device and not one per stage.
"""

import abc
from dataclasses import dataclass
from typing import final

import torch

from continua.core.checks import refuse_where
from continua.core.shapes import Bool, Mass, Positions, Present, Tensor
from continua.spaces.measure import checked_samples


class AbstractSampleRule(abc.ABC):
    """A rule that weighs positions it did not choose. Masses are differentiable in the positions."""

    order: float
    """The error on smooth integrands is O(h^order) in the spacing h; 0 where no integral is approximated."""

    @final
    def mass(self, times: Positions, present: Present | None = None) -> Mass:
        """`w_i >= 0` with `sum_i w_i f(t_i)` standing for the integral of `f` over the sampled span."""
        times, seen = checked_samples(times, present)
        return torch.where(seen, self._cells(times, seen), 0.0)

    @abc.abstractmethod
    def _cells(self, times: Positions, present: Present) -> Mass:
        """Masses of checked samples (absent tokens repeat the last present time); read where present."""


@final
@dataclass(frozen=True)
class Trapezoid(AbstractSampleRule):
    """Trapezoidal rule on irregular samples.

        w_i = (t_{i+1} - t_{i-1})/2 ,   w_1 = (t_2 - t_1)/2 ,   w_n = (t_n - t_{n-1})/2

    A single token gets mass 1: any positive mass gives the same normalised integral. Tied tokens share
    the mass of their time equally; a row of two or more at one time is refused. Without ties equivalent to
    `scipy.integrate.trapezoid` on `f(t_i)`.
    """

    order = 2.0

    def _cells(self, times: Positions, present: Present) -> Mass:
        return trapezoid_cells(times, present)


@final
@dataclass(frozen=True)
class Uniform(AbstractSampleRule):
    """`w_i = 1/n`, `n` the tokens present: the empirical measure. First order for the mean over equispaced samples;
    on others it converges to the mean under their density, not under `dt`."""

    order = 1.0

    def _cells(self, times: Positions, present: Present) -> Mass:
        return torch.ones_like(times) / present.sum(dim=1, keepdim=True).clamp_min(1)


@final
@dataclass(frozen=True)
class Counting(AbstractSampleRule):
    """`w_i = 1`: the counting measure of standard Transformers. Order 0, as it approximates no integral."""

    order = 0.0

    def _cells(self, times: Positions, present: Present) -> Mass:
        return torch.ones_like(times)


def trapezoid_cells(times: Positions, present: Present) -> Mass:
    """The masses of `Trapezoid` from checked samples (see `checked_samples`)."""
    # Absent tokens repeat the last time: their gaps are zero, and the last present cell is halved by itself.
    before = torch.diff(times, dim=1, prepend=times[:, :1])
    after = torch.diff(times, dim=1, append=times[:, -1:])
    count = present.sum(dim=1, keepdim=True)
    why = "all tokens share one time: their total mass is zero"
    cure = "Give times that differ, or weigh the tokens with Counting() or Uniform()."
    refuse_where(((count > 1) & (times[:, -1:] <= times[:, :1])).any(-1), why, cure, times=times)
    return torch.where(count == 1, 1.0, shared_among_ties(times, present, 0.5 * (before + after)))


def shared_among_ties(times: Positions, present: Present, mass: Mass) -> Mass:
    """Masses averaged over the present tokens of each time.

    Gaps alone leave all the mass of a run of tied tokens at its ends: those inside, without mass, would count
    as absent, and the result would depend on the order of simultaneous tokens.
    """
    run = (torch.diff(times, dim=1, prepend=times[:, :1]) > 0).cumsum(dim=1)
    total = torch.zeros_like(mass).scatter_add(1, run, torch.where(present, mass, 0.0))
    count = torch.zeros_like(mass).scatter_add(1, run, present.to(mass.dtype))
    return (total / count.clamp_min(1.0)).gather(1, run)


class AbstractCausalRule(AbstractSampleRule):
    """A sample rule that stands for every running integral at once; `mass` holds the columns `w_j`."""

    @abc.abstractmethod
    def own(self, times: Positions, present: Present | None = None) -> Mass | None:
        """The mass `w_ii` of token `i` in its own row, or None when it is the column mass `w_i`."""


@final
@dataclass(frozen=True)
class BackwardRectangle(AbstractCausalRule):
    """Each sample stands for the time since the one before.

        w_j = t_j - t_{j-1} ,   w_1 = t_1 - start

    First order for every `int_start^{t_i}`; no leak, and every row reads the same masses. With `t_j = j` and
    `start = 0` all masses are 1: text under this rule is the counting measure. Tied tokens see each other and
    share the mass of their time. `start` has the unit of the times that the rule reads: inside `TokenTime` these are
    scaled to [0, 1].
    """

    start: float = 0.0

    order = 1.0

    def own(self, times: Positions, present: Present | None = None) -> None:
        return None

    def _cells(self, times: Positions, present: Present) -> Mass:
        early = present[:, :1] & (times[:, :1] <= self.start)
        why = f"a first sample has no mass unless it comes after start = {self.start}"
        cure = "Choose an earlier start, such as one spacing before the first sample."
        refuse_where(early, why, cure, times=times)
        gaps = torch.diff(times, dim=1, prepend=times.new_full((times.shape[0], 1), self.start))
        return shared_among_ties(times, present, gaps)


@final
@dataclass(frozen=True)
class CausalTrapezoid(AbstractCausalRule):
    """The trapezoidal rule of every running integral; rows differ on the diagonal only.

        w_j = (t_{j+1} - t_{j-1})/2 ,   w_1 = (t_2 - t_1)/2 ,   w_ii = (t_i - t_{i-1})/2

    Second order for every `int_{t_1}^{t_i}`. The column `w_j` knows `t_{j+1}`, but only rows `i > j` read it. The last
    column is read by no row and is that of `Trapezoid`. Row 1 sees itself alone, and its normalised integral is its own
    value under any positive mass: `w_11 = 1`. Row `i` is `scipy.integrate.cumulative_trapezoid` up to `t_i`.

    Tied tokens see each other, so one of them would read the other's column, and with it the next time: masses that
    differ on the diagonal only cannot serve ties without a leak. A sequence with ties therefore has the masses of
    `BackwardRectangle`, first order, its first time as long as the gap behind it.
    """

    order = 2.0

    def own(self, times: Positions, present: Present | None = None) -> Mass:
        times, seen = checked_samples(times, present)
        halves = 0.5 * torch.diff(times, dim=1)
        masses = torch.cat([torch.ones_like(times[:, :1]), halves], dim=1)
        return torch.where(seen, torch.where(_is_tied(times, seen), _rectangles(times, seen), masses), 0.0)

    def _cells(self, times: Positions, present: Present) -> Mass:
        tied = _is_tied(times, present)
        apart = torch.where(tied, torch.arange(times.shape[1], device=times.device).to(times), times)
        return torch.where(tied, _rectangles(times, present), trapezoid_cells(apart, present))


def _is_tied(times: Positions, present: Present) -> Bool[Tensor, "batch 1"]:
    """Whether two present tokens of a sequence have one time."""
    return ((torch.diff(times, dim=1) <= 0) & present[:, 1:]).any(1, keepdim=True)


def _rectangles(times: Positions, present: Present) -> Mass:
    """The time since the one before, shared by ties; of the first time the gap behind it, 1 where there is none.

    That gap tells no token of a later one: those of the first time see each other alone, with equal masses.
    """
    if times.shape[1] == 0:
        return times
    gaps = torch.diff(times, dim=1, prepend=times[:, :1])
    rises = gaps > 0
    behind = gaps.gather(1, rises.to(torch.uint8).argmax(1, keepdim=True))
    first = torch.where(rises.any(1, keepdim=True), behind, 1.0)
    return shared_among_ties(times, present, torch.cat([first, gaps[:, 1:]], 1))
