"""Initial value problems: each carries its exact solution, or is a flow of the library with all it may depend on."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from continua.fields import Constant, Expansion, PiecewiseConstant
from continua.model import Flow, FlowVectorField, Part
from continua.operators import Attention, Cross, Damping, Dropout, FeedForward, LayerNorm, PreNorm, RMSNorm
from continua.solve import AbstractStepper, AbstractVectorField, LieTrotter, Projected, State, Strang
from continua.spaces import Chebyshev, Cloud

Velocity = Callable[..., Tensor]
"""f(z, x, inside), where `inside` is a depth in the piece to be read."""


class Written(AbstractVectorField):
    """A velocity written down by hand: the plainest thing that a solver can solve."""

    def __init__(
        self,
        *velocities: Velocity,
        breaks: Sequence[float] = (),
        tensors: Sequence[Tensor] = (),
        weights: Tensor | None = None,
        rates: Sequence[Callable[..., Tensor]] = (),
    ) -> None:
        self.velocities = velocities
        self.breaks, self.weights, self._tensors, self._rates = tuple(breaks), weights, tuple(tensors), tuple(rates)
        self.parts = [Written(f, breaks=breaks) for f in velocities] if len(velocities) > 1 else []
        self.calls = 0

    tensors = property(lambda self: self._tensors)

    @property
    def evaluations(self) -> int:
        return self.calls + sum(part.calls for part in self.parts) // (len(self.parts) or 1)

    def __call__(self, z, state: State, inside=None) -> State:
        self.calls += 1
        velocity = sum(f(z, state.x, z if inside is None else inside) for f in self.velocities)
        return State(velocity, self.rates(z, state.x, velocity))

    def expect(self, depths: Sequence[float]) -> None:
        """Nothing is prepared."""

    def rates(self, z, points: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        return tuple(rate(z, points, velocity) for rate in self._rates)

    def costs_of_step(self, z, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        return tuple(dz * rate for rate in self.rates(z, before, (after - before) / dz))


@dataclasses.dataclass(frozen=True)
class Drive:
    """r(z) = c (1.5 + cos 5z), where c jumps from one amplitude to the next."""

    amplitudes: tuple[float, ...] = (1.0,)
    jumps: tuple[float, ...] = ()

    def __call__(self, z, inside) -> Tensor:
        edges = torch.tensor(self.jumps, dtype=torch.float64)
        piece = torch.bucketize(torch.as_tensor(inside, dtype=torch.float64), edges, right=True)
        c = torch.tensor(self.amplitudes, dtype=torch.float64)[piece]
        return (c * (1.5 + torch.cos(5 * torch.as_tensor(z, dtype=torch.float64)))).view(-1, 1, 1)

    def area(self, z: float) -> float:
        """The integral of r from 0 to z."""
        marks = [0.0, *(jump for jump in self.jumps if jump < z), z]
        pieces = zip(self.amplitudes, marks, marks[1:], strict=False)
        return sum(c * (1.5 * (b - a) + (math.sin(5 * b) - math.sin(5 * a)) / 5) for c, a, b in pieces)


SMOOTH = Drive()
JUMPING = Drive((1.0, 0.5, 1.5), (0.3, 0.8))
"""Jumps at depths that no even grid of 2^n steps meets."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """x' = f(z, x), x(0) = start, and its solution."""

    bound: Callable[[], Written]
    start: Tensor
    exact: Callable[[float], Tensor]

    @property
    def state(self) -> State:
        return State(self.start)


def decay(rate: float = 1.0) -> Problem:
    """x' = -rate x."""
    start = _start()
    return Problem(lambda: Written(lambda z, x, _: -rate * x), start, lambda z: math.exp(-rate * z) * start)


def rotation() -> Problem:
    """x' = J x: a quarter of a turn in pi/2."""
    return Problem(lambda: Written(lambda z, x, _: _quarter(x)), _start(), lambda z: _turned(_start(), z))


def logistic() -> Problem:
    """x' = x (1 - x)."""
    return Problem(lambda: Written(lambda z, x, _: x * (1 - x)), _start(), lambda z: _grown(_start(), z))


def twisting(drive: Drive = SMOOTH, speed: float = 1.0) -> Problem:
    """x' = speed r(z) |x|^2 J x: nonlinear and driven; |x| stays, so the angle is known."""

    def velocity(z, x: Tensor, inside) -> Tensor:
        return speed * drive(z, inside) * x.square().sum(-1, keepdim=True) * _quarter(x)

    def exact(z: float) -> Tensor:
        return _turned(_start(), speed * drive.area(z) * _start().square().sum(-1, keepdim=True))

    return Problem(lambda: Written(velocity, breaks=drive.jumps), _start(), exact)


def growing(drive: Drive = SMOOTH) -> Problem:
    """x' = r(z) x - r(z) x^2 in two parts, growth and crowding, whose flows do not commute."""

    def growth(z, x: Tensor, inside) -> Tensor:
        return drive(z, inside) * x

    def crowding(z, x: Tensor, inside) -> Tensor:
        return -drive(z, inside) * x**2

    return Problem(
        lambda: Written(growth, crowding, breaks=drive.jumps),
        _start(),
        lambda z: _grown(_start(), drive.area(z)),
    )


