"""Linear maps along the embedding axis, one interface for Q, K, V, O, W1 and W2.

    (W X)(d_a) = sum_b v_b W(d_a, d_b) X(d_b)

A weight has the axes (outputs, inputs) last, channels of the two functions; what stands before is the kernel's own. A
bias is a function along the axis too, in the kernel's basis.
"""

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, TypeAlias, final

import torch
import torch.nn.functional as F

from continua.core.checks import at_least, is_traced
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.operators.operator import Filled, Law, Normal, Orthonormal, Role, Spec
from continua.spaces.axis import Axis, TensorTable, tables
from continua.spaces.bases import AbstractBasis, Fourier
from continua.spaces.parameter_spaces import AbstractParameterSpace, FlatSpace, SpectralSpace, StiefelSpace


def linear(
    x: Float[Tensor, "batch tokens inner"],
    w: Float[Tensor, "*batched outer inner"],
    b: Float[Tensor, "*batched outer"] | None = None,
) -> Float[Tensor, "batch tokens outer"]:
    """y_i = W x_i + b; with a leading batch axis on W and b each sequence has its own. Equals `F.linear` without."""
    if w.ndim == 2:
        return F.linear(x, w, b)
    if b is None:
        return torch.bmm(x, w.transpose(1, 2))
    return torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))


def per_token(v: Float[Tensor, "*batched width"]) -> Float[Tensor, "*rows width"]:
    """A vector per depth (width) or per sequence (batch width), ready to meet (batch tokens width)."""
    return v if v.ndim == 1 else v.unsqueeze(1)


def synthesise(
    synthesis: TensorTable, coefficients: Float[Tensor, "*batched modes channels"]
) -> Float[Tensor, "*batched width"]:
    """Functions along an axis at its nodes, from their coefficients; parameters keep their precision under autocast."""
    with torch.autocast(coefficients.device.type, enabled=False):
        return (synthesis.like(coefficients) @ coefficients).flatten(-2)


_by_transforms = False


@contextlib.contextmanager
def by_transforms() -> Iterator[None]:
    """Inside, kernels are applied by their transforms: a linear map then shows its parameters as they are stored."""
    global _by_transforms
    before, _by_transforms = _by_transforms, True
    try:
        yield
    finally:
        _by_transforms = before


def shows_weights() -> bool:
    """Whether linear maps are to show their parameters as they are stored (`by_transforms`)."""
    return _by_transforms


Incoming: TypeAlias = Float[Tensor, "batch tokens nodes_inputs"]
Outgoing: TypeAlias = Float[Tensor, "batch tokens nodes_outputs"]
Bias: TypeAlias = Float[Tensor, "*batched_modes outputs"]


@dataclasses.dataclass(frozen=True)
class AbstractKernel(abc.ABC):
    """A linear map from functions with some channels to functions with others, on one embedding axis."""

    axis: Axis | None
    """`None` where a state is a plain vector, on a single node."""
    own: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The axes of a weight (*own, outputs, inputs) that are the kernel's; an output sums over the last of them."""
    space: AbstractParameterSpace = dataclasses.field(init=False, repr=False, compare=False)
    """Where a weight lives."""
    bias_modes: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The axes of a bias (*bias_modes, outputs) that are the kernel's."""

    @abc.abstractmethod
    def apply(self, w: Tensor, b: Bias | None, x: Incoming, from_heads: int = 1, to_heads: int = 1) -> Outgoing:
        """W x + b for every token.

        Channels that belong to heads may be laid out head by head, (heads nodes channels), and not node by node, where
        they come from (`from_heads`) or where they go to (`to_heads`).
        """

    @abc.abstractmethod
    def to_fewest_nodes(self) -> "AbstractKernel":
        """This kernel from states to functions at as few nodes as its modes need: queries, keys and values."""

    @abc.abstractmethod
    def from_fewest_nodes(self) -> "AbstractKernel":
        """This kernel from functions at these fewest nodes, its `axis`, to states."""

    @final
    @property
    def nodes(self) -> int:
        return 1 if self.axis is None else self.axis.nodes

    @final
    def shape(self, inputs: int, outputs: int) -> tuple[int, ...]:
        return (*self.own, outputs, inputs)

    @final
    def fan_in(self, inputs: int) -> int:
        """How many numbers each output sums over: parameters of variance 1/fan_in keep the size of a state."""
        return math.prod(self.own[-1:]) * inputs

    @final
    def at(self, nodes: int) -> "AbstractKernel":
        """The same kernel, with the same parameters, at another resolution."""
        if self.axis is None:
            cure = "Build the model with Spectral or Convolution kernels to change its resolution."
            reject("nodes", nodes, "a dense kernel knows one resolution, that of its matrix", cure)
        return dataclasses.replace(self, axis=self.axis.at(nodes))

    @final
    def law(self, fan_in: int) -> Law:
        """The law of a weight that sums over `fan_in` numbers, such that states keep their size."""
        space = self.space
        rigid = isinstance(space, StiefelSpace)
        return Orthonormal(multipliers=space.paired) if rigid else Normal(1.0 / math.sqrt(fan_in))

    @final
    def weight(self, shape: tuple[int, ...], fan_in: int, role: Role = Role.PLAIN) -> Any:
        return Spec(shape, self.law(fan_in), role, self.space)

    @final
    def bias(self, outputs: int, heads: tuple[int, ...] = (), role: Role = Role.PLAIN) -> Any:
        """The `Spec` of a bias, zero at initialisation; `heads` is the axis in front of one with that role."""
        return Spec((*heads, *self.bias_modes, outputs), Filled(0.0), role, FlatSpace(1))

    @final
    def channels(self, width: int) -> int:
        if width % self.nodes:
            cure = f"Choose a width divisible by {self.nodes}."
            reject("width", width, f"it does not split over {self.nodes} nodes", cure)
        return width // self.nodes


