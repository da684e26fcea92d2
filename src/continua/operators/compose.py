"""Operators made of operators: sums, cross-attention, dropout, bounded kernels; and with some part exchanged."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

import torch

from continua.core.checks import fraction, positive
from continua.core.errors import reject
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.operators.attention import Attention
from continua.operators.feedforward import FeedForward
from continua.operators.integral import AbstractTokenIntegral, KeyValues, Means, Queries, attention_matrix, check_own
from continua.operators.kernels import AbstractKernel, joined_modes, multipliers
from continua.operators.norms import AbstractAffineNorm, AbstractNormed, NormedTheta
from continua.operators.operator import AbstractOperator, AbstractWrapper, Binding, Spec, Theta, leaves, rebuild
from continua.spaces import AbstractParameterSpace, Axis, Cloud, FlatSpace, Measure, SpectralSpace


@final
@dataclasses.dataclass(frozen=True)
class Sum(AbstractOperator):
    """f = sum_k f_k: operators that act side by side on the same state, as in the parallel block of GPT-J."""

    terms: tuple[AbstractOperator, ...]

    def __post_init__(self) -> None:
        if len(self.terms) == 0:
            reject("terms", self.terms, "a sum needs a term", "Pass at least one operator.")

    def spec(self, width: int) -> Theta:
        return tuple(term.spec(width) for term in self.terms)

    def bind(self, binding: Binding) -> "Sum":
        return Sum(tuple(term.bind(binding.branch(place)) for place, term in enumerate(self.terms)))

    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        velocity = self.terms[0].velocity(theta[0], cloud, source)
        for term, th in zip(self.terms[1:], theta[1:], strict=True):
            velocity = velocity + term.velocity(th, cloud, source)
        return velocity


@final
@dataclasses.dataclass(frozen=True)
class Cross(AbstractWrapper):
    """f(x) = inner(x, source): cross-attention from x to another cloud, such as an encoder's.

    `source` is the `encoded` cloud of the binding by which the operator was bound.
    """

    source: Cloud | None = dataclasses.field(default=None, compare=False, repr=False)

    def bind(self, binding: Binding) -> "Cross":
        if binding.encoded is None:
            cure = "Bind the flow with encoded=cloud, or call the model with encoded=cloud."
            reject("encoded", None, "this flow has cross-attention and nothing to attend to", cure)
        asking, offering = binding.cloud.points.shape[0], binding.encoded.points.shape[0]
        if asking != offering:
            why = f"it holds {offering} sequences, and {asking} ask"
            reject("encoded", tuple(binding.encoded.points.shape), why, "Give every sequence its own encoded tokens.")
        below = dataclasses.replace(binding, source=binding.encoded)
        return Cross(self.inner.bind(below), binding.encoded)

    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        if self.source is None:
            cure = "Call operator.bind(Binding(cloud, encoded=source)) and use what it returns."
            reject("source", None, "the operator was not bound, and has nothing to attend to", cure)
        return self.inner.velocity(theta, cloud, self.source)


@final
@dataclasses.dataclass(frozen=True)
class Dropout(AbstractWrapper):
    """f(x) = mask * inner(x), the entries of the mask independently 0 with probability `rate`, else 1/(1 - rate).

    The mask is drawn at bind time and stays for the whole solve (one mask for each piece of a field that jumps, so
    that a list of layers has independent masks, as in the standard networks). Without a seed nothing is dropped.
    """

    rate: float
    mask: Float[Tensor, "batch tokens width"] | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        fraction(all=False, rate=self.rate)

    def bind(self, binding: Binding) -> "Dropout":
        inner = self.inner.bind(binding.branch(1))
        if binding.seed is None or self.rate == 0.0:
            return Dropout(inner, self.rate)
        x = binding.cloud.points
        generator = generator_of(branch_seed(binding.seed, 0), x.device)
        kept = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) >= self.rate
        return Dropout(inner, self.rate, kept.to(x.dtype) / (1.0 - self.rate))

    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        velocity = self.inner.velocity(theta, cloud, source)
        if self.mask is None:
            return velocity
        if self.mask.shape != velocity.shape:
            cure = "Ask other queries without dropout: bind with seed=None."
            reject("queries", tuple(velocity.shape), f"the mask was drawn for {tuple(self.mask.shape)}", cure)
        return velocity * self.mask


T = TypeVar("T")


def with_nodes(part: T, nodes: int) -> T:
    """`part` with every kernel, norm and axis in it at `nodes` nodes; its parameters serve unchanged."""
    return _replace_parts(part, lambda x: x.at(nodes) if isinstance(x, AbstractKernel | Axis) else None)


def with_heads(part: T, heads: int) -> T:
    """`part` with every attention at `heads` nodes of its measure of heads (see `AbstractHeadField.at_nodes`)."""

    def change(x: Any) -> Attention | None:
        if not isinstance(x, Attention):
            return None
        if not x.head_masses:
            cure = "Build it with Attention(heads, key_size, head_masses=True) and a field such as ContinuousHeads."
            reject("heads", heads, "these are counted heads, not a measure: their number is fixed", cure)
        return dataclasses.replace(x, heads=heads)

    return _replace_parts(part, change)


def with_integral(part: T, integral: AbstractTokenIntegral) -> T:
    """`part` with `integral` in every attention."""
    return _replace_parts(part, lambda x: integral if isinstance(x, AbstractTokenIntegral) else None)


def _replace_parts(part: Any, change: Callable[[Any], Any]) -> Any:
    """`part` with `change` made wherever it gives something else, in tuples and dataclasses to any depth."""
    changed = change(part)
    if changed is not None:
        return changed
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        return tuple(_replace_parts(x, change) for x in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    old = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
    new = {name: _replace_parts(value, change) for name, value in old.items()}
    differing = {name: value for name, value in new.items() if value != old[name]}
    return dataclasses.replace(part, **differing) if differing else part


def lay_out(operator: AbstractOperator, theta: Theta) -> Theta:
    """Theta with the kernels of attention and feed-forward along an embedding axis as one matrix each.

    A linear map of theta, whose leaves may have an axis of modes in front; `operator` takes what it gives.
    """
    if isinstance(operator, Attention | FeedForward):
        return theta if operator.kernel.axis is None else operator.lay_out(theta)
    if isinstance(operator, AbstractNormed):
        norm = operator.norm
        own = norm.lay_out(theta.norm) if isinstance(norm, AbstractAffineNorm) else theta.norm
        return NormedTheta(own, lay_out(operator.inner, theta.inner))
    if isinstance(operator, Sum):
        return tuple(lay_out(term, th) for term, th in zip(operator.terms, theta, strict=True))
    return lay_out(operator.inner, theta) if isinstance(operator, Cross | Dropout) else theta


class AttentionWeights(NamedTuple):
    """The weights of one attention, and the measure of the tokens that answer: those of the cloud, or of an encoder."""

    weights: Float[Tensor, "batch heads queries tokens"]
    answering: Measure


@final
@dataclasses.dataclass(frozen=True)
class Watched(AbstractTokenIntegral):
    """The exact token integral that forms alpha, in O(queries * tokens) memory, and hands it to `show`, detached."""

    show: Callable[[AttentionWeights], None]

    def bind(self, binding: Binding) -> "Watched":
        return self

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        check_own(asked, kv.measure, causal)
        alpha = attention_matrix(q, asked, kv, beta, causal)
        self.show(AttentionWeights(alpha.detach(), kv.measure))
        return alpha @ kv.values


def attention_weights(
    operator: AbstractOperator, theta: Theta, cloud: Cloud, encoded: Cloud | None = None
) -> list[AttentionWeights]:
    """alpha_ij of every attention inside an operator, in the order in which they act; none where there is none.

    Rows sum to one, and are those of the exact softmax wherever the operator itself would estimate. Norms, rotary
    positions, masses and causality are those of the operator. On the counting measure: the weights of
    `torch.nn.MultiheadAttention` before they are averaged over heads.
    """
    found: list[AttentionWeights] = []
    with_integral(operator, Watched(found.append)).bind(Binding(cloud, encoded)).velocity(theta, cloud)
    return found


def spectral_norm(w: Tensor) -> Tensor:
    """The largest singular value of each matrix (..., rows, columns), to rounding.

    By an eigendecomposition of W^H W or W W^H, whichever is smaller. A power iteration is cheaper for large matrices,
    but falls short where its start is orthogonal to the leading direction, or two values are close. Differentiable:
    sigma = <u, W v> with u and v held fixed, whose derivative u v^H is that of the norm. Products are not lowered by
    autocast. Reference: `torch.linalg.matrix_norm(w, ord=2)`.
    """
    with torch.autocast(w.device.type, enabled=False):
        with torch.no_grad():
            u, v = _leading(w.detach())
        sigma = (u.mH @ w @ v)[..., 0, 0]
    return sigma.real if w.is_complex() else sigma


def _leading(m: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors u and v, as columns, with u^H M v = |M|_2; what is not finite counts as zero."""
    if m.shape[-2] < m.shape[-1]:
        v, u = _leading(m.mH)
        return u, v
    m, tiny = torch.where(m.isfinite(), m, 0.0), torch.finfo(m.dtype).tiny
    m = m / m.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)  # squares stay in range
    v = torch.linalg.eigh(m.mH @ m).eigenvectors[..., -1:]
    u = m @ v
    return u / torch.linalg.vector_norm(u, dim=-2, keepdim=True).clamp_min(tiny), v


