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

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor
from continua.spaces.positions import checked_samples
from continua.spaces.quadrature import AbstractRule


class AbstractSampleRule(AbstractRule):
    """A rule that weighs positions it did not choose. Masses are differentiable in the positions."""

    @final
    def mass(
        self, positions: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens"]:
        """`w_i >= 0` with `sum_i w_i f(t_i)` standing for the integral of `f` over the sampled span.

        Positions are finite and non-decreasing along each row; `present` (default: all) is true, then false.
        """
        times, seen = checked_samples(positions, present)
        return torch.where(seen, self._cells(times, seen), 0.0)

    @abc.abstractmethod
    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
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

    @property
    def order(self) -> float:
        return 2.0

    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        return trapezoid_cells(times, present)


@final
@dataclass(frozen=True)
class Uniform(AbstractSampleRule):
    """`w_i = 1/n` for the `n` present tokens: the empirical measure.

    First order for the mean over the span when the samples are equispaced; on other samples it converges to
    the mean under their density, not under `dt`.
    """

    @property
    def order(self) -> float:
        return 1.0

    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        count = present.sum(dim=1, keepdim=True).clamp_min(1).to(times.dtype)
        return torch.ones_like(times) / count


@final
@dataclass(frozen=True)
class Counting(AbstractSampleRule):
    """`w_i = 1`: the counting measure of standard Transformers. Order 0, as it approximates no integral."""

    @property
    def order(self) -> float:
        return 0.0

    def _cells(
        self, times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        return torch.ones_like(times)


def trapezoid_cells(
    times: Float[Tensor, "batch tokens"], present: Bool[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens"]:
    """The masses of `Trapezoid` from checked samples (see `checked_samples`)."""
    # Absent tokens repeat the last time: their gaps are zero, and the last present cell is halved by itself.
    before = torch.diff(times, dim=1, prepend=times[:, :1])
    after = torch.diff(times, dim=1, append=times[:, -1:])
    count = present.sum(dim=1, keepdim=True)
    flat = (count > 1) & (times[:, -1:] <= times[:, :1])
    if bool(flat.any()):
        row, why = int(flat.nonzero()[0, 0]), "all tokens share one time: their total mass is zero"
        cure = "Give positions that differ, or weigh the tokens with Counting() or Uniform()."
        reject(f"positions[{row}]", times[row].detach(), why, cure)
    return torch.where(count == 1, 1.0, shared_among_ties(times, present, 0.5 * (before + after)))


def shared_among_ties(
    times: Float[Tensor, "batch tokens"],
    present: Bool[Tensor, "batch tokens"],
    mass: Float[Tensor, "batch tokens"],
) -> Float[Tensor, "batch tokens"]:
    """Masses averaged over the present tokens of each time.

    Gaps alone leave all the mass of a run of tied tokens at its ends: those inside, without mass, would count
    as absent, and the result would depend on the order of simultaneous tokens.
    """
    run = (torch.diff(times, dim=1, prepend=times[:, :1]) > 0).cumsum(dim=1)
    total = torch.zeros_like(mass).scatter_add(1, run, torch.where(present, mass, 0.0))
    count = torch.zeros_like(mass).scatter_add(1, run, present.to(mass.dtype))
    return (total / count.clamp_min(1.0)).gather(1, run)