@final
@dataclasses.dataclass(frozen=True)
class Dense(AbstractKernel):
    """A matrix on the counting measure: the usual linear layer. Equals `torch.nn.functional.linear`.

    With `orthonormal` its columns are so (its rows where it is wide), and remain so under `RiemannianAdam`.
    """

    axis: None = dataclasses.field(default=None, init=False, repr=False)
    orthonormal: bool = False
    own = ()
    bias_modes = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "space", StiefelSpace() if self.orthonormal else FlatSpace(2))

    def to_fewest_nodes(self) -> "Dense":
        return self

    def from_fewest_nodes(self) -> "Dense":
        return self

    def apply(self, w: Tensor, b: Bias | None, x: Incoming, from_heads: int = 1, to_heads: int = 1) -> Outgoing:
        return F.linear(x, w, b) if w.ndim == 2 else linear(x, w, b)  # one node: both layouts are one


@dataclasses.dataclass(frozen=True)
class AbstractFunctionKernel(AbstractKernel):
    """A kernel that is known by coefficients in some basis of functions along the axis."""

    axis: Axis
    """At whose nodes a function comes in."""
    basis: AbstractBasis
    """In which biases are known."""
    to: Axis | None = dataclasses.field(default=None, repr=False, kw_only=True)
    """At whose nodes it goes out; `None`: those of `axis`."""

    @final
    @functools.cached_property
    def outer(self) -> Axis:
        return self.axis if self.to is None else self.to

    @final
    def to_fewest_nodes(self) -> "AbstractFunctionKernel":
        return self._through_fewest[0]

    @final
    def from_fewest_nodes(self) -> "AbstractFunctionKernel":
        return self._through_fewest[1]

    @functools.cached_property
    def _through_fewest(self) -> tuple["AbstractFunctionKernel", "AbstractFunctionKernel"]:
        few = self._fewest()
        if few == self.axis:
            return self, self
        return dataclasses.replace(self, to=few), dataclasses.replace(self, axis=few, to=self.axis)

    def _fewest(self) -> Axis:
        """As many nodes as the basis has functions: they tell these apart, and inner products of two are exact."""
        few = self.axis.at(self.basis.size)
        return few if few.resolves(self.basis) else self.axis

    @functools.cached_property
    def _tables(self) -> tuple[TensorTable, TensorTable]:
        return tables(self.outer, self.basis)[0], tables(self.axis, self.basis)[1]

    @abc.abstractmethod
    def transform(self, w: Tensor, x: Incoming) -> Outgoing:
        """W x for every token: analysis, the parameters on coefficients, synthesis."""

    @abc.abstractmethod
    def pairs(self) -> Float[Tensor, "outer_nodes own"]:
        """From parameters (own axes) to kernels times weights v_b at all pairs of nodes: one product."""

    @functools.cached_property
    def _pairs(self) -> TensorTable:
        with torch.inference_mode(False):  # what is kept must serve training too
            return TensorTable(self.pairs())

    @final
    def matrix(self, w: Tensor) -> Float[Tensor, "*batched outer nodes outputs inputs"]:
        """The same map between the values at the nodes: a matrix for each pair of them."""
        mixed = self._pairs.like(w) @ w.flatten(-2).flatten(-3, -2)  # (outer nodes, outputs inputs)
        return mixed.view(*w.shape[:-4], self.outer.nodes, self.axis.nodes, *w.shape[-2:])

    @final
    def _prepare(self) -> None:
        """Makes what is kept: an axis that does not resolve the basis is refused, and compiled code finds tensors."""
        _ = self._tables, self._pairs

    @final
    def lay_out(
        self, w: Tensor, from_heads: int = 1, to_heads: int = 1
    ) -> Float[Tensor, "*batched nodes_outputs nodes_inputs"]:
        """The same map as one matrix, in the layouts of `apply`, which takes it in place of `w`; modes may lead."""
        matrix = self.matrix(w)
        *batched, outer, inner, outputs, inputs = matrix.shape
        each = (outer, inner, to_heads, outputs // to_heads, from_heads, inputs // from_heads)
        parted = matrix.view(*batched, *each).permute((0, 3, 1, 4, 5, 2, 6) if batched else (2, 0, 3, 4, 1, 5))
        return parted.reshape(*batched, outer * outputs, inner * inputs)  # one copy for all layouts

    @final
    def spread(self, b: Bias, to_heads: int = 1) -> Float[Tensor, "*batched nodes_outputs"]:
        """The bias at every node, in the layout of `lay_out`."""
        return _swap(synthesise(self._tables[0], b), self.outer.nodes, to_heads)

    @staticmethod
    def composes(x: Incoming) -> bool:
        """Whether one matrix is faster than transforms.

        These cost per token what the matrix costs once: it is, from a quarter as many tokens on as a state has numbers.
        Parameters per sequence would make one matrix for each. A graph serves batches of all sizes.
        """
        return is_traced() or 4 * x.shape[0] * x.shape[1] > x.shape[2]

    @final
    def apply(self, w: Tensor, b: Bias | None, x: Incoming, from_heads: int = 1, to_heads: int = 1) -> Outgoing:
        if w.ndim == 2:  # laid out before
            return F.linear(x, w, b)
        if w.ndim == 2 + len(self.own) and self.composes(x) and not _by_transforms:
            w = self.lay_out(w, from_heads, to_heads)
            return F.linear(x, w, None if b is None else self.spread(b, to_heads))
        y = self.transform(w, _swap(x, from_heads, self.axis.nodes))
        if b is not None:
            y = y + per_token(self.spread(b))
        return _swap(y, self.outer.nodes, to_heads)


@final
@dataclasses.dataclass(frozen=True)
class Spectral(AbstractFunctionKernel):
    """W(d, e) = sum_ij C_ij phi_i(d) phi_j(e) in an orthonormal basis: parameters C of shape (modes, modes, out, in).

    Applied as analysis, one matrix on the coefficients, synthesis.
    """

    axis: Axis
    basis: AbstractBasis
    space = SpectralSpace()

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", (self.basis.size, self.basis.size))
        object.__setattr__(self, "bias_modes", (self.basis.size,))
        self._prepare()

    def pairs(self) -> Tensor:
        """phi_i(d_a) v_b phi_j(d_b) for all pairs of modes and of nodes."""
        synthesis, analysis = (table.values for table in self._tables)
        return torch.kron(synthesis, analysis.T.contiguous())

    def transform(self, w: Tensor, x: Incoming) -> Outgoing:
        synthesis, analysis = self._tables
        functions = x.unflatten(-1, (self.axis.nodes, -1))  # (batch tokens nodes inputs)
        coefficients = torch.einsum("ja,btac->btjc", analysis.like(x), functions).flatten(2)
        mixed = linear(coefficients, joined_modes(w)).unflatten(-1, (self.basis.size, -1))
        return torch.einsum("ai,btic->btac", synthesis.like(x), mixed).flatten(2)


def _swap(x: Tensor, outer: int, inner: int) -> Tensor:
    """The numbers of the last axis, laid out as (outer inner channels), as (inner outer channels)."""
    if outer == 1 or inner == 1:
        return x
    return x.unflatten(-1, (outer, inner, -1)).transpose(-3, -2).flatten(-3)


def joined_modes(w: Float[Tensor, "*batched modes more_modes outputs inputs"]) -> Tensor:
    """The matrix ((modes outputs), (modes inputs)) of a `Spectral` kernel."""
    return w.transpose(-3, -2).flatten(-4, -3).flatten(-2)


@final
@dataclasses.dataclass(frozen=True)
class Convolution(AbstractFunctionKernel):
    """W(d, e) = kappa(d - e), periodic: multipliers R(om) for |om| <= modes, by FFT: (modes + 1, 2, out, in).

    The second axis holds real and imaginary part, R(-om) = conj R(om), and R(0) is real (its imaginary part is not
    read). The axis is uniform (`MidpointRule`) and has at least 2 modes + 1 nodes, so that no frequency meets its
    alias. With `unitary` every R(om) is unitary (an isometry one way where it is not square) and remains so under
    `RiemannianAdam`: functions within the band limit keep their energy.
    """

    axis: Axis
    basis: Fourier = dataclasses.field(init=False, repr=False, compare=False)
    modes: int
    unitary: bool = False

    def __post_init__(self) -> None:
        at_least(0, modes=self.modes)
        if self.axis.nodes < 2 * self.modes + 1:
            cure = f"Use at least {2 * self.modes + 1} nodes."
            reject("nodes", self.axis.nodes, f"the axis is below the band limit of {self.modes} modes", cure)
        gaps = self.axis.points().diff() * self.axis.nodes
        if bool(((gaps - 1.0).abs() > 1e-9).any()):
            reject("axis", self.axis, "the FFT needs equispaced nodes", "Use Axis(nodes, channels, MidpointRule()).")
        object.__setattr__(self, "own", (self.modes + 1, 2))
        object.__setattr__(self, "basis", Fourier(2 * self.modes + 1))
        object.__setattr__(self, "bias_modes", (self.basis.size,))
        object.__setattr__(self, "space", StiefelSpace(paired=True) if self.unitary else SpectralSpace(paired=True))
        self._prepare()
        _ = self._shift

    def pairs(self) -> Tensor:
        """e^{2 pi i om (d_a - d_b)} / nodes for all pairs of nodes, its real part, and minus its imaginary part."""
        between = self.outer.points()[:, None] - self.axis.points()  # (outer nodes)
        om = torch.arange(self.modes + 1, dtype=torch.float64)
        angles = 2.0 * math.pi * om * between.flatten()[:, None]
        both = (2.0 - (om == 0).double()) / self.axis.nodes  # om and -om
        return torch.stack([both * angles.cos(), -both * angles.sin()], -1).flatten(1)

    @functools.cached_property
    def _shift(self) -> TensorTable:
        """From the first node of `axis` to that of `outer`, and from sums over nodes to means, by frequency."""
        first, last = (float(each.points()[0]) for each in (self.axis, self.outer))
        angles = 2.0 * math.pi * torch.arange(self.modes + 1, dtype=torch.float64) * (last - first)
        return TensorTable(torch.stack([angles.cos(), angles.sin()]) * (self.outer.nodes / self.axis.nodes))

    def transform(self, w: Tensor, x: Incoming) -> Outgoing:
        spectrum = torch.fft.rfft(x.unflatten(-1, (self.axis.nodes, -1)), dim=2)[:, :, : self.modes + 1]
        rows = "bmoi" if w.ndim == 5 else "moi"
        mixed = torch.einsum(f"{rows},btmi->btmo", multipliers(w), spectrum)
        if self.to is not None:
            mixed = mixed * torch.complex(*self._shift.like(x).unbind()).unsqueeze(-1)
        return torch.fft.irfft(mixed, n=self.outer.nodes, dim=2).flatten(2)


def multipliers(w: Float[Tensor, "*batched frequencies 2 outputs inputs"]) -> Tensor:
    """R(om) of a `Convolution`, complex; R(0) is real."""
    real, imaginary = w.unbind(-3)
    moving = (torch.arange(w.shape[-4], device=w.device) > 0).to(w.dtype)
    return torch.complex(real, imaginary * moving[:, None, None])
