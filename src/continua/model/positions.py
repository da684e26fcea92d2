"""Token time: the clock that reads times in any unit, and codes for positions, added to the embedded tokens."""

import abc
import dataclasses
import math
import warnings
from typing import NoReturn, final

import torch
from torch import nn

from continua.core.checks import at_least, is_traced, positive, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Points, Positions, Tensor

_PART, _SOME = 0.1, 8
"""Sequences of so many samples that all stay within this part of the span are not what the model was built for."""


@final
@dataclasses.dataclass(frozen=True)
class Clock:
    """Times from `start` to `end`, in any unit, as token time (t - start)/(end - start).

    A model reads times near [0, 1]: its frequencies and its stem are made for that span. Times more than a span
    outside, and samples of one sequence over more than one and a half spans, are refused: they are usually in another
    unit. The difference to `start` is taken in the precision of the times themselves:
    seconds since 1970 in float64 keep their digits in a float32 model; in float32, which does not tell samples
    `finest` apart (a 32nd of the span where it is not given), they are refused. Where no times are given, samples are
    equispaced from `start` to `end`, or, with `untimed_spacing` (causal models), so far apart from `start` on.
    """

    start: float = 0.0
    end: float = 1.0
    untimed_spacing: float | None = None
    finest: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and self.start < self.end < math.inf):
            reject("end", self.end, f"time goes on from start = {self.start}", "Pass finite start < end.")
        positive(untimed_spacing=self.untimed_spacing, finest=self.finest)

    def read(self, times: Tensor, present: Bool[Tensor, "batch tokens"] | None, like: Tensor) -> Positions:
        """Times of tokens or queries as token time, in the dtype of `like`."""
        exact = times if times.is_floating_point() else times.double()
        self._refuse_rounded(exact.dtype, like.dtype)
        unit = (exact - self.start) / (self.end - self.start)
        if present is not None:
            unit = unit.masked_fill(~present, 0.0)
        if not is_traced():
            far = unit.detach()[(unit < -1.0) | (unit > 2.0)]
            if far.numel() > 0:
                value = self.start + (self.end - self.start) * float(far[0])
                cure = "Give times in the unit of the model, or build it for yours: time=TokenTime(start, end)."
                self._refuse_far(value, cure)
        return unit.to(like)

    def check_extent(
        self,
        unit: Positions,
        present: Bool[Tensor, "batch tokens"] | None,
        query_times: Tensor | None = None,
        spans: float = 1.5,
    ) -> None:
        """Refuses samples of one sequence over more than so many spans, and warns where all fill a small part of one.

        Causal models may go on beyond the span, and begin with the samples of its start.
        """
        if self.untimed_spacing is not None or is_traced():
            return
        first = last = unit.detach()
        if present is not None:
            first, last = first.masked_fill(~present, math.inf), last.masked_fill(~present, -math.inf)
        first, last = first.amin(1), last.amax(1)
        wide = last - first > spans
        if bool(wide.any()):
            start, end = (self.start + (self.end - self.start) * float(x[wide][0]) for x in (first, last))
            cure = f"Build it for yours: time=TokenTime({start:g}, {end:g})."
            self._refuse_far(f"{start:g} to {end:g}", cure)
        if query_times is not None and query_times.numel() > 0:  # they may lie ahead of all samples
            asked = (query_times.detach() - self.start) / (self.end - self.start)
            first, last = first.clamp(max=float(asked.min())), last.clamp(min=float(asked.max()))
        longest = float((last - first).max())
        later = unit.detach().diff(dim=1) > 0.0  # samples of several sensors share a time
        times = 1 + int((later if present is None else later & present[:, 1:]).sum(1).max())
        if self.finest is None and times >= _SOME and 0.0 < longest < _PART:
            why = (
                f"the longest sequence covers {longest:.1%} of the times from {self.start:g} to {self.end:g}, for which"
            )
            cure = "Give times from the start of each sequence, in the unit of the model, or build it for yours"
            how = "time=TokenTime(start, end, spacing=...)"
            warnings.warn(f"{why} this model was built. {cure}: {how}.", stacklevel=2)

    def regular_times(
        self, present: Bool[Tensor, "batch tokens"] | None, shape: tuple[int, int], like: Tensor
    ) -> Positions:
        """Token times of samples that came without times."""
        index = torch.arange(shape[1], dtype=like.dtype, device=like.device).expand(shape)
        if self.untimed_spacing is not None:
            if not is_traced():
                self._check_length(shape[1] if present is None else int(present.sum(1).max()))
            return index * (self.untimed_spacing / (self.end - self.start))
        count = shape[1] if present is None else present.sum(1, keepdim=True)
        last = torch.as_tensor(count, device=like.device).to(like.dtype) - 1.0
        return torch.minimum(index / last.clamp_min(1.0), index.new_ones(()))

    def _check_length(self, count: int) -> None:
        """Samples without times, so far apart, reach as far as times may; beyond the span nobody may have meant it."""
        assert self.untimed_spacing is not None
        span = self.end - self.start
        last = (count - 1) * self.untimed_spacing
        if last > 2.0 * span:
            how = f"time=TokenTime({self.start:g}, {self.end:g}, spacing={span / (count - 1):.3g})"
            why = f"Samples without times are {self.untimed_spacing:g} apart in a causal model"
            self._refuse_far(self.start + last, f"{why}: give times, or build it with {how}.")
        if self.finest is None and last > (1.0 + 1e-6) * span:
            where = f"{count} samples without times end at {self.start + last:g}, beyond the model's span"
            why = f"those of a causal model are {self.untimed_spacing:g} apart"
            cure = "Give times, or the spacing: time=TokenTime(start, end, spacing=...)"
            warnings.warn(f"{where}: {why}. {cure}.", stacklevel=2)

    def _refuse_far(self, value: float | str, cure: str) -> NoReturn:
        reject("times", value, f"this model was built for times from {self.start:g} to {self.end:g}", cure)

    def _refuse_rounded(self, dtype: torch.dtype, model: torch.dtype) -> None:
        """Digits that a large start costs, unless the model itself has no more of them."""
        span = self.end - self.start
        step = torch.finfo(dtype).eps * max(abs(self.start), abs(self.end))
        needed = 1e-3 * span / 32 if self.finest is None else 1e-2 * self.finest
        if step > needed and step > 2.0 * torch.finfo(model).eps * span:
            why = f"near {self.end:.10g} such numbers are {step:.3g} apart, too far for a span of {span:g}"
            why += "" if self.finest is None else f" with samples {self.finest:g} apart"
            cure = "Keep them in float64 from the start (times.double() brings no lost digits back), or subtract the "
            reject("times", dtype, why, cure + "start before they are rounded, and build the model for that span.")


