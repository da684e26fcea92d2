"""Estimates of the token integral from few tokens: nodes drawn by their masses, random subsets, landmarks.

The nodes stand for all tokens. An estimate may be unbiased by randomised telescoping, of low rank, or both at once.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar, final

import torch

from continua.core.checks import at_least, fraction, positive
from continua.core.errors import reject
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.operators import integral
from continua.operators.integral import AbstractTokenIntegral, Exact, KeyValues, Means, Queries
from continua.operators.operator import Binding
from continua.spaces import Measure


@final
@dataclasses.dataclass(frozen=True)
class LogTokens:
    """m = ceil(c log T) drawn tokens of T; the cost of an estimate is then O(T log T)."""

    c: float

    def __post_init__(self) -> None:
        positive(c=self.c)


Count = int | LogTokens
"""How many tokens are drawn, the nodes of the integral: a number, or a function of the number of tokens."""


def nodes_for(count: Count, tokens: int) -> int:
    """The number of nodes for a sequence of `tokens`."""
    return math.ceil(count.c * math.log(max(tokens, 2))) if isinstance(count, LogTokens) else count


class Nodes(NamedTuple):
    """Tokens drawn with probability pi_j: token j enters sums with weight w_j / (m pi_j), each time it was drawn."""

    chosen: Int[Tensor, "batch nodes"]
    log_rate: Float[Tensor, "batch nodes"]
    """log(m pi_j)"""

    def part(self, start: int, stop: int) -> "Nodes":
        """Some of the nodes, as a smaller draw of the same law."""
        shift = math.log((stop - start) / self.chosen.shape[1])
        return Nodes(self.chosen[:, start:stop], self.log_rate[:, start:stop] + shift)

    def log_weight(self, measure: Measure) -> Float[Tensor, "batch nodes"]:
        """log( w_j / (m pi_j) ), with a gradient to w."""
        if measure.log_mass is None:
            return -self.log_rate
        return measure.log_mass.gather(1, self.chosen) - self.log_rate

    def of(self, kv: KeyValues) -> tuple[Tensor, Tensor]:
        """Keys (batch, heads, nodes, key) and values (batch, heads, nodes, value) of the nodes."""
        index = self.chosen[:, None, :, None]
        return kv.keys.take_along_dim(index, 2), kv.values.take_along_dim(index, 2)


def nodes_at(levels: Float[Tensor, "rows nodes"], measure: Measure, like: Tensor) -> Nodes:
    """Nodes of every sequence where its cumulative mass passes `levels` of [0, 1): pi_j = w_j / sum w.

    One row of levels serves every sequence, or each has its own.
    """
    batch, tokens = measure.shape
    mass = torch.ones(batch, tokens, dtype=torch.float64, device=like.device)
    mass = mass if measure.mass is None else measure.mass.detach().double()
    share = mass / mass.sum(-1, keepdim=True)
    levels = levels.to(share).expand(batch, -1).contiguous()
    last = torch.where(share > 0, torch.arange(tokens, device=share.device), -1).amax(-1, keepdim=True)
    # rounding of the cumulative mass may point beyond the last token with mass
    index = torch.minimum(torch.searchsorted(share.cumsum(-1), levels, right=True), last)
    log_rate = torch.log(levels.shape[1] * share.gather(1, index))
    return Nodes(index, log_rate.to(like.dtype))


_BITS = 30
"""What torch's Sobol points resolve."""


@dataclasses.dataclass(frozen=True)
class AbstractDraw(abc.ABC):
    """Levels u_1, ..., u_m in [0, 1), each of uniform law, drawn anew for every sequence of every solve.

    With `common`, a seed, the same levels serve all of them: common random numbers, which cancel in differences between
    mini-batches. Without a seed (evaluation) all sequences share fixed levels, so that none depends on its batch.
    """

    common: int | None = None

    @final
    def nodes(self, measure: Measure, like: Tensor, count: int, seed: int | None) -> Nodes:
        if seed is None or self.common is not None:
            return nodes_at(self._levels(1, count, self.common or 0), measure, like)
        return nodes_at(self._levels(measure.shape[0], count, seed), measure, like)

    @abc.abstractmethod
    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        """Levels in float64; the rows are independent."""


@final
@dataclasses.dataclass(frozen=True)
class Independent(AbstractDraw):
    """Independent levels, by pseudo-random numbers."""

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        return torch.rand(rows, count, generator=generator_of(seed), dtype=torch.float64)


