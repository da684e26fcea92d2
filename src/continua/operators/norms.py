"""LayerNorm and RMSNorm, before an operator or after its residual step."""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.kernels import per_token, synthesise
from continua.operators.operator import AbstractOperator, Binding, Filled, NoTheta, Spec, Theta
from continua.spaces import AbstractBasis, Axis, Cloud, Cosine, FlatSpace
from continua.spaces.axis import TensorTable, tables


class NormTheta(NamedTuple):
    """Gain and bias of a norm at one depth; both `None` for the norm of gain 1."""

    gain: Float[Tensor, "*batched_modes channels"] | None = None
    bias: Float[Tensor, "*batched_modes channels"] | None = None


class AbstractNorm(abc.ABC):
    """Normalises each token by its own statistics over the embedding axis."""

    @abc.abstractmethod
    def spec(self, width: int) -> Theta:
        """The parameters at one depth, as a tree of `Spec`."""

    @abc.abstractmethod
    def bind(self, binding: Binding) -> "AbstractNorm":
        """This norm on a path that can be differentiated again and again, if the binding says so."""

    @abc.abstractmethod
    def normalise(self, theta: Theta, x: Points) -> Points:
        """The normalised states."""


@dataclasses.dataclass(frozen=True)
class AbstractAffineNorm(AbstractNorm):
    """A norm with a trained gain.

    With an `axis` means weigh its nodes by v_a, and gain and bias are functions along it, in a `basis` that begins with
    1; its default makes them constant. With `written=True` it is written out in elementary operations: torch's own
    takes mean and variance for constants in its third derivative (pytorch issue 175754), which the gradient of a
    penalty on the Jacobian needs.
    """

    centred: ClassVar[bool]
    eps: float
    affine: bool = True
    biased: bool = True
    axis: Axis | None = None
    basis: AbstractBasis = Cosine(1)
    written: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.eps < 1.0:  # torch's own take their width first
            name = type(self).__name__
            reject("eps", self.eps, "it is added to a variance; the width is that of the tokens", f"Pass {name}().")
        _ = self.axis is None or self._synthesis  # made here, so that compiled code finds a tensor

    @final
    def spec(self, width: int) -> NormTheta:
        if not self.affine:
            return NormTheta()
        shape = (width,) if self.axis is None else (self.basis.size, self.axis.channels)
        gain: Any = Spec(shape, Filled(1.0, first=self.axis is not None), space=FlatSpace(1))
        bias: Any = Spec(shape, Filled(0.0), space=FlatSpace(1))
        return NormTheta(gain, bias if self.biased else None)

    @final
    def lay_out(self, theta: NormTheta) -> NormTheta:
        """Gain and bias at every node of the axis, from their coefficients; modes of depth may lead."""
        if self.axis is None or theta.gain is None:
            return theta
        gain, bias = (None if b is None else synthesise(self._synthesis, b) for b in theta)
        return NormTheta(gain, bias)

    @functools.cached_property
    def _synthesis(self) -> TensorTable:
        assert self.axis is not None
        return tables(self.axis, self.basis)[0]

    @final
    def bind(self, binding: Binding) -> "AbstractAffineNorm":
        return dataclasses.replace(self, written=True) if binding.second_derivatives else self

    @abc.abstractmethod
    def fuse(self, x: Points, gain: Tensor | None = None, bias: Tensor | None = None) -> Points:
        """The fused norm of torch, with one gain and bias for all sequences."""

    @final
    def normalise(self, theta: NormTheta, x: Points) -> Points:
        axis = self.axis
        if theta.gain is not None and theta.gain.ndim > 1:  # else it is laid out already
            theta = self.lay_out(theta)
        gain, bias = theta
        if self.written or (axis is not None and not axis.uniform):
            return _along(axis or Axis(1, x.shape[-1]), theta, x, self.eps, self.centred)
        if gain is None or gain.ndim == 1:
            return self.fuse(x, gain, bias)
        x = self.fuse(x) * per_token(gain)
        return x if bias is None else x + per_token(bias)


