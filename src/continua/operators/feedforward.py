"""The feed-forward functional, and the damping that keeps a flow from growing."""

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
import torch.nn.functional as F

from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.kernels import AbstractFunctionKernel, AbstractKernel, Dense
from continua.operators.operator import AbstractPointwise, NoTheta


class Activation(enum.Enum):
    """Pointwise nonlinearities, as in torch."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"
    TANH = "tanh"
    IDENTITY = "identity"

    def __call__(self, x: Tensor) -> Tensor:
        return _ACTIVATIONS[self](x)


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
    Activation.TANH: torch.tanh,
    Activation.IDENTITY: lambda x: x,
}


class FeedForwardTheta(NamedTuple):
    """Kernels and biases of the feed-forward at one depth."""

    w1: Float[Tensor, "*batched hidden channels"]
    w2: Float[Tensor, "*batched channels hidden"]
    b1: Float[Tensor, "*batched_modes hidden"] | None = None
    b2: Float[Tensor, "*batched_modes channels"] | None = None


@final
@dataclasses.dataclass(frozen=True)
class FeedForward(AbstractPointwise):
    """F(x) = phi2( W2 phi1( W1 x + b1 ) + b2 ), phi1 = GELU and phi2 = identity by default.

    A GELU outside would bound every component of the velocity below by -0.17, hence the identity
    (docs/mathematics.md, section 2). Reference implementation: the feed-forward of `torch.nn.TransformerEncoderLayer`.
    With a `kernel` along an embedding axis, `hidden` counts channels and the activations act at its nodes.
    """

    hidden: int
    phi1: Activation = Activation.GELU
    phi2: Activation = Activation.IDENTITY
    biased: bool = True
    kernel: AbstractKernel = Dense()

    def __post_init__(self) -> None:
        at_least(1, hidden=self.hidden)

    def spec(self, width: int) -> FeedForwardTheta:
        kernel, channels = self.kernel, self.kernel.channels(width)
        w1 = kernel.weight(kernel.shape(channels, self.hidden), kernel.fan_in(channels))
        w2 = kernel.weight(kernel.shape(self.hidden, channels), kernel.fan_in(self.hidden))
        if not self.biased:
            return FeedForwardTheta(w1, w2)
        return FeedForwardTheta(w1, w2, kernel.bias(self.hidden), kernel.bias(channels))

    def lay_out(self, theta: FeedForwardTheta) -> FeedForwardTheta:
        """Theta with every kernel along the axis as one matrix (`AbstractFunctionKernel.lay_out`); modes may lead."""
        kernel = self.kernel
        assert isinstance(kernel, AbstractFunctionKernel)
        b1, b2 = (None if b is None else kernel.spread(b) for b in (theta.b1, theta.b2))
        return FeedForwardTheta(kernel.lay_out(theta.w1), kernel.lay_out(theta.w2), b1, b2)

    def act(self, theta: FeedForwardTheta, points: Points) -> Points:
        hidden = _ACTIVATIONS[self.phi1](self.kernel.apply(theta.w1, theta.b1, points))
        return _ACTIVATIONS[self.phi2](self.kernel.apply(theta.w2, theta.b2, hidden))


@final
@dataclasses.dataclass(frozen=True)
class Damping(AbstractPointwise):
    """f(x) = -gamma x with gamma >= 0: pulls every token towards the origin (docs/mathematics.md, section 3)."""

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            cure = "Pass a finite gamma >= 0; a negative one makes states grow exponentially in depth."
            reject("gamma", self.gamma, "damping is finite and not negative", cure)

    def spec(self, width: int) -> NoTheta:
        return NoTheta()

    def act(self, theta: NoTheta, points: Points) -> Points:
        return -self.gamma * points
