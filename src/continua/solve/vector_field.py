"""What a solver solves: the state that moves along depth, and the vector field that says how."""

import abc
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from continua.core.shapes import Bool, DepthValue, Float, Tensor


class State(NamedTuple):
    """What moves along depth: a tensor of any shape, and quantities that are integrated beside it.

    `costs` never feed back into the velocity: running costs of the control problem (one number per sequence each), or
    the parameter gradients of a backward solve.
    """

    x: Float[Tensor, "..."]
    costs: tuple[Tensor, ...] = ()


class AbstractVectorField(abc.ABC):
    """The right-hand side of dx/dz = f(z, x): a flow bound to a cloud, or any function (`integrate` wraps it)."""

    breaks: tuple[float, ...] = ()
    """Depths that no step may straddle."""
    parts: Sequence["AbstractVectorField"] = ()
    """The terms of the velocity, for splitting; none where it is one."""
    weights: Float[Tensor, "batch tokens"] | None = None
    """Masses for norms, summing to one in each sequence; `None` where all entries count alike."""
    tensors: tuple[Tensor, ...]
    """Every tensor that asks for a gradient and that velocity or rates depend on, the state apart."""
    stagger: int | None = None
    """So many split steps are leapfrog: the first part is half a step ahead of the others (`LieTrotter`)."""
    evaluations: int = 0
    """How often the whole velocity was evaluated so far."""

    @abc.abstractmethod
    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        """The slope of the state at depth z; at a jump the piece that holds `inside` is read."""

    @abc.abstractmethod
    def expect(self, depths: Sequence[float]) -> None:
        """Called before a solve on a fixed grid with the depths at which the field will be evaluated.

        Weights can then be computed in one batch; most fields have nothing to prepare.
        """

    @abc.abstractmethod
    def rates(self, z: DepthValue, x: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        """Slopes of the costs for a given velocity."""

    @abc.abstractmethod
    def costs_of_step(self, z: DepthValue, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        """What a step adds to the costs where only its two ends are known, and with them its mean velocity."""


def advance(x: Tensor, dz: DepthValue, coefficients: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """x + dz sum_i c_i k_i; dz is one number, or one for each entry of the first axis."""
    terms = [(c, k) for c, k in zip(coefficients, slopes, strict=True) if c != 0.0]
    if not isinstance(dz, Tensor):
        for i, (c, k) in enumerate(terms):
            # in place from the second term on: three times as fast, and addition saves nothing for its gradient
            x = torch.add(x, k, alpha=c * dz) if i == 0 else x.add_(k, alpha=c * dz)
        return x
    total = torch.zeros_like(x)
    for c, k in terms:
        total.add_(k, alpha=c)
    return x + per_sequence(dz, x) * total


def displace(f: AbstractVectorField, z: DepthValue, dz: DepthValue, before: State, x: Tensor) -> State:
    """The state at `x`, where every cost has seen the mean velocity (x - before) / dz of the step."""
    if not before.costs:
        return State(x)
    assert not isinstance(dz, Tensor), "without an error estimate no sequence has steps of its own"
    added = f.costs_of_step(z, dz, before.x, x)
    costs = [cost + more for cost, more in zip(before.costs, added, strict=True)]
    # an alias, which the cost of this step does not read: its cotangent is that after the step
    return State(x.view_as(x), tuple(costs))


def select(moved: Bool[Tensor, " batch"], after: State, before: State) -> State:
    """`after` for the sequences that moved, `before` for those that stood still."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(per_sequence(moved.to(a.device), a), a, b)

    costs = tuple(pick(a, b) for a, b in zip(after.costs, before.costs, strict=True))
    return State(pick(after.x, before.x), costs)


def within(z: DepthValue, inside: DepthValue | None) -> DepthValue:
    """z moved by one rounding unit towards `inside`: who reads a field there reads the piece that holds `inside`."""
    if inside is None:
        return z
    if isinstance(z, Tensor):
        return torch.nextafter(z, torch.as_tensor(inside).to(z))
    assert not isinstance(inside, Tensor)
    return math.nextafter(z, inside)


def per_sequence(values: Tensor, like: Tensor) -> Tensor:
    """One value per sequence, ready to meet a tensor whose first axis is the batch."""
    return values.view(-1, *(1 for _ in like.shape[1:]))