@final
@dataclasses.dataclass(frozen=True)
class Sobol(AbstractDraw):
    """Scrambled Sobol points: evenly spread over token time, hence of lower variance where the signal is smooth.

    `torch.quasirandom.SobolEngine(1, scramble=True)`, its digits shifted at random (exclusive or) for each sequence,
    which keeps the one point in each dyadic cell. A. B. Owen, Scrambled net variance, Ann. Statist. 25 (1997).
    """

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=branch_seed(seed, 0) % 2**31)
        digits = (engine.draw(count, dtype=torch.float64)[:, 0] * 2**_BITS).long().clamp_max(2**_BITS - 1)
        shift = torch.randint(2**_BITS, (rows, 1), generator=generator_of(branch_seed(seed, 1)))
        return ((digits ^ shift).double() + 0.5) / 2**_BITS


@final
@dataclasses.dataclass(frozen=True)
class Lattice(AbstractDraw):
    """u_i = (i/m + shift) mod 1 with one random shift for each sequence: as equispaced as can be."""

    def _levels(self, rows: int, count: int, seed: int) -> Float[Tensor, "rows nodes"]:
        shift = torch.rand(rows, 1, generator=generator_of(seed), dtype=torch.float64)
        return (torch.arange(count, dtype=torch.float64) / count + shift) % 1.0


_DECAY = 1.5
"""Between the variance (2^-2l) and the cost (2^l) of a term, so that both stay bounded in the number of levels."""


def draw_level(last: int, seed: int) -> tuple[int, float]:
    """A level from 1 to `last`, and its probability."""
    odds = 2.0 ** (-_DECAY * torch.arange(1, last + 1, dtype=torch.float64))
    drawn = int(torch.multinomial(odds, 1, generator=generator_of(seed)))
    return drawn + 1, float(odds[drawn] / odds.sum())


@dataclasses.dataclass(frozen=True)
class AbstractEstimate(AbstractTokenIntegral):
    """The token integral over `m` drawn tokens; exact with m >= T, the tokens with mass in the longest sequence."""

    m: Count

    def __post_init__(self) -> None:
        at_least(1, m=None if isinstance(self.m, LogTokens) else self.m)

    @final
    def _sizes(self, measure: Measure) -> tuple[int, int]:
        """How many nodes, and T: the tokens that they stand for. Padding and queries do not count."""
        tokens = measure.shape[1] if measure.heavy is None else int(measure.heavy.sum(-1).max())
        return nodes_for(self.m, tokens), tokens


_BLOCK = 1024
"""Queries that are answered together."""
_AtLandmarks: TypeAlias = Float[Tensor, "batch heads landmarks value"]


@final
@dataclasses.dataclass(frozen=True)
class Subset(AbstractEstimate):
    """y_i = sum_s u_s e^{beta <q_i, k_s>} v_s / sum_s u_s e^{beta <q_i, k_s>} over m drawn tokens s.

    Here u_s = w_s / (m pi_s). Numerator and normaliser are unbiased, their quotient is not: the bias is O(1/m)
    (docs/mathematics.md, section 6).
    A causal row always holds its own token, with its own mass, beside the earlier nodes; a query that sees no node
    gets the mean of the empty measure, zero. Nodes are drawn with replacement when the flow is bound, and stay for the
    solve.

    `kept = (start, stop)` draws m nodes and uses some of them, as a smaller draw: subsets of different sizes that share
    nodes, wherever they meet the same seed.
    """

    draw: AbstractDraw = Independent()
    kept: tuple[int, int] | None = None
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kept is not None and not (isinstance(self.m, int) and 0 <= self.kept[0] < self.kept[1] <= self.m):
            reject("kept", self.kept, f"m = {self.m}: this is no part of the nodes", "Pass 0 <= start < stop <= m.")

    def bind(self, binding: Binding) -> AbstractTokenIntegral:
        cloud = binding.offering
        m, tokens = self._sizes(cloud.measure)
        start, stop = (0, m) if self.kept is None else self.kept
        if stop - start >= tokens:
            return Exact().bind(binding)
        nodes = self.draw.nodes(cloud.measure, cloud.points, m, binding.seed)
        return dataclasses.replace(self, nodes=nodes.part(start, stop))

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        return subset_means(q, asked, kv, beta, causal, check_bound(self.nodes))


Drawn = TypeVar("Drawn")


def check_bound(drawn: Drawn | None) -> Drawn:
    if drawn is None:
        reject("nodes", None, "the estimate was not bound", "Bind the operator: operator.bind(Binding(cloud)).")
    return drawn


