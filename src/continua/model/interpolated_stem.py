"""A local stem on the interpolated signal: convolution over token time that thinned-out samples hardly disturb."""

from typing import Any

import torch
from torch import nn
from torch.autograd.forward_ad import unpack_dual

from continua.core.errors import reject
from continua.core.shapes import Float, Int, Tensor
from continua.model.stem import AbstractStem, times_of
from continua.spaces import BSpline, Cloud

_DEGREE = 3
_NODES = 2
"""Nodes of the midpoint rule in each interval between two knots."""


class InterpolatedStem(AbstractStem):
    """y(t_i) = int kappa(u) x^(t_i - R u) du over |u| < 1 (0 < u < 1 if `causal`), kappa(u) = sum_m C_m N_m(u).

    x^ is the linear interpolant of the tokens that have mass, constant beyond the first and the last; N_m are the cubic
    B-splines that vanish with two derivatives at both ends, as in `LocalStem`. There the product kappa x is integrated
    by the masses, which asks for several samples within each N_m; here kappa meets the interpolant (product
    integration), so the kernel may be finer than the sampling. Inserting interpolated samples changes nothing. The
    integral over u is a midpoint rule on fixed lags. Second order in the spacing of the samples.

    Tokens of `width` numbers become `outputs` numbers; at the start a constant signal keeps its variance. With `gaps`
    the kernel meets one more signal, the distance from s to the nearest sample over R: the interpolant does not say
    where it was observed and where it is a guess. It falls to zero as samples are added.
    """

    def __init__(
        self,
        width: int,
        radius: float,
        modes: int = 9,
        causal: bool = False,
        outputs: int | None = None,
        gaps: bool = False,
    ) -> None:
        super().__init__()
        if not radius > 0:
            reject("radius", radius, "the kernel needs a support", "Pass radius > 0, in units of token time.")
        if modes < 1:
            reject("modes", modes, "the kernel needs a mode", "Pass modes >= 1.")
        if outputs is not None and outputs < 1:
            reject("outputs", outputs, "a token needs at least one number", "Pass outputs >= 1, or None.")
        self.width, self.radius, self.modes, self.causal = width, float(radius), modes, causal
        self.outputs = width if outputs is None else outputs
        integral = (1.0 if causal else 2.0) / (modes + _DEGREE)  # of every N_m
        spread = 1.0 / (integral * (modes * width) ** 0.5)
        self.gaps = gaps
        self.coefficients = nn.Parameter(torch.randn(modes, width + gaps, self.outputs) * spread)
        self._unit, self._weights = _rule(modes, causal)

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        unit, weights = self._unit.to(cloud.points), self._weights.to(cloud.points)
        lags = self.radius * (unit if self.causal else 2.0 * unit - 1.0)
        times = times_of(cloud)
        asked = (times.unsqueeze(-1) - lags).flatten(1)  # (batch tokens*lags)
        seen, distance = interpolant(cloud, times, asked)
        if self.gaps:
            seen = torch.cat([seen, (distance / self.radius).unsqueeze(-1)], -1)
        seen = seen.unflatten(1, (-1, len(lags)))  # (batch tokens lags width)
        kernel = torch.einsum("km,mcd->kcd", weights, self.coefficients)
        return seen.flatten(2) @ kernel.flatten(0, 1)

    def arguments(self) -> dict[str, Any]:
        known = {"width": self.width, "radius": self.radius, "modes": self.modes, "causal": self.causal}
        return {**known, "outputs": self.outputs, "gaps": self.gaps}


def _rule(modes: int, causal: bool) -> tuple[Float[Tensor, " lags"], Float[Tensor, "lags modes"]]:
    """Nodes in [0, 1], and N_m at each times its share of the integral over u, in double precision."""
    count = _NODES * (modes + _DEGREE)
    with torch.inference_mode(False), torch.device("cpu"):
        unit = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        values = BSpline(modes + 2 * _DEGREE, _DEGREE).evaluate(unit)[:, _DEGREE:-_DEGREE]
        return unit, values * ((1.0 if causal else 2.0) / count)


