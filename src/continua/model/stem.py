"""A continuous local stem: convolution over token time with a kernel that is a smooth function of t - s."""

import abc
from typing import Any

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Tensor
from continua.fields import parameter_spaces
from continua.model.embedding import AbstractEmbedding
from continua.model.lifted import AbstractLifted
from continua.spaces import AbstractParameterSpace, BSpline, Cloud

_DEGREE = 3


class AbstractStem(nn.Module, abc.ABC):
    """From a cloud to numbers at every token that depend on its neighbourhood in token time."""

    width: int
    """Size of the tokens that it reads."""
    outputs: int
    """Numbers that it gives for each."""

    @abc.abstractmethod
    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        """The numbers at every token."""

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments that build this stem anew (its values apart)."""


class LocalStem(AbstractStem):
    """y(t_i) = sum_j w_j kappa((t_i - t_j)/R)/R x_j with kappa(u) = sum_m C_m N_m(u), zero for |u| >= 1.

    N_m are the cubic B-splines of [-1, 1] ([0, 1] if `causal`) that vanish with two derivatives at both ends, C_m
    matrices. The integral of a continuous kernel against the samples' quadrature masses: it is the same operator on any
    sampling, irregular ones included, and refining the samples converges at the rule's order. The kernel vanishes at
    lag 0 if `causal`, so that a token's own mass, which may know the next time, is not read.

    Tokens of `width` numbers become `outputs` numbers, by default as many. At the start a signal that is constant over
    the radius keeps its variance.

    Memory is O(tokens * neighbours * width), the most neighbours that a token has within the radius counted for all.
    """

    def __init__(
        self, width: int, radius: float, modes: int = 5, causal: bool = False, outputs: int | None = None
    ) -> None:
        super().__init__()
        if outputs is not None and outputs < 1:
            reject("outputs", outputs, "a token needs at least one number", "Pass outputs >= 1, or None.")
        if not radius > 0:
            reject("radius", radius, "the kernel needs a support", "Pass radius > 0, in units of token time.")
        if modes < 1:
            reject("modes", modes, "the kernel needs a mode", "Pass modes >= 1.")
        self.width, self.radius, self.modes, self.causal = width, float(radius), modes, causal
        self.basis = BSpline(modes + 2 * _DEGREE, _DEGREE)
        self.outputs = width if outputs is None else outputs
        integral = (1.0 if causal else 2.0) / (modes + _DEGREE)  # of every N_m
        spread = 1.0 / (integral * (modes * width) ** 0.5)
        self.coefficients = nn.Parameter(torch.randn(modes, width, self.outputs) * spread)

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        times = times_of(cloud)
        near = _neighbours(times.detach(), cloud.present, self.radius)  # (tokens near)
        lag = times.unsqueeze(-1) - times[:, near]
        mass = torch.ones_like(times) if cloud.mass is None else cloud.mass
        weights = self._kernel(lag) * (mass[:, near] * _first(near)).unsqueeze(-1)
        mixed = torch.einsum("btkm,btkc->btmc", weights, cloud.points[:, near])
        return torch.einsum("btmc,mcd->btd", mixed, self.coefficients)

    def _kernel(self, lag: Float[Tensor, "batch tokens near"]) -> Float[Tensor, "batch tokens near modes"]:
        """N_m(lag/R)/R, zero outside the support."""
        unit = lag / self.radius if self.causal else 0.5 * (lag / self.radius + 1.0)
        inside = (unit >= 0.0) & (unit <= 1.0)
        values = self.basis.evaluate(unit.clamp(0.0, 1.0).flatten())[:, _DEGREE:-_DEGREE]
        return torch.where(inside.unsqueeze(-1), values.view(*lag.shape, self.modes), 0.0) / self.radius

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    def arguments(self) -> dict[str, Any]:
        known = {"width": self.width, "radius": self.radius, "modes": self.modes, "causal": self.causal}
        return {**known, "outputs": self.outputs}


class Stemmed(AbstractLifted):
    """X(0) = u + stem(u), u the inner embedding: tokens that know their neighbourhood.

    Where the stem has other outputs than the inner embedding is wide, X(0) = S u + stem(u) with a matrix S. A stem on a
    narrow embedding, with as many channels as the signal has features or a few more, costs little.
    """

    def __init__(self, inner: AbstractEmbedding, stem: AbstractStem) -> None:
        super().__init__()
        if inner.width != stem.width:
            reject("stem", stem.width, f"the embedding has width {inner.width}", f"Pass width={inner.width}.")
        self.inner, self.stem = inner, stem
        wider = stem.outputs != stem.width
        self.skip = nn.Linear(stem.width, stem.outputs, bias=False) if wider else None

    @property
    def width(self) -> int:
        return self.stem.outputs

    def lift(self, cloud: Cloud) -> Cloud:
        points = cloud.points if self.skip is None else self.skip(cloud.points)
        return cloud.at(points + self.stem(cloud))

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "stem": self.stem}


def times_of(cloud: Cloud) -> Float[Tensor, "batch tokens"]:
    """The times of the tokens, zero for absent ones, whatever stands there; without positions, the index."""
    if cloud.positions is None:
        index = torch.arange(cloud.points.shape[1], dtype=cloud.points.dtype, device=cloud.points.device)
        return index.expand(cloud.points.shape[:2])
    return cloud.positions if cloud.present is None else cloud.positions.masked_fill(~cloud.present, 0.0)


def _neighbours(times: Tensor, present: Tensor | None, radius: float) -> Int[Tensor, "tokens near"]:
    """For every token the indices that may lie within the radius in some sequence; sorted times make them a band."""
    heard = torch.ones_like(times, dtype=torch.bool) if present is None else present
    clock = torch.where(heard, times, -torch.inf).cummax(-1).values  # an absent token has the time of the one before
    index = torch.arange(times.shape[1], device=times.device)
    low = torch.searchsorted(clock, clock - radius)
    high = torch.searchsorted(clock, clock + radius, right=True) - 1
    reach = int(torch.where(heard, torch.maximum(index - low, high - index), 0).max())
    band = index[:, None] + torch.arange(-reach, reach + 1, device=times.device)
    return band.clamp(0, times.shape[1] - 1)


def _first(near: Int[Tensor, "tokens near"]) -> Bool[Tensor, "tokens near"]:
    """Where an index stands for the first time in its row: the clamped ends of the band must not count twice."""
    before = torch.cat([torch.full_like(near[:, :1], -1), near[:, :-1]], 1)
    return near != before
