"""One signal, sampled otherwise: rolled, fewer of its samples, or more on the straight lines between them; features of
the places of samples."""

from typing import NamedTuple

import torch

from continua.core.checks import at_least, fraction, is_a
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Points, Positions, Present, Tensor


class Samples(NamedTuple):
    """Samples of a batch of signals; absent ones come last in their row."""

    values: Points
    positions: Positions
    present: Present

    @classmethod
    def of(cls, values: Tensor, positions: Tensor | None = None, present: Tensor | None = None) -> "Samples":
        """As a model takes them: without positions time is the index, without a mask all are present."""
        batch, tokens = values.shape[:2]
        index = torch.arange(tokens, dtype=values.dtype, device=values.device).expand(batch, tokens)
        seen = torch.ones(batch, tokens, dtype=torch.bool, device=values.device) if present is None else present
        if bool((~seen[:, :-1] & seen[:, 1:]).any()):
            reject("present", seen, "absent tokens stand between present ones", "Move them to the end of their row.")
        return cls(values, index if positions is None else positions.to(values.dtype), seen)

    @property
    def counts(self) -> Int[Tensor, "batch 1"]:
        """Present samples of each signal."""
        return self.present.sum(1, keepdim=True)


class Resampling(NamedTuple):
    """The same signals sampled otherwise, and the samples that both have: where these stand now (`here`) and where
    they stood (`there`); `shared` says which of them are samples, and no padding."""

    samples: Samples
    here: Int[Tensor, "batch shared"]
    there: Int[Tensor, "batch shared"]
    shared: Bool[Tensor, "batch shared"]