@final
@dataclasses.dataclass(frozen=True)
class SpectrallyNormed(AbstractWrapper):
    """The inner operator with every kernel W in it replaced by W min(1, limit/|W|_2).

    |W|_2 is the norm of the kernel as an operator: of the matrix, of the coefficients in an orthonormal basis, of each
    multiplier; it is exact to rounding. Whatever the field gives, at every depth no kernel stretches a state by more
    than `limit`, which bounds the stiffness of the flow. Gradients pass through the norm, as in T. Miyato et al.,
    arXiv 1802.05957.
    """

    limit: float = 1.0

    def __post_init__(self) -> None:
        positive(limit=self.limit)

    def bind(self, binding: Binding) -> "SpectrallyNormed":
        return dataclasses.replace(self, inner=self.inner.bind(binding))

    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        return self.inner.velocity(self.normalise_kernels(theta, cloud.points.shape[-1]), cloud, source)

    def normalise_kernels(self, theta: Theta, width: int) -> Theta:
        specs: dict[str, Spec] = dict(leaves(self.inner.spec(width)))
        return rebuild(theta, {name: self._scale(leaf, specs[name].home) for name, leaf in leaves(theta)})

    def _scale(self, w: Tensor, space: AbstractParameterSpace) -> Tensor:
        """One norm per kernel, or per multiplier of a convolution."""
        if isinstance(space, SpectralSpace):
            matrices = multipliers(w) if space.paired else joined_modes(w)
        elif space == FlatSpace(2):
            matrices = w
        else:
            return w
        scale = self.limit / spectral_norm(matrices).clamp_min(self.limit)
        return w * scale.reshape(*scale.shape, *(1 for _ in range(w.ndim - scale.ndim)))
