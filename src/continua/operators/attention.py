"""The one attention of the project: softmax attention as an integral operator on measures."""

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias, final

import torch

from continua.core.checks import at_least, finite, positive
from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.integral import AbstractTokenIntegral, Exact, KeyValues
from continua.operators.kernels import AbstractFunctionKernel, AbstractKernel, Dense, shows_weights
from continua.operators.operator import AbstractOperator, Binding, Filled, Role, Spec
from continua.spaces import Cloud, Measure

_InHeads: TypeAlias = Float[Tensor, "batch heads tokens nodes_key"]
_Weight: TypeAlias = Float[Tensor, "*heads_own key channels"]


@final
@dataclasses.dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by their times: <R(t) q, R(s) k> = <q, R(s - t) k> depends on s - t alone.

    R(t) turns the pair (x_r, x_{r + n/2}) by om_r t, the frequencies om_r spaced geometrically from `fastest` towards
    `slowest`. J. Su et al., RoFormer (2021), has fastest = 1 and slowest = 1e-4 on the index. Signals, whose token time
    is [0, 1], want `fastest` of one to three times their number of samples, which `transformer` gives to `Rotary()`.
    Along an embedding axis each of the few nodes at which queries and keys are known has its own part of the range:
    together they have the frequencies of a plain vector of the same width. Their number is that of the modes, whatever
    the nodes of the states (`AbstractKernel.to_fewest_nodes`), so that positions are the same at every resolution.
    """

    fastest: float = 1.0
    slowest: float = 1e-4
    tables: tuple["_Turns", ...] = dataclasses.field(default=(), compare=False, repr=False)
    """Of the measures of a solve; set by `bind`."""

    def __post_init__(self) -> None:
        if not 0 < self.slowest <= self.fastest < math.inf:
            reject("slowest", self.slowest, "frequencies are positive and ordered", "Pass 0 < slowest <= fastest.")

    def frequencies(self, key: int, kernel: AbstractKernel, like: Tensor) -> Float[Tensor, "nodes half"]:
        """om_r(d_a) for r = 0, ..., key/2 - 1 at the nodes of a kernel's axis, om_r(0) for plain vectors.

        Constant on as many equal cells as there are modes, where an axis has more nodes.
        """
        places, axis = torch.zeros(1, dtype=torch.float64), kernel.axis
        if axis is not None:
            cells = math.prod(kernel.bias_modes)
            own = torch.arange(cells, dtype=torch.float64)
            places = (own if axis.nodes == cells else (axis.points() * cells).floor()) / cells
        shares = 2.0 * (torch.arange(key // 2, dtype=torch.float64) + places[:, None]) / key
        return (self.fastest * (self.slowest / self.fastest) ** shares).to(like.device, like.dtype)

    def bind(self, binding: Binding, key: int, kernel: AbstractKernel) -> "Rotary":
        """This rotation with the cosines and sines of a solve, whose times stay.

        Not where times need a gradient: tables made here would be one graph under all segments of a checkpointed
        gradient, and the first one that goes backward would free it.
        """
        clouds = [binding.cloud] if binding.source is None else [binding.cloud, binding.source]
        times = [cloud.measure.positions for cloud in clouds]
        if any(t is not None and t.requires_grad for t in times):
            return self
        return dataclasses.replace(self, tables=tuple(self._turns(c.measure, key, kernel, c.points) for c in clouds))

    def rotate(self, x: _InHeads, measure: Measure, key: int, kernel: AbstractKernel) -> _InHeads:
        """Every token's vector turned by its time; without positions, time is the index.

        Numbers are laid out as (2 nodes key/2): the first components of all pairs at all nodes, then the second ones.
        Pieces of memory that change places are then as long as they can be.
        """
        for turns in self.tables:
            if turns.measure is measure:
                break
        else:
            turns = self._turns(measure, key, kernel, x.transpose(1, 2))
        first, second = x.chunk(2, -1)
        return torch.addcmul(x * turns.cos, torch.cat([second, first], -1), turns.sin)

    def _turns(
        self, measure: Measure, key: int, kernel: AbstractKernel, like: Float[Tensor, "batch tokens *_"]
    ) -> "_Turns":
        times = measure.times(like)
        angles = times.masked_fill(~measure.present, 0.0) if measure.present is not None else times
        angles = angles[:, None, :, None] * self.frequencies(key, kernel, like).flatten()  # (batch 1 tokens nodes_half)
        cos, sin = angles.cos(), angles.sin()
        return _Turns(measure, torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))


class _Turns(NamedTuple):
    """cos(om_r t_i) for both halves of a vector and -+ sin(om_r t_i), at the times of a measure."""

    measure: Measure
    cos: Float[Tensor, "batch 1 tokens nodes_key"]
    sin: Float[Tensor, "batch 1 tokens nodes_key"]


class AttentionTheta(NamedTuple):
    """Parameters of the heads at one depth, and their masses p (`None`: the counting measure, p_k = 1)."""

    q: Float[Tensor, "*heads_own key channels"]
    k: Float[Tensor, "*heads_own key channels"]
    v: Float[Tensor, "*heads_own value channels"]
    o: Float[Tensor, "*heads_own value channels"]
    bq: Float[Tensor, "*heads_modes key"] | None = None
    bk: Float[Tensor, "*heads_modes key"] | None = None
    bv: Float[Tensor, "*heads_modes value"] | None = None
    bo: Float[Tensor, "*batched_modes channels"] | None = None
    p: Float[Tensor, "*batched heads"] | None = None


@final
@dataclasses.dataclass(frozen=True)
class Attention(AbstractOperator):
    """A(x, mu, nu) = sum_k p_k O_k^T sum_j softmax_j( beta <Q_k x, K_k x_j> + log w_j ) V_k x_j.

    The mean of V x_j under the measure mu tilted by e^{beta <Qx, Kx_j>}, integrated over the head measure nu = sum_k
    p_k delta_{theta_k} (docs/mathematics.md, section 1). Q, K and V are affine unless `biased=False`, and a bias bo is
    added to the whole. With counting measures it is the multi-head attention of `torch.nn.MultiheadAttention`, exactly.

    `value_size` defaults to `key_size`, `beta` to 1/sqrt(key_size). `causal` restricts the measure of query i to
    t_j <= t_i. With `head_masses` the heads have masses p_k that sum to one, parameters like the others; without,
    p_k = 1. With a `kernel` along an embedding axis, both sizes count channels, <q, k> = sum_a v_a q_a k_a over as few
    nodes as the modes need, which is exact for them, and `beta` defaults to sqrt(modes/key_size).
    """

    heads: int
    key_size: int
    value_size: int | None = None
    beta: float | None = None
    causal: bool = False
    biased: bool = True
    head_masses: bool = False
    rotary: Rotary | None = None
    kernel: AbstractKernel = Dense()
    integral: AbstractTokenIntegral = Exact()
    # What is read in every evaluation is kept: a property is a call, and the lock of a cached one breaks a graph.
    inverse_temperature: float = dataclasses.field(init=False, repr=False, compare=False)
    """beta, or its default."""
    _first: int = dataclasses.field(init=False, repr=False, compare=False)
    """Where the heads stand among the axes of a weight: (..., heads, own axes)."""
    _as_weights: tuple[Any, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The index that gives one number per head the axes of a weight."""
    _reading: AbstractKernel = dataclasses.field(init=False, repr=False, compare=False)
    """From states to queries, keys and values, at as few axis nodes as the modes need."""
    _writing: AbstractKernel = dataclasses.field(init=False, repr=False, compare=False)
    """Back to states."""

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, key_size=self.key_size, value_size=self.value_size)
        finite(beta=self.beta)
        if self.rotary is not None and self.key_size % 2:
            reject("key_size", self.key_size, "rotary positions turn pairs of components", "Pass an even key_size.")
        if self.causal and not self.integral.serves_causal:
            cure = "Use Subset or Debiased, whose causal rows see earlier tokens only."
            reject("integral", self.integral, "its landmarks would carry later tokens into earlier rows", cure)
        # <q, k> is a mean over the axis: of functions in n modes and of unit size it is of order sqrt(key_size / n)
        modes = math.prod(self.kernel.bias_modes)
        beta = math.sqrt(modes / self.key_size) if self.beta is None else self.beta
        object.__setattr__(self, "inverse_temperature", beta)
        object.__setattr__(self, "_first", -1 - len(self.kernel.shape(1, 1)))
        object.__setattr__(self, "_as_weights", (..., *(None,) * (-1 - self._first)))
        object.__setattr__(self, "_reading", self.kernel.to_fewest_nodes())
        object.__setattr__(self, "_writing", self.kernel.from_fewest_nodes())

    def spec(self, width: int) -> AttentionTheta:
        heads, key, head, kernel = self.heads, self.key_size, Role.HEAD, self.kernel
        value = key if self.value_size is None else self.value_size
        channels = kernel.channels(width)
        fan_in, spread = kernel.fan_in(channels), kernel.fan_in(value if self.head_masses else heads * value)
        theta = AttentionTheta(
            q=kernel.weight((heads, *kernel.shape(channels, key)), fan_in, head),
            k=kernel.weight((heads, *kernel.shape(channels, key)), fan_in, head),
            v=kernel.weight((heads, *kernel.shape(channels, value)), fan_in, head),
            o=kernel.weight((heads, *kernel.shape(channels, value)), spread, head),
        )
        if self.biased:
            bq, bk, bv = (kernel.bias(size, (heads,), head) for size in (key, key, value))
            theta = theta._replace(bq=bq, bk=bk, bv=bv, bo=kernel.bias(channels))
        masses: Any = Spec((heads,), Filled(1.0 / heads), Role.HEAD_MASS)  # equal at initialisation
        return theta._replace(p=masses) if self.head_masses else theta

    def bind(self, binding: Binding) -> "Attention":
        integral = self.integral.bind(binding)
        rotary = None if self.rotary is None else self.rotary.bind(binding, self.key_size, self._writing)
        same = integral is self.integral and rotary is self.rotary
        return self if same else dataclasses.replace(self, integral=integral, rotary=rotary)

    def velocity(self, theta: AttentionTheta, cloud: Cloud, source: Cloud | None = None) -> Points:
        source = cloud if source is None else source
        axis, beta = self._writing.axis, self.inverse_temperature
        halves = 1 if self.rotary is None else 2  # the layout that `Rotary.rotate` turns
        q = self._to_heads(cloud.points, theta.q, theta.bq, halves)
        k = self._to_heads(source.points, theta.k, theta.bk, halves)
        if self.rotary is not None:
            q = self.rotary.rotate(q, cloud.measure, self.key_size, self._writing)
            k = self.rotary.rotate(k, source.measure, self.key_size, self._writing)
        if axis is not None:  # <q, k> = sum_a v_a q_a k_a along the embedding axis
            if axis.uniform:
                beta = beta / axis.nodes
            else:
                q = q * axis.weights(q).repeat_interleave(self.key_size // halves).repeat(halves)
        kv = KeyValues(k, self._to_heads(source.points, theta.v, theta.bv), source.measure)
        y = self.integral.means(q, cloud.measure, kv, beta, self.causal)
        if theta.p is None:
            return self._from_heads(y, theta.o, theta.bo)
        if shows_weights():
            return self._from_heads(y * theta.p[..., :, None, None], theta.o, theta.bo)
        # Masses weigh the few numbers of O, not the tokens: one activation less to make and to keep.
        laid_out = theta.o.ndim == 2
        masses = theta.p.repeat_interleave(theta.o.shape[1] // self.heads) if laid_out else theta.p[self._as_weights]
        return self._from_heads(y, theta.o * masses, theta.bo)

    def lipschitz_bound(self, theta: AttentionTheta, radius: float) -> Float[Tensor, "*batched"]:
        """How much the velocity of a cloud in the ball of this radius can change, for each unit its tokens move.

            max_i |A(x_i, mu) - A(x'_i, mu')| <= bound max_i |x_i - x'_i|
            bound = sum_k p_k |O_k^T V_k| ( beta R^2 |K_k^T Q_k| + 1 + 2 beta R |q_k| ) ,   |q_k| <= |K_k^T Q_k| R

        By D_q Gamma = beta Cov and the W_infinity bound of Gamma, both masses alike (docs/mathematics.md, section 8).
        """
        if self.rotary is not None or self.kernel.nodes != 1 or self.causal:
            cure = "Ask plain attention: no rotary positions, Dense() kernels, not causal."
            reject("operator", self, "the bound is known for plain attention only", cure)
        positive(radius=radius)
        beta = abs(self.inverse_temperature)
        turn = torch.linalg.matrix_norm(theta.k.mT @ theta.q, ord=2)
        query = turn * radius
        if theta.bq is not None:
            query = query + (theta.k.mT @ theta.bq.unsqueeze(-1)).squeeze(-1).norm(dim=-1)
        spread = torch.linalg.matrix_norm(theta.o.mT @ theta.v, ord=2)
        p = spread.new_ones(()) if theta.p is None else theta.p
        return (p * spread * (beta * radius**2 * turn + 1.0 + 2.0 * beta * radius * query)).sum(-1)

    def lay_out(self, theta: AttentionTheta) -> AttentionTheta:
        """Theta with every kernel along the axis as one matrix (`AbstractFunctionKernel.lay_out`); modes may lead."""
        reading, writing, halves = self._reading, self._writing, 1 if self.rotary is None else 2
        assert isinstance(reading, AbstractFunctionKernel) and isinstance(writing, AbstractFunctionKernel)
        heads = self.heads
        asked = ((theta.q, theta.bq, halves * heads), (theta.k, theta.bk, halves * heads), (theta.v, theta.bv, heads))
        q, k, v = [reading.lay_out(self._join(w), to_heads=to) for w, _, to in asked]
        bq, bk, bv = [None if b is None else reading.spread(self._join_bias(b), to) for _, b, to in asked]
        o = writing.lay_out(self._join(theta.o).mT, from_heads=heads)
        return AttentionTheta(q, k, v, o, bq, bk, bv, None if theta.bo is None else writing.spread(theta.bo), theta.p)

    def _join(self, w: _Weight) -> Tensor:
        """(..., heads, own axes, key, channels) as (..., own axes, heads*key, channels)."""
        return w.movedim(self._first, -3).flatten(-3, -2)

    def _join_bias(self, b: Tensor) -> Tensor:
        """(..., heads, modes, key) as (..., modes, heads*key); vectors have no modes."""
        return b.flatten(-2) if self.kernel.axis is None else b.transpose(-3, -2).flatten(-2)

    def _to_heads(self, x: Points, w: Tensor, b: Tensor | None, halves: int = 1) -> _InHeads:
        heads = self.heads
        if w.ndim > 2:
            heads, w, b = w.shape[self._first], self._join(w), None if b is None else self._join_bias(b)
        y = self._reading.apply(w, b, x, to_heads=halves * heads)
        return y.unflatten(-1, (heads, -1)).transpose(1, 2)

    def _from_heads(self, y: _InHeads, o: Tensor, b: Tensor | None) -> Points:
        w = self._join(o).mT if o.ndim > 2 else o
        return self._writing.apply(w, b, y.transpose(1, 2).flatten(2), from_heads=y.shape[1])
