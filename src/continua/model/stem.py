"""The continuous local stem: convolution over token time with a kernel that is a smooth function of t - s."""

from typing import NamedTuple, TypeAlias, final

import torch
from torch import nn
from torch.autograd.forward_ad import unpack_dual

from continua.core.checks import at_least, is_traced, positive
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Positions, Tensor
from continua.model.embedding import AbstractEmbedding, AbstractEmbeddingWrapper
from continua.spaces import BSpline, Cloud
from continua.spaces.cloud import take_tokens

_DEGREE = 3
_FARTHEST = 4.0
"""Radii that a sensor's nearest sample is away at most; more says no more."""
_NODES = 2
"""Nodes of the midpoint rule in each interval between two knots."""

Places: TypeAlias = Float[Tensor, "batch places"]
Samples: TypeAlias = Int[Tensor, "batch places"]
"""Times to read the signal at, and the samples that are read there."""


@final
class InterpolatedStem(nn.Module):
    """y(t_i) = int kappa(u) x^(t_i - R u) du, x^ the linear interpolant of the tokens that have mass.

    The kernel is kappa(u) = sum_m C_m N_m(u) for |u| < 1 (0 < u < 1 if `causal`), u = (t - s)/R: N_m are the cubic
    B-splines that vanish with two derivatives at both ends, C_m matrices; R = `radius` is a token time. Tokens of
    `width` numbers become `outputs` numbers, by default as many. At the start a signal that is constant over the radius
    R keeps its variance.

    x^ is constant beyond the first and the last of the tokens and, if `causal`, beyond the last one up to t_i. A rule
    for kappa x that used the masses would ask for several samples within each N_m; here kappa meets the interpolant
    (product integration), so the kernel may be finer than the sampling. Inserting interpolated samples changes nothing.
    The integral over u is a midpoint rule on fixed lags. Second order in the spacing of the samples.

    With `gaps` the kernel meets one more signal, the distance from s to the nearest sample over R: the interpolant does
    not say where it was observed and where it is a guess. It falls to zero as samples are added.

    With `channels` tokens are cells of so many sensors (`CellEmbedding`), each sensor has an interpolant of its own and
    a distance of its own, and the kernel meets these: sensors need not report at the same times. A sensor without any
    sample is 0, at the largest distance.
    """

    def __init__(
        self,
        width: int,
        radius: float,
        modes: int = 9,
        causal: bool = False,
        outputs: int | None = None,
        gaps: bool = False,
        channels: int = 0,
    ) -> None:
        super().__init__()
        at_least(1, width=width, modes=modes, outputs=outputs)
        at_least(0, channels=channels)
        positive(radius=radius)
        self.width, self.radius, self.modes, self.causal, self.gaps = width, float(radius), modes, causal, gaps
        self.outputs, self.channels = width if outputs is None else outputs, channels
        integral = (1.0 if causal else 2.0) / (modes + _DEGREE)  # of every N_m
        signals, distances = (channels, channels) if channels else (width, 1)
        spread = 1.0 / (integral * (modes * signals) ** 0.5)
        read = signals + distances * int(gaps)
        self.coefficients = nn.Parameter(torch.randn(modes, read, self.outputs) * spread)
        self._unit, self._weights = _lag_rule(modes, causal)

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        unit, weights = self._unit.to(cloud.points), self._weights.to(cloud.points)
        lags = self.radius * (unit if self.causal else 2.0 * unit - 1.0)
        times = cloud.measure.times(cloud.points)
        times = times if cloud.present is None else times.masked_fill(~cloud.present, 0.0)
        where = (times.unsqueeze(-1) - lags).flatten(1)  # (batch tokens*lags)
        latest = times.repeat_interleave(len(lags), 1) if self.causal else None
        if self.channels:
            seen, distance = interpolate_channels(cloud, times, where, latest, self.channels)
        else:
            seen, distance = interpolate(cloud, times, where, latest)
            distance = distance.unsqueeze(-1)
        if self.gaps:
            far = distance / self.radius
            seen = torch.cat([seen, far.clamp_max(_FARTHEST) if self.channels else far], -1)
        seen = seen.unflatten(1, (-1, len(lags)))  # (batch tokens lags width)
        kernel = torch.einsum("km,mcd->kcd", weights, self.coefficients)
        return seen.flatten(2) @ kernel.flatten(0, 1)


@final
class StemEmbedding(AbstractEmbeddingWrapper):
    """X(0) = u + stem(u), u the inner embedding: tokens that know their neighbourhood.

    Where the stem has other outputs than the inner embedding is wide, X(0) = S u + stem(u) with a matrix S. A stem on a
    narrow embedding, with as many channels as the signal has features or a few more, costs little.
    """

    def __init__(self, inner: AbstractEmbedding, stem: InterpolatedStem) -> None:
        super().__init__()
        if inner.width != stem.width:
            reject("stem", stem.width, f"the embedding has width {inner.width}", f"Pass width={inner.width}.")
        self.inner, self.stem, self.width = inner, stem, stem.outputs
        wider = stem.outputs != stem.width
        self.skip = nn.Linear(stem.width, stem.outputs, bias=False) if wider else None

    def wrap(self, cloud: Cloud) -> Cloud:
        points = cloud.points if self.skip is None else self.skip(cloud.points)
        return cloud.at(points + self.stem(cloud))


