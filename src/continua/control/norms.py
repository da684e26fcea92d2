"""Norms of velocities and states: quadrature-weighted L2, and Sobolev norms along token time and the embedding axis."""

import dataclasses
import math
from typing import final

import torch

from continua.core.checks import at_least, not_negative, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.spaces import Axis, Cosine, Measure


@final
@dataclasses.dataclass(frozen=True)
class Sobolev:
    """|x|^2 = sum_i w_i |x_i|_{H^s(d)}^2 + sum_{k=1}^{time} int |d^k x/dt^k|^2 dt: H^time along t, H^s along d.

    Along token time the derivatives are divided differences on the positions as they are, D^k x(tau) = k! [t_i, ...,
    t_{i+k}] x with the weight (t_{i+k} - t_i)/k, exact on polynomials of degree k. A sequence of n tokens has no
    differences of order n and above: for it these terms are empty sums, padded or not. Along an embedding axis, the
    model's unless another is given, s = `embedding` may be any number: |u|_{H^s}^2 = sum_k (1 + (pi k)^2)^s c_k^2 in
    the cosine basis, whose functions are the eigenfunctions of -d^2/dd^2; it needs equispaced nodes (the default rule
    of `Axis`). `mean` divides by sum_i w_i and by the channels, so that long and short sequences, wide and narrow
    states weigh alike.
    """

    time: int = 1
    embedding: float = 0.0
    axis: Axis | None = None
    mean: bool = False

    def __post_init__(self) -> None:
        at_least(0, time=self.time)
        not_negative(embedding=self.embedding)
        if self.embedding > 0.0 and self.axis is not None:
            self.axis.synthesis(Cosine(self.axis.nodes))  # refuses nodes that do not resolve it

    def along(self, axis: Axis | None) -> "Sobolev":
        """The same norm for states that are functions along `axis`; one that was given its own axis keeps it."""
        return self if self.axis is not None else dataclasses.replace(self, axis=axis)

    def check(self, measure: Measure, points: Points) -> None:
        """Rejects a measure on which the norm is not defined; called once for each solve."""
        check_axis(self.axis, points)
        if self.embedding > 0.0 and self.axis is None:
            cure = "Use a model whose states are functions (SynthesisEmbedding), or Sobolev(time=...) alone."
            reject("axis", None, "states without an axis have no derivative along it", cure)
        if self.time == 0:
            return
        if not measure.suffix:
            cure = "Put absent tokens at the end, and pass no query times, or use time=0."
            reject("cloud", "tokens without mass between others", "differences would reach across them", cure)
        t = measure.times(points)
        tied = t.diff(dim=-1) <= 0
        if measure.heavy is not None:
            tied = tied & measure.heavy[:, 1:]
        why = "the next token has the same time, and no derivative exists across a jump"
        refuse_where(tied, why, "Give tokens times that differ, or use L2().", times=t)

    def squared_norm(self, x: Points, measure: Measure) -> Float[Tensor, " batch"]:
        """|x|^2 of each sequence, differentiable in x and in the masses."""
        return self._total(_squares(x, self.axis), x, measure)

    def squared_distance(self, x: Points, y: Points, measure: Measure) -> Float[Tensor, " batch"]:
        """|x - y|^2 of each sequence; where the norm is plain L2, no tensor but x and y is kept for its gradient."""
        plain = self.time == 0 and self.embedding == 0.0 and (self.axis is None or self.axis.uniform)
        if not plain:
            return self.squared_norm(x - y, measure)
        each = torch.nn.functional.mse_loss(x, y, reduction="none").sum(-1)
        return self._total(each if self.axis is None else each / self.axis.nodes, x, measure)

    def _total(self, each: Float[Tensor, "batch tokens"], x: Points, measure: Measure) -> Float[Tensor, " batch"]:
        """|x|^2, where `each` is that of every token in L2."""
        if self.embedding > 0.0 and (axis := self.axis) is not None:
            functions = x.unflatten(-1, (axis.nodes, -1))
            _, analysis = axis.transforms(Cosine(axis.nodes), functions)
            c = torch.einsum("ka,btac->btkc", analysis, functions)
            k = torch.arange(axis.nodes, dtype=x.dtype, device=x.device)
            each = c.square().sum(-1) @ (1.0 + (math.pi * k).square()) ** self.embedding
        total = each.sum(-1) if measure.mass is None else (_masses(measure, x) * each).sum(-1)
        if self.time > 0:
            total = total + self._along_time(x, measure)
        if not self.mean:
            return total
        channels = x.shape[-1] if self.axis is None else self.axis.channels
        return total / (channels * (x.shape[1] if measure.mass is None else _masses(measure, x).sum(-1)))

    def _along_time(self, x: Points, measure: Measure) -> Float[Tensor, " batch"]:
        t, D, total = measure.times(x), x, x.new_zeros(x.shape[0])
        heavy = torch.ones_like(t, dtype=torch.bool) if measure.heavy is None else measure.heavy
        for k in range(1, min(self.time, x.shape[1] - 1) + 1):
            there = heavy[:, k:]  # the last of the tokens t_i, ..., t_{i+k}; absent ones come after all others
            gap = torch.where(there, (t[:, k:] - t[:, :-k]) / k, 1.0)  # absent tokens may share a time: 0/0
            D = torch.where(there.unsqueeze(-1), D.diff(dim=1) / gap.unsqueeze(-1), 0.0)
            total = total + torch.where(there, gap * _squares(D, self.axis), 0.0).sum(-1)
        return total