def take_every(samples: Samples, stride: int) -> Resampling:
    """Every `stride`-th sample of each signal, and its last, so that the span stays."""
    at_least(1, stride=stride)
    last = samples.counts - 1
    steps = -(-last // stride)
    j = torch.arange(int(steps.max()) + 1, device=last.device).expand(len(last), -1)
    there, present = torch.minimum(j * stride, last), j <= steps
    return Resampling(Samples(*_take(samples.values, samples.positions, there), present), j, there, present)


def refine(samples: Samples, factor: int) -> Resampling:
    """`factor` - 1 samples more between each two, values and times alike on the straight line between them."""
    at_least(1, factor=factor)
    last = samples.counts - 1
    j = torch.arange(factor * int(last.max()) + 1, device=last.device).expand(len(last), -1)
    present, u = j <= factor * last, torch.minimum(j, factor * last)
    part = (u % factor).to(samples.values.dtype) / factor
    # a signal's last sample has no right neighbour: the line from it to itself
    low, high = u // factor, torch.minimum(u // factor + 1, last)
    values, times = _interpolate(samples.values, samples.positions, low, high, part)
    there = torch.arange(samples.values.shape[1], device=last.device).expand_as(samples.present)
    here = torch.minimum(there * factor, factor * last)
    return Resampling(Samples(values, times, present), here, there, samples.present)


def interpolate(
    values: Points, positions: Positions, samples: int
) -> tuple[Float[Tensor, "batch samples width"], Float[Tensor, "batch samples"]]:
    """Linear interpolation at `samples` equispaced times from the first to the last.

    Equivalent to `numpy.interp` for each sequence and feature.
    """
    at_least(2, samples=samples)
    part = torch.linspace(0.0, 1.0, samples, dtype=positions.dtype)
    times = positions[:, :1] + part * (positions[:, -1:] - positions[:, :1])
    high = torch.searchsorted(positions.contiguous(), times).clamp(1, positions.shape[1] - 1)
    t0, t1 = positions.gather(1, high - 1), positions.gather(1, high)
    return _interpolate(values, positions, high - 1, high, (times - t0) / (t1 - t0))


def drop_samples(
    values: Points, positions: Positions, missing: float, generator: torch.Generator
) -> tuple[Float[Tensor, "batch some width"], Float[Tensor, "batch some"]]:
    """Every sequence without a random share of its samples, each with a subset of its own; at least two remain."""
    fraction(missing=missing, all=False)
    batch, tokens, _ = values.shape
    count = max(2, round(tokens * (1.0 - missing)))
    return _take(values, positions, torch.rand(batch, tokens, generator=generator).argsort(1)[:, :count].sort(1).values)


def keep_samples(samples: Samples, missing: float, order: Float[Tensor, "batch tokens"]) -> Samples:
    """Ragged signals without a fraction of their present samples, the last ones by `order`; at least two remain."""
    fraction(missing=missing, all=False)
    counts = samples.counts
    wanted = torch.minimum((counts * (1.0 - missing)).round().long().clamp(min=2), counts)
    rank = order.masked_fill(~samples.present, torch.inf).argsort(1).argsort(1)
    index = (rank >= wanted).long().argsort(dim=1, stable=True)[:, : int(wanted.max())]
    present = torch.arange(index.shape[1], device=index.device) < wanted
    values, times = _take(samples.values, samples.positions, index)
    return Samples(values * present.unsqueeze(-1), times * present, present)


def fill_samples(samples: Samples, spacing: float) -> Samples:
    """Ragged signals on a grid of this spacing, on the straight lines between their samples, from first to last."""
    last = samples.counts - 1
    ends = torch.cat([samples.positions[:, :1], samples.positions.gather(1, last)], 1)
    first, count = (ends[:, :1] / spacing).round(), ((ends[:, 1:] - ends[:, :1]) / spacing).round().long() + 1
    place = torch.arange(int(count.max()), device=count.device).expand(len(count), -1)
    present, times = place < count, (first + place) * spacing
    known = samples.positions.masked_fill(~samples.present, torch.inf).contiguous()
    high = torch.minimum(torch.searchsorted(known, times.to(known)).clamp(min=1), last.clamp(min=1))
    t0, t1 = samples.positions.gather(1, high - 1), samples.positions.gather(1, high)
    part = ((times - t0) / (t1 - t0)).clamp(0.0, 1.0)
    values, _ = _interpolate(samples.values, samples.positions, high - 1, high, part)
    return Samples(values * present.unsqueeze(-1), (times * present).to(values), present)


def roll(values: Points, generator: torch.Generator) -> Points:
    """Each sequence shifted in a circle by a whole number of samples of its own, drawn from all."""
    batch, tokens, _ = values.shape
    start = torch.randint(tokens, (batch, 1), generator=generator)
    index = (start + torch.arange(tokens)) % tokens
    return values.take_along_dim(index.unsqueeze(-1), 1)


def _interpolate(values: Tensor, positions: Tensor, low: Tensor, high: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """Values and times at a `part` of the way from one sample to another."""
    (v0, t0), (v1, t1) = _take(values, positions, low), _take(values, positions, high)
    return torch.lerp(v0, v1, part.unsqueeze(-1)), torch.lerp(t0, t1, part)


def _take(values: Tensor, positions: Tensor, index: Int[Tensor, "batch some"]) -> tuple[Tensor, Tensor]:
    return values.take_along_dim(index.unsqueeze(-1), 1), positions.gather(1, index)


def fourier_features(places: Float[Tensor, "*batch axes"], waves: int) -> Float[Tensor, "*batch features"]:
    """cos(pi k x) and sin(pi k x), k = 1 to `waves`, of each coordinate x in [0, 1] of a place in the plane or space.

    A linear map of them is a smooth function of the place, where one of x and y is a plane: M. Tancik et al., Fourier
    features let networks learn high frequency functions in low dimensional domains (2020).
    """
    is_a(Tensor, "Pass torch.as_tensor(places).", places=places)
    at_least(1, waves=waves)
    low, high = float(places.min()), float(places.max())
    if not (low >= 0.0 and high <= 1.0):
        cure = "Subtract the lower end of each coordinate's range, and divide by its length."
        reject("places", f"{low:.3g} to {high:.3g}", "the waves are those of [0, 1]", cure)
    angles = places.unsqueeze(-1) * torch.pi * torch.arange(1, waves + 1).to(places)
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(-3)