class AbstractPositionCode(nn.Module, abc.ABC):
    """t -> a vector of the model's width."""

    width: int

    @abc.abstractmethod
    def forward(self, positions: Positions) -> Points:
        """The code of every position."""


class LearnedPositions(AbstractPositionCode):
    """One trained vector for each of the positions 0, 1, ..., length - 1, as in GPT-2 and BERT."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        at_least(1, length=length, width=width)
        self.length, self.width = length, width
        self.table = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, positions: Positions) -> Points:
        index = positions.long()
        cure = "Use SinusoidalPositions, which reads any time."
        refuse_where(positions != index, "a learned table knows whole numbers only", cure, times=positions)
        why = f"the table reaches from 0 to {self.length - 1}"
        cure = f"Shorten the sequence, build a longer table, or generate with window=Window({self.length})."
        refuse_where((index < 0) | (index >= self.length), why, cure, positions=index)
        return self.table[index]


class FourierPositions(AbstractPositionCode):
    """W phi(t) + b with Fourier features phi(t) = (cos(om_k t), sin(om_k t)) / sqrt(features) of real t, W trained.

        om_k = scale sqrt(2) erfinv((k + 1/2) / features) ,   k = 0, ..., features - 1

    The angular frequencies, with no 2 pi before them, are quantiles of the normal law of deviation `scale`, so that
    <phi(t), phi(s)> tends to the Gaussian kernel e^{-scale^2 (t - s)^2 / 2}: 1/scale is the time over which the code
    changes (of signals in a model of `transformer` a fraction of the span). A. Rahimi and B. Recht, Random features for
    large-scale kernel machines (2007), with quantiles in place of draws, as time has one dimension; M. Tancik et al.,
    Fourier features let networks learn high frequency functions (2020).
    """

    def __init__(self, width: int, features: int, scale: float) -> None:
        super().__init__()
        at_least(1, width=width, features=features)
        positive(scale=scale)
        self.width, self.features, self.scale = width, features, float(scale)
        self.linear = nn.Linear(2 * features, width)

    def frequencies(self) -> Float[Tensor, " features"]:
        """om_k in float64: a buffer would round them to whatever dtype the model passes through."""
        share = (torch.arange(self.features, dtype=torch.float64) + 0.5) / self.features
        return self.scale * math.sqrt(2.0) * torch.erfinv(share)

    def encode(self, positions: Positions) -> Float[Tensor, "batch tokens twice_features"]:
        """phi(t)."""
        phase = positions.unsqueeze(-1) * self.frequencies().to(positions)
        return torch.cat([phase.cos(), phase.sin()], -1) / math.sqrt(self.features)

    def forward(self, positions: Positions) -> Points:
        return self.linear(self.encode(positions))


class SinusoidalPositions(AbstractPositionCode):
    """(sin(om_k t), cos(om_k t)) for real t, frequencies om_k spaced geometrically from `fastest` towards `slowest`.

        om_k = fastest (slowest / fastest)^(2k / width) ,   k = 0, ..., width/2 - 1

    The code of A. Vaswani et al., Attention is all you need (2017), has fastest = 1 and slowest = 1e-4 on integer t
    (there sines and cosines alternate). A signal model of `transformer` has times in [0, 1], and replaces these two
    defaults by frequencies for its span and spacing.
    """

    def __init__(self, width: int, fastest: float = 1.0, slowest: float = 1e-4) -> None:
        super().__init__()
        at_least(2, width=width)
        if width % 2:
            reject("width", width, "sines and cosines come in pairs", f"Pass {width - 1} or {width + 1}.")
        if not (0 < slowest <= fastest and math.isfinite(fastest)):
            reject("slowest", slowest, f"fastest = {fastest}: frequencies are ordered", "Pass 0 < slowest <= fastest.")
        self.width, self.fastest, self.slowest = width, fastest, slowest
        self.is_default = (fastest, slowest) == (1.0, 1e-4)
        """Whether the frequencies are those for the index."""

    def frequencies(self) -> Float[Tensor, " half"]:
        """om_k in float64: a buffer would round them to whatever dtype the model passes through."""
        share = torch.arange(self.width // 2, dtype=torch.float64) / (self.width // 2)
        return self.fastest * (self.slowest / self.fastest) ** share

    def forward(self, positions: Positions) -> Points:
        phase: Float[Tensor, "batch tokens half"] = positions.unsqueeze(-1) * self.frequencies().to(positions)
        return torch.cat([phase.sin(), phase.cos()], -1)