def _lag_rule(modes: int, causal: bool) -> tuple[Float[Tensor, " lags"], Float[Tensor, "lags modes"]]:
    """Nodes in [0, 1], and N_m at each times its part of the integral over u, in double precision."""
    count = _NODES * (modes + _DEGREE)
    with torch.inference_mode(False), torch.device("cpu"):
        unit = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        values = BSpline(modes + 2 * _DEGREE, _DEGREE).evaluate(unit)[:, _DEGREE:-_DEGREE]
        return unit, values * ((1.0 if causal else 2.0) / count)


def interpolate(
    cloud: Cloud, times: Positions, where: Places, latest: Places | None = None
) -> tuple[Float[Tensor, "batch places width"], Places]:
    """The linear interpolant of the tokens that have mass, at times `where`, and how far the nearest of them is.

    Constant beyond its ends. Equivalent to `numpy.interp` for each sequence and number. With `latest` only samples up
    to that time count, for each place its own: what a causal reader at time `latest` may know.
    """
    return _interpolate(cloud.points, _samples(cloud, times), times, where, latest)


def interpolate_channels(
    cloud: Cloud, times: Positions, where: Places, latest: Places | None, channels: int
) -> tuple[Float[Tensor, "batch places channels"], Float[Tensor, "batch places channels"]]:
    """The interpolant of each channel by itself, and the distance to its nearest sample, of cells (v e_c, e_c, ...)."""
    everything, found = _samples(cloud, times), []
    for channel in range(channels):
        own = everything & (cloud.points[..., channels + channel] > 0.5)
        seen, distance = _interpolate(cloud.points[..., channel, None], own, times, where, latest)
        there = own.any(1, keepdim=True)
        found.append((seen.squeeze(-1).masked_fill(~there, 0.0), distance.masked_fill(~there, torch.inf)))
    values, distances = zip(*found, strict=True)
    return torch.stack(values, -1), torch.stack(distances, -1)


def _samples(cloud: Cloud, times: Positions) -> Bool[Tensor, "batch tokens"]:
    """Which tokens have mass."""
    samples = cloud.present if cloud.mass is None else cloud.mass.detach() > 0
    return torch.ones_like(times, dtype=torch.bool) if samples is None else samples


def _interpolate(
    points: Tensor, samples: Tensor, times: Positions, where: Places, latest: Places | None
) -> tuple[Tensor, Places]:
    if _share_one_clock(samples, times, where):
        last = None if latest is None else latest[:1]
        at = _bracket(samples[:1], times[:1], where[:1], last)
        rows = points.transpose(0, 1).flatten(1)  # (tokens batch*width)
        seen = rows[at.left[0]].lerp(rows[at.right[0]], at.share.mT).unflatten(1, points.shape[::2]).transpose(0, 1)
    else:
        at = _bracket(samples, times, where, latest)
        lower, upper = (take_tokens(points, side) for side in (at.left, at.right))
        seen = lower.lerp(upper, at.share.unsqueeze(-1))
    if at.known is not None:  # before the first sample a causal reader knows nothing
        seen = seen.masked_fill(~at.known.unsqueeze(-1), 0.0)
    return seen, at.distance.expand_as(where)


def _share_one_clock(samples: Tensor, times: Positions, where: Tensor) -> bool:
    """Whether all sequences are sampled, and read, at the same times: one interpolation then serves them all."""
    if is_traced() or any(t.requires_grad or unpack_dual(t).tangent is not None for t in (times, where)):
        return False  # times that move may move apart
    return False not in [bool((rows == rows[:1]).all()) for rows in (samples, times, where)]


class _Bracket(NamedTuple):
    """The samples on both sides of each time, the fraction of the right one, and how far the nearer one is."""

    left: Samples
    right: Samples
    share: Places
    distance: Places
    known: Bool[Tensor, "batch places"] | None
    """Whether the left one may be known, where that is asked."""


def _bracket(samples: Tensor, times: Positions, where: Places, latest: Places | None) -> _Bracket:
    left, right = _neighbour_samples(samples, times.detach(), where.detach())
    known = None
    if latest is not None:  # a sample that is still to come is not known: the last one is held
        now, clock = latest.detach(), times.detach()
        right = torch.where(clock.gather(1, right) > now, left, right)
        known = clock.gather(1, left) <= now
    t0, t1 = times.gather(1, left), times.gather(1, right)
    gap = t1 - t0
    inside = gap > 0
    share = torch.where(inside, (where - t0) / torch.where(inside, gap, 1.0), 0.0).clamp(0.0, 1.0)
    return _Bracket(left, right, share, torch.minimum((where - t0).abs(), (where - t1).abs()), known)


def _neighbour_samples(samples: Tensor, times: Positions, where: Places) -> tuple[Samples, Samples]:
    """The samples on both sides of each time: the nearest one twice beyond the ends."""
    tokens = times.shape[1]
    index = torch.arange(tokens, device=times.device).expand_as(times)
    before = torch.where(samples, index, -1).cummax(1).values  # the last sample up to here
    after = torch.where(samples, index, tokens).flip(1).cummin(1).values.flip(1)  # the next one from here on
    clock = torch.where(samples, times, -torch.inf).cummax(1).values.contiguous()
    place = torch.searchsorted(clock, where.contiguous(), right=True) - 1  # the last token whose clock is not later
    left = torch.where(place < 0, -1, before.gather(1, place.clamp_min(0)))
    following = (torch.where(left < 0, 0, left + 1)).clamp_max(tokens - 1)
    right = torch.where(left + 1 >= tokens, tokens, after.gather(1, following))
    first, last = after[:, :1], before[:, -1:]
    nearest = torch.where(left < 0, first, left).clamp(0, tokens - 1)
    return nearest, torch.where(right >= tokens, last, right).clamp_min(0)