def L2(axis: Axis | None = None, mean: bool = False) -> Sobolev:
    """|x|^2 = sum_i w_i sum_a v_a x_ia^2 with the masses w_i and the weights v_a of the embedding axis.

    On the counting measure (w = 1) without an axis (v = 1) the plain sum of squares.
    """
    return Sobolev(time=0, axis=axis, mean=mean)


def state_weights(measure: Measure, axis: Axis | None, like: Points) -> Float[Tensor, "batch tokens #width"]:
    """w_i v_a, the weight of each number of a state in L2; one column where states are plain vectors."""
    w, v = _masses(measure, like).unsqueeze(-1), _node_weights(axis, like)
    return w if v is None else w * v


def check_axis(axis: Axis | None, points: Points) -> None:
    """Rejects an axis of another width."""
    if axis is not None and axis.width != points.shape[-1]:
        cure = "Pass the axis that the model's kernels are built on."
        reject("axis", axis, f"its width is {axis.width}, and tokens have {points.shape[-1]}", cure)


def safe_sqrt(squares: Tensor) -> Tensor:
    """The square root with the subgradient zero at zero."""
    # Both `where`s are needed: the inner one keeps sqrt'(0) = infinity out of the backward pass, where inf * 0 is nan.
    moving = squares > 0
    return torch.where(moving, torch.where(moving, squares, 1.0).sqrt(), 0.0)


def relative(gap: Tensor, whole: Tensor) -> float:
    """|gap| / |whole|, and |gap| itself where the whole is zero."""
    return float(gap.norm()) / (float(whole.norm()) or 1.0)


def _masses(measure: Measure, like: Points) -> Float[Tensor, "batch tokens"]:
    """w_i, by way of their logarithms: these are what a checkpointed solve differentiates."""
    if measure.log_mass is not None:
        return measure.log_mass.exp()
    return torch.ones_like(like[..., 0]) if measure.mass is None else measure.mass.detach()


def _squares(x: Points, axis: Axis | None) -> Float[Tensor, "batch tokens"]:
    """sum_a v_a x_ia^2."""
    if axis is None or axis.uniform:  # a product with itself: the gradient of a square makes a power and a product more
        total = (x * x).sum(-1)
        return total if axis is None else total / axis.nodes
    return x.square() @ axis.weights(x).repeat_interleave(axis.channels)


def _node_weights(axis: Axis | None, like: Tensor) -> Float[Tensor, " width"] | None:
    """v_a for each number of a state: the weight of its node; `None` where states are plain vectors."""
    return None if axis is None else axis.weights(like).repeat_interleave(axis.channels)
