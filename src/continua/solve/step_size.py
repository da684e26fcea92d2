"""How far an adaptive solve may step: error norms, the first step, and each next one by a predictive controller."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from continua.core.checks import is_number
from continua.core.errors import SolveError, reject
from continua.core.shapes import DepthValue, Float, Tensor
from continua.solve.integration import Integration
from continua.solve.runge_kutta import StepResult
from continua.solve.vector_field import AbstractVectorField, State, advance

_SAFETY, _LEAST, _MOST = 0.9, 0.2, 10.0  # those of scipy's solvers
_TREND = 4.0
"""How much of a change of the error constant the controller believes."""
_STRETCH = 1.05
"""A step this much longer than proposed is tried if it lands on a stop: it saves a whole step."""
_SHORTEST = 1e-14
"""Steps shorter than this fraction of the depth are lost in rounding."""

STIFF = "The problem may be stiff, or its solution may diverge."
EASIER = (
    f"{STIFF} Try a larger rtol=, or equal steps=: `integrate` and `model.at` take both; there is no implicit method, "
    "which a stiff problem wants."
)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The error that a step may make in each component: atol + rtol max(|x|, |x'|)."""

    rtol: float
    atol: float

    @classmethod
    def of(cls, rtol: float, atol: float | None) -> "Tolerance":
        """Without `atol`, `rtol` is both."""
        return cls(rtol, rtol if atol is None else atol)

    def __post_init__(self) -> None:
        is_number(rtol=self.rtol, atol=self.atol)
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not (value > 0 and math.isfinite(value)):
                reject(name, value, "a tolerance is positive", f"Pass {name}=1e-4, or a fixed grid: Fixed(steps).")

    def check(self, x: Tensor) -> None:
        """Rejects a tolerance that the dtype cannot resolve: no step, however short, would meet it."""
        finest = 4 * torch.finfo(x.dtype).eps
        if self.rtol < finest:
            cure = f"Pass rtol >= {finest:.0e}, or work in float64: x0.double(), or model.double() and its inputs."
            reject("rtol", self.rtol, f"{x.dtype} resolves no less than {finest:.1e}", cure)

    def scale(self, before: Tensor, after: Tensor) -> Tensor:
        """The tolerated error, component by component."""
        return torch.maximum(before.detach().abs(), after.detach().abs()).mul_(self.rtol).add_(self.atol)

    def squared_errors(self, f: AbstractVectorField, result: StepResult, costs: bool) -> Float[Tensor, " batch"]:
        """For each sequence sum_i w_i mean_a (e_ia / (atol + rtol max(|x_ia|, |x'_ia|)))^2, with sum_i w_i = 1.

        With `costs` the worst of the running costs counts as well. A cost that is no longer finite is an infinite error
        in any case, so that no step leads there.
        """
        before, after, error = result.before, result.state, result.error
        assert error is not None, "the stepper was asked for its error"
        total = mean_square(f, error.x, self.scale(before.x, after.x))
        for c0, c1, e in zip(before.costs, after.costs, error.costs, strict=True):
            finite = torch.isfinite(c1.detach())
            total = torch.where(finite if finite.shape == total.shape else finite.all(), total, torch.inf)
            if costs:
                total = torch.maximum(total, (e / self.scale(c0, c1)).square())
        return total

    def squared_size(self, f: AbstractVectorField, x: Tensor, like: Tensor) -> Float[Tensor, " batch"]:
        """The squared norm of x in units of the tolerance at `like`, for each sequence."""
        return mean_square(f, x, self.scale(like, like))


def mean_square(f: AbstractVectorField, x: Tensor, scale: Tensor) -> Float[Tensor, " batch"]:
    """Mass-weighted over tokens, plain over the embedding and over tensors of other shapes; overwrites `scale`."""
    weights = f.weights
    with torch.no_grad():
        squares = torch.div(x, scale, out=scale).square_()
        if weights is None:
            return squares.flatten(1).mean(-1) if x.ndim > 1 else squares.view(-1)
        # zero mass means absent: an absent token that overflowed must not make 0 * inf of the norm
        return torch.where(weights > 0, weights * squares.mean(-1), 0.0).sum(-1)


def joint_norm(squares: Float[Tensor, " batch"], all_ranks: bool) -> float:
    """The root mean square over the batch, and over every rank's batch if `all_ranks`: one number for all."""
    if not (all_ranks and _has_group()):
        return squares.mean().sqrt().item()
    total = torch.stack([squares.sum(), squares.new_tensor(float(squares.numel()))])
    torch.distributed.all_reduce(total)
    return (total[0] / total[1]).sqrt().item()