@final
@dataclasses.dataclass(frozen=True)
class LayerNorm(AbstractAffineNorm):
    """gain * (x - mean x) / sqrt(var x + eps) + bias. Equals `torch.nn.functional.layer_norm`."""

    centred: ClassVar[bool] = True
    eps: float = 1e-5

    def fuse(self, x: Points, gain: Tensor | None = None, bias: Tensor | None = None) -> Points:
        return F.layer_norm(x, x.shape[-1:], gain, bias, self.eps)


@final
@dataclasses.dataclass(frozen=True)
class RMSNorm(AbstractAffineNorm):
    """gain * x / sqrt(mean x^2 + eps). Equals `torch.nn.functional.rms_norm`."""

    centred: ClassVar[bool] = False
    eps: float = 1e-6
    biased: bool = dataclasses.field(default=False, init=False, repr=False)

    def fuse(self, x: Points, gain: Tensor | None = None, bias: Tensor | None = None) -> Points:
        return F.rms_norm(x, x.shape[-1:], gain, self.eps)


def _along(axis: Axis, theta: NormTheta, x: Points, eps: float, centred: bool) -> Points:
    """The norm of functions on an axis, means taken under v_a and evenly over channels; a vector has one node."""
    functions = x.unflatten(-1, (axis.nodes, axis.channels))
    v = axis.weights(x)[:, None] / axis.channels
    if centred:
        functions = functions - (v * functions).sum((-2, -1), keepdim=True)
    normed = (functions * torch.rsqrt((v * functions**2).sum((-2, -1), keepdim=True) + eps)).flatten(2)
    if theta.gain is not None:
        normed = normed * per_token(theta.gain)
    return normed if theta.bias is None else normed + per_token(theta.bias)


@final
@dataclasses.dataclass(frozen=True)
class Unnormalised(AbstractNorm):
    """Leaves the states as they are."""

    def spec(self, width: int) -> NoTheta:
        return NoTheta()

    def bind(self, binding: Binding) -> "Unnormalised":
        return self

    def normalise(self, theta: NoTheta, x: Points) -> Points:
        return x


class NormedTheta(NamedTuple):
    """Parameters of a norm and of the operator that it serves."""

    norm: Theta
    inner: Theta


@dataclasses.dataclass(frozen=True)
class AbstractNormed(AbstractOperator):
    """An operator with a norm of its own."""

    norm: AbstractNorm
    inner: AbstractOperator

    @final
    def spec(self, width: int) -> NormedTheta:
        return NormedTheta(self.norm.spec(width), self.inner.spec(width))

    @final
    def bind(self, binding: Binding) -> "AbstractNormed":
        return type(self)(self.norm.bind(binding), self.inner.bind(binding))


@final
@dataclasses.dataclass(frozen=True)
class PreNorm(AbstractNormed):
    """f(x) = inner(norm(x)): the operator of GPT-2 and most later networks."""

    def velocity(self, theta: NormedTheta, cloud: Cloud, source: Cloud | None = None) -> Points:
        if source is not None:
            source = source.at(self.norm.normalise(theta.norm, source.points))
        return self.inner.velocity(theta.inner, cloud.at(self.norm.normalise(theta.norm, cloud.points)), source)


@final
@dataclasses.dataclass(frozen=True)
class PostNorm(AbstractNormed):
    """f(x) = norm(x + inner(x)) - x: the residual step of BERT as a velocity.

    One Euler step of size 1 gives norm(x + inner(x)) exactly, and at any other step size it is still the same ODE;
    projecting with a trained norm after each step is not (docs/mathematics.md, section 3).
    """

    def velocity(self, theta: NormedTheta, cloud: Cloud, source: Cloud | None = None) -> Points:
        x = cloud.points
        return self.norm.normalise(theta.norm, x + self.inner.velocity(theta.inner, cloud, source)) - x