def spinning(drive: Drive = SMOOTH, speed: float = 1.0, normal: float = 0.0) -> Problem:
    """x' = speed r(z) |x|^2 K x + normal x with K skew: on the unit sphere it turns, whatever the normal part."""
    start = torch.nn.functional.normalize(_start(width=3), dim=-1)
    spin = torch.tensor([[0.0, 1.0, -0.5], [-1.0, 0.0, 0.8], [0.5, -0.8, 0.0]], dtype=torch.float64)

    def velocity(z, x: Tensor, inside) -> Tensor:
        return speed * drive(z, inside) * x.square().sum(-1, keepdim=True) * (x @ spin) + normal * x

    return Problem(
        lambda: Written(velocity, breaks=drive.jumps),
        start,
        lambda z: start @ torch.linalg.matrix_exp(speed * drive.area(z) * spin),
    )


def suited(stepper: AbstractStepper, drive: Drive = SMOOTH) -> Problem:
    """A problem in which a method shows its order from 32 steps on.

    Fast enough for high orders to stay above rounding, slow enough for low ones to show.
    """
    speed = 2.0 if stepper.order > 3 else 1.0
    if isinstance(stepper, LieTrotter | Strang):
        return growing(drive)
    if isinstance(stepper, Projected):
        return spinning(drive, 1.5 * speed, normal=0.7)
    return twisting(drive, speed)


def blow_up() -> Problem:
    """x' = x^2, infinite at z = 1 / max x = 0.5."""
    start = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).view(1, 3, 1)
    return Problem(lambda: Written(lambda z, x, _: x**2), start, lambda z: start / (1 - z * start))


def _start(width: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.2 + 0.6 * torch.rand(2, 3, width, dtype=torch.float64, generator=generator)


def _quarter(x: Tensor) -> Tensor:
    """J x, a quarter of a turn."""
    return torch.stack([-x[..., 1], x[..., 0]], -1)


def _turned(x: Tensor, angle: float | Tensor) -> Tensor:
    angle = torch.as_tensor(angle, dtype=x.dtype)
    return torch.cos(angle) * x + torch.sin(angle) * _quarter(x)


def _grown(x: Tensor, area: float) -> Tensor:
    """Logistic growth: the odds x / (1 - x) are multiplied by e^area."""
    return torch.special.expit(torch.special.logit(x) + area)


# --- flows of the library

WIDTH = 4
FIELDS = {
    "constant": lambda spec, g: Constant(spec, g),
    "layers": lambda spec, g: PiecewiseConstant(spec, (0.0, 0.3, 1.0), g),
    "smooth": lambda spec, g: Expansion(spec, Chebyshev(3), generator=g),
}


def attention_flow(field: str = "smooth", dropout: float = 0.0, cross: bool = False, damping: float = 0.0) -> Flow:
    """Causal attention and a feed-forward, pre-normed, in float64; the same weights at every call."""
    generator = torch.Generator().manual_seed(3)
    attention = PreNorm(LayerNorm(), Attention(2, 2, causal=True))
    operators = [Dropout(attention, dropout) if dropout else attention, PreNorm(RMSNorm(), FeedForward(8))]
    if cross:
        operators.append(Cross(Attention(1, 3)))
    parts = [Part(f, FIELDS[field](f.spec(WIDTH), generator)) for f in operators]
    if damping:
        parts.append(Part(Damping(damping), Constant(Damping(damping).spec(WIDTH))))
    return Flow(parts).double()


def energy(z, points: Tensor, velocity: Tensor) -> Tensor:
    """The running cost |f|^2."""
    return velocity.square().sum((-1, -2))


@dataclasses.dataclass
class Inputs:
    """What a solve of an attention flow starts from, every tensor asking for a gradient if `asking`."""

    points: Tensor
    mass: Tensor
    encoded: Tensor | None = None

    @classmethod
    def drawn(cls, tokens: int = 3, encoded: bool = False, batch: int = 2, asking: bool = True) -> "Inputs":
        generator = torch.Generator().manual_seed(7)
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
        points = draw(batch, tokens, WIDTH)
        mass = 0.2 + torch.rand(batch, tokens, dtype=torch.float64, generator=generator)
        mass[0, -1] = 0.0  # absent
        inputs = cls(points, mass, draw(batch, 2, WIDTH) if encoded else None)
        for tensor in inputs.tensors if asking else ():
            tensor.requires_grad_(True)
        return inputs

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in (self.points, self.mass, self.encoded) if x is not None]

    def bind(
        self, flow: Flow, seed: int = 5, rates: Sequence = (), second_derivatives: bool = False
    ) -> FlowVectorField:
        cloud = Cloud(self.points, self.mass)
        encoded = None if self.encoded is None else Cloud(self.encoded)
        return flow.bind(cloud, torch.Generator().manual_seed(seed), encoded, rates, second_derivatives)