def agree(holds: bool, all_ranks: bool, like: Tensor) -> bool:
    """Whether it holds, on every rank if `all_ranks`: all fail or go on together; `like` is on their device."""
    if not (all_ranks and _has_group()):
        return holds
    failed = torch.tensor(0 if holds else 1, device=like.device)
    torch.distributed.all_reduce(failed)
    return failed.item() == 0


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@dataclasses.dataclass
class StepSizeState:
    """Where an adaptive solve stands and how long its next step may be: one for a batch, or one for each sequence.

    An accepted step of error err has the error constant C = err / dz^k, k the order of the error estimate + 1, and the
    controller proposes dz' = safety dz err^{-1/k} (C_before / C)^{0.3/k}, within [0.2, 10] dz and, right after a
    rejection, no longer than dz. Without the last factor it would hold C for constant; with it, it follows a flow that
    grows steeper or smoother (K. Gustafsson, Control-theoretic techniques for stepsize selection in implicit
    Runge-Kutta methods, ACM Trans. Math. Softw. 20, 1994). Errors settle near 0.6 of the tolerance. A rejected step is
    tried again with dz' = safety dz err^{-1/k}.
    """

    z: float
    dz: float
    """How long the next step may be; positive in either direction."""
    stops: list[float]
    """Depths ahead that no step may pass, the nearest first: breaks, then the end."""
    order: int
    """Of the error estimate."""
    constant: float | None = None
    """Error constant err / dz^k of the last accepted step, unless a stop came after it."""
    rejected: float | None = None
    """Error of the last try, if it was rejected."""

    @property
    def at_end(self) -> bool:
        """Whether no depth is left."""
        return not self.stops

    def aim(self) -> float:
        """The dz to try: it lands on a stop within reach; two equal steps rather than a long and a tiny one."""
        remaining = self.stops[0] - self.z
        if self.dz * _STRETCH >= abs(remaining):
            return remaining
        if self.dz < _SHORTEST * max(abs(self.z), abs(self.stops[-1]), abs(remaining)):
            reason, advice = "the step underflowed: however short, its error stays above the tolerance", EASIER
            if self.rejected is not None and not math.isfinite(self.rejected):
                reason = "the velocity is not finite however short the step"
                advice = "The solution diverges at this depth, or the velocity is not defined beyond it."
            raise SolveError(reason, self.z, advice)
        return math.copysign(min(self.dz, 0.5 * abs(remaining)), remaining)

    def accept(self, dz: float, error: float) -> bool:
        """Moves on by an aimed step; whether it landed on a stop."""
        landed = dz == self.stops[0] - self.z
        # on a stop z is the stop itself: z + dz may miss it by rounding, and the next step would straddle the jump
        self.z = self.stops.pop(0) if landed else self.z + dz
        k, now = self.order + 1, max(error, 1e-10)
        constant = now / abs(dz) ** k
        trend = 1.0 if self.constant is None else min(_TREND, max(1.0 / _TREND, self.constant / constant))
        factor = _SAFETY * now ** (-1.0 / k) * trend ** (0.3 / k)
        proposed = abs(dz) * min(_MOST if self.rejected is None else 1.0, max(_LEAST, factor))
        # a step cut short by a stop says nothing against the length proposed before
        self.dz = max(self.dz, proposed) if landed else proposed
        self.constant, self.rejected = None if landed else constant, None
        return landed

    def refuse(self, dz: float, error: float) -> None:
        """Stays, and tries a shorter step; a non-finite error gives the shortest."""
        factor = _SAFETY * error ** (-1.0 / (self.order + 1)) if math.isfinite(error) else 0.0
        self.dz, self.rejected = abs(dz) * max(_LEAST, factor), error


def first_lengths(
    integration: Integration,
    state: State,
    norms: Callable[[Tensor], Sequence[float]],
    depth: Callable[[Sequence[float]], DepthValue],
) -> tuple[list[float], State]:
    """How long the first step may be - one length for every number that `norms` gives - and the slope at the start.

    Two evaluations estimate the size of the velocity and how fast it turns, with the probe of E. Hairer, S. P. Norsett,
    G. Wanner, Solving Ordinary Differential Equations I, section II.4. `depth` makes a depth of lengths.
    """
    f, start, end = integration.vector_field, integration.span[0], integration.stops()[0]
    inside, sign = 0.5 * (start + end), math.copysign(1.0, end - start)
    slope = f(start, state, inside)
    sizes, speeds = norms(state.x), norms(slope.x)
    if not all(map(math.isfinite, speeds)):
        raise SolveError("the velocity is not finite", start, "Look for nan, inf or a division by zero there.")
    reach = abs(end - start)
    probes = [min(0.01 * d0 / d1 if min(d0, d1) > 1e-5 else 1e-6, reach) for d0, d1 in zip(sizes, speeds, strict=True)]
    probe = sign * depth(probes)
    with torch.no_grad():
        ahead = State(advance(state.x, probe, (1.0,), (slope.x,)), state.costs)
        turned = norms(f(start + probe, ahead, inside).x - slope.x)
    k = 1 + (integration.stepper.error_order or 0)
    return [_first(h0, d1, d2 / h0, k) for h0, d1, d2 in zip(probes, speeds, turned, strict=True)], slope


def _first(probe: float, speed: float, turn: float, k: int) -> float:
    """The step whose error is expected to be small, and that moves no token farther than it is from the origin.

    A velocity that turns at the rate r = turn / speed has a k-th derivative near speed r^{k-1}, hence an error near
    speed r^{k-1} (h/c)^k. Unlike the customary (0.01 / max(speed, turn))^{1/k} this does not depend on the unit in
    which depth is measured. c = 2.5 is the smallest that flows of attention and feed-forward showed.
    """
    if not math.isfinite(turn):  # the probe went too far
        return 1e-3 * probe
    speed = max(speed, 1e-5)
    if turn <= 1e-15 * speed:
        return 100.0 * probe
    return min(100.0 * probe, 2.5 * speed ** (-1.0 / k) * (turn / speed) ** (1.0 / k - 1.0))