def subset_means(q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool, nodes: Nodes) -> Means:
    """The mean over given nodes: O(queries * nodes) operations, twice differentiable."""
    integral.check_own(asked, kv.measure, causal)
    keys, values = nodes.of(kv)
    log_weight = nodes.log_weight(kv.measure)[:, None, None, :]
    if not causal:
        return in_blocks(lambda rows: softmax_means(q[:, :, rows], keys, values, beta, log_weight), q.shape[2])
    seen = integral.visible(asked, kv.measure, q.device, nodes.chosen).unsqueeze(1)  # (batch 1 queries nodes)
    own = None
    if asked is kv.measure:  # a row's own token is counted apart, unless it has no mass
        log_own = asked.log_mass if asked.log_own is None else asked.log_own
        own = beta * (q * kv.keys).sum(-1, keepdim=True)  # beta <q_i, k_i> + log w_ii
        own = own if log_own is None else own + log_own[:, None, :, None]
        heavy = torch.ones_like(seen[..., :1]) if asked.heavy is None else asked.heavy[:, None, :, None]
        rows = torch.arange(q.shape[2], device=q.device)
        seen = torch.cat([heavy, seen & (nodes.chosen[:, None, None, :] != rows[:, None])], -1)

    def block(rows: slice) -> Tensor:
        logits = beta * (q[:, :, rows] @ keys.transpose(-1, -2)) + log_weight
        if own is None:
            return integral.softmax_over(logits, seen[:, :, rows]) @ values
        alpha = integral.softmax_over(torch.cat([own[:, :, rows], logits], -1), seen[:, :, rows])
        return alpha[..., :1] * kv.values[:, :, rows] + alpha[..., 1:] @ values

    return in_blocks(block, q.shape[2])


def softmax_means(q: Tensor, keys: Tensor, values: Tensor, beta: float, log_weight: Tensor | float = 0.0) -> Tensor:
    """softmax(beta q k + log_weight) v."""
    return torch.softmax(beta * (q @ keys.transpose(-1, -2)) + log_weight, -1) @ values


def in_blocks(means: Callable[[slice], Tensor], queries: int) -> Tensor:
    """The means of all queries, from those of blocks that fit in a cache: the time of a query then stays the same."""
    if queries <= _BLOCK:
        return means(slice(None))
    return torch.cat([means(slice(start, start + _BLOCK)) for start in range(0, queries, _BLOCK)], 2)


class Level(NamedTuple):
    """One drawn term of the telescoping sum."""

    nodes: Nodes
    """The 2^l m nodes."""
    m: int
    probability: float
    exact: bool
    """The finer side is the exact integral."""