def interpolant(
    cloud: Cloud, times: Float[Tensor, "batch tokens"], asked: Float[Tensor, "batch asked"]
) -> tuple[Float[Tensor, "batch asked width"], Float[Tensor, "batch asked"]]:
    """The linear interpolant of the tokens that have mass, at asked times, and how far the nearest of them is.

    Constant beyond its ends. Equivalent to `numpy.interp` for each sequence and number.
    """
    heard, points = _heard(cloud), cloud.points
    if _one_clock(heard, times, asked):
        left, right, share, distance = _shares(heard[:1], times[:1], asked[:1])
        rows = points.transpose(0, 1).flatten(1)  # (tokens batch*width)
        seen = rows[left[0]].lerp(rows[right[0]], share.mT)
        return seen.unflatten(1, points.shape[::2]).transpose(0, 1), distance.expand_as(asked)
    left, right, share, distance = _shares(heard, times, asked)
    lower, upper = points.take_along_dim(left.unsqueeze(-1), 1), points.take_along_dim(right.unsqueeze(-1), 1)
    return lower.lerp(upper, share.unsqueeze(-1)), distance


def _one_clock(heard: Tensor, times: Float[Tensor, "batch tokens"], asked: Float[Tensor, "batch asked"]) -> bool:
    """Whether all sequences are sampled, and asked, at the same times: one interpolation then serves them all."""
    if torch.compiler.is_compiling() or any(
        t.requires_grad or unpack_dual(t).tangent is not None for t in (times, asked)
    ):
        return False  # times that move may move apart
    return all(bool((rows == rows[:1]).all()) for rows in (heard, times, asked))


def _shares(
    heard: Tensor, times: Float[Tensor, "batch tokens"], asked: Float[Tensor, "batch asked"]
) -> tuple[
    Int[Tensor, "batch asked"], Int[Tensor, "batch asked"], Float[Tensor, "batch asked"], Float[Tensor, "batch asked"]
]:
    """The samples on both sides of each asked time, the share of the right one, and how far the nearer one is."""
    left, right = _bracket(heard, times.detach(), asked.detach())
    t0, t1 = times.gather(1, left), times.gather(1, right)
    gap = t1 - t0
    inside = gap > 0
    share = torch.where(inside, (asked - t0) / torch.where(inside, gap, 1.0), 0.0).clamp(0.0, 1.0)
    return left, right, share, torch.minimum((asked - t0).abs(), (asked - t1).abs())


def _heard(cloud: Cloud) -> Tensor:
    """Which tokens are samples: those with mass. Padding and queries have none."""
    if cloud.mass is not None:
        return cloud.mass.detach() > 0
    present = cloud.present
    return (
        torch.ones(cloud.points.shape[:2], dtype=torch.bool, device=cloud.points.device) if present is None else present
    )


def _bracket(
    heard: Tensor, times: Float[Tensor, "batch tokens"], asked: Float[Tensor, "batch asked"]
) -> tuple[Int[Tensor, "batch asked"], Int[Tensor, "batch asked"]]:
    """The samples on both sides of each asked time: the nearest one twice beyond the ends."""
    tokens = times.shape[1]
    index = torch.arange(tokens, device=times.device).expand_as(times)
    before = torch.where(heard, index, -1).cummax(1).values  # the last sample up to here
    after = torch.where(heard, index, tokens).flip(1).cummin(1).values.flip(1)  # the next one from here on
    clock = torch.where(heard, times, -torch.inf).cummax(1).values.contiguous()
    place = torch.searchsorted(clock, asked.contiguous(), right=True) - 1  # the last token whose clock is not later
    left = torch.where(place < 0, -1, before.gather(1, place.clamp_min(0)))
    following = (torch.where(left < 0, 0, left + 1)).clamp_max(tokens - 1)
    right = torch.where(left + 1 >= tokens, tokens, after.gather(1, following))
    first, last = after[:, :1], before[:, -1:]
    return torch.where(left < 0, first, left).clamp(0, tokens - 1), torch.where(right >= tokens, last, right).clamp_min(
        0
    )