@final
@dataclasses.dataclass(frozen=True)
class Debiased(AbstractEstimate):
    """y = y_m + Delta_l / P(l) with one level l drawn at random: an unbiased attention output.

    y_m is the subset estimate over m nodes, Delta_l = y_{2^l m} - (y' + y'')/2 the gain of 2^l m nodes over their two
    halves, and the last level has the exact integral on its finer side: sum_l E Delta_l = exact - E y_m. C.-H. Rhee and
    P. W. Glynn, Unbiased estimation with square root convergence for SDE models, Oper. Res. 63 (2015). The exact term
    costs O(T^2) and comes with probability ~ (m/T)^1.5. One level serves all sequences of a solve, each with nodes of
    its own.

    Unbiased is the output of one attention. A loss behind a nonlinear flow is biased all the same: that is what
    `continua.control.DebiasedObjective` is for. In evaluation, without a seed, it is one fixed draw.
    """

    level: Level | None = dataclasses.field(default=None, compare=False, repr=False)
    materialised: bool = False
    """The exact term is twice differentiable; set by `bind`."""

    def bind(self, binding: Binding) -> AbstractTokenIntegral:
        cloud = binding.offering
        m, tokens = self._sizes(cloud.measure)
        if m >= tokens:
            return Exact().bind(binding)
        last = max(1, math.ceil(math.log2(tokens / m)))  # the first level with as many nodes as tokens
        drawn, probability = draw_level(last, branch_seed(binding.seed or 0, 0))
        seed = None if binding.seed is None else branch_seed(binding.seed, 1)
        nodes = Independent().nodes(cloud.measure, cloud.points, m * 2**drawn, seed)
        level = Level(nodes, m, probability, drawn == last)
        return dataclasses.replace(self, level=level, materialised=binding.second_derivatives)

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        nodes, m, probability, exact = check_bound(self.level)
        size = nodes.chosen.shape[1]

        def over(start: int, stop: int) -> Means:
            return subset_means(q, asked, kv, beta, causal, nodes.part(start, stop))

        whole = Exact(self.materialised)
        fine = whole.means(q, asked, kv, beta, causal) if exact else over(0, size)
        gain = fine - 0.5 * (over(0, size // 2) + over(size // 2, size))
        return over(0, m) + gain / probability


@final
@dataclasses.dataclass(frozen=True)
class Nystrom(AbstractEstimate):
    """y = F A^+ B v with F = softmax(q k~), A = softmax(q~ k~), B = softmax(q~ k + log w), over m landmarks q~, k~.

    Deterministic: the landmarks are the tokens at equispaced quantiles of the mass, and queries that are no tokens give
    equispaced ones of their own. Y. Xiong et al., Nystromformer, AAAI 2021. A^+ = A^T (A A^T + ridge)^-1 damps singular
    values below sqrt(ridge): the landmarks of a smooth signal are nearly dependent, and a pseudo-inverse that cuts them
    off would jump along depth. Refused where attention is causal: a landmark would carry later tokens into earlier
    rows.
    """

    serves_causal: ClassVar[bool] = False
    ridge: float = 1e-6
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)
    materialised: bool = False
    """B is twice differentiable; set by `bind`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(none=False, all=False, ridge=self.ridge)

    def bind(self, binding: Binding) -> AbstractTokenIntegral:
        cloud = binding.offering
        m, tokens = self._sizes(cloud.measure)
        if m >= tokens:
            return Exact().bind(binding)
        middles = (torch.arange(m, dtype=torch.float64) + 0.5) / m
        nodes = nodes_at(middles.unsqueeze(0), cloud.measure, cloud.points)
        return dataclasses.replace(self, nodes=nodes, materialised=binding.second_derivatives)

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        assert not causal, "Attention refuses it"
        return self.spread(q, self.exact(self.landmarks(q, asked, kv), kv, beta), asked, kv, beta)

    def landmarks(self, q: Queries, asked: Measure, kv: KeyValues) -> Float[Tensor, "batch heads landmarks key"]:
        """The landmark queries q~."""
        chosen = check_bound(self.nodes).chosen
        if asked is kv.measure:
            return q.take_along_dim(chosen[:, None, :, None], 2)
        return q[:, :, torch.linspace(0, q.shape[2] - 1, chosen.shape[1], device=q.device).round().long()]

    def exact(self, rows: Queries, kv: KeyValues, beta: float) -> Means:
        """B v: the means of the landmark queries over all tokens."""
        return Exact(self.materialised).means(rows, kv.measure, kv, beta, causal=False)

    def spread(self, q: Queries, means: _AtLandmarks, asked: Measure, kv: KeyValues, beta: float) -> Means:
        """F A^+ means: from the landmarks to all queries."""
        keys, _ = check_bound(self.nodes).of(kv)
        near = torch.softmax(beta * (self.landmarks(q, asked, kv) @ keys.transpose(-1, -2)), -1)
        a = near.double()  # the product squares the condition number
        gram = a @ a.mT + self.ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        values = torch.linalg.solve(gram, a).mT.to(near.dtype) @ means
        return in_blocks(lambda rows: softmax_means(q[:, :, rows], keys, values, beta), q.shape[2])


@final
@dataclasses.dataclass(frozen=True)
class ControlVariate(AbstractEstimate):
    """y = y_subset + (y_low-rank - y_low-rank over the same subset): the subset with a control variate.

    What the landmarks of `low_rank` explain is summed over all tokens; only the rest is left to chance. As biased as
    the two subset estimates, O(1/m), and of smaller variance the better the low rank. With m >= T, or as many
    landmarks, the integral is taken exactly. Refused where attention is causal.
    """

    serves_causal: ClassVar[bool] = False
    low_rank: Nystrom
    draw: AbstractDraw = Independent()
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)

    def bind(self, binding: Binding) -> AbstractTokenIntegral:
        subset, low_rank = Subset(self.m, self.draw).bind(binding), self.low_rank.bind(binding)
        if not isinstance(subset, Subset) or not isinstance(low_rank, Nystrom):
            return Exact().bind(binding)
        return dataclasses.replace(self, nodes=subset.nodes, low_rank=low_rank)

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        assert not causal, "Attention refuses it"
        nodes, low_rank = check_bound(self.nodes), self.low_rank
        rows = low_rank.landmarks(q, asked, kv)
        missed = low_rank.exact(rows, kv, beta) - subset_means(rows, asked, kv, beta, False, nodes)
        explained = low_rank.spread(q, missed, asked, kv, beta)
        return subset_means(q, asked, kv, beta, False, nodes) + explained
