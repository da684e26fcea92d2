"""The token integral over a random subset of the tokens, and its unbiased form by randomised telescoping."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar, final

import torch

from continua.core.errors import reject
from continua.core.seeds import branch_seed
from continua.core.shapes import Tensor
from continua.operators.integral import (
    AbstractTokenIntegral,
    Exact,
    Means,
    Memory,
    Queries,
    check_own,
    softmax_over,
    visible,
)
from continua.operators.nodes import (
    AbstractDraw,
    Count,
    Independent,
    Nodes,
    check_count,
    draw_level,
    nodes_for,
    tokens_of,
)
from continua.operators.operator import Context
from continua.spaces import Measure

_BLOCK = 1024
"""Queries that are answered together."""


@final
@dataclasses.dataclass(frozen=True)
class Subset(AbstractTokenIntegral):
    """y_i = sum_s u_s e^{beta <q_i, k_s>} v_s / sum_s u_s e^{beta <q_i, k_s>} over m nodes s, u_s = w_s / (m pi_s).

    Numerator and normaliser are unbiased, their quotient is not: the bias is O(1/m) (docs/mathematics.md, section 6).
    A causal row always holds its own token, with its own mass, beside the earlier nodes; a query that sees no node
    gets the mean of the empty measure, zero. Nodes are drawn with replacement when the flow is bound, and stay for the
    solve. With m >= T, the tokens with mass in the longest sequence, the integral is taken exactly.

    `kept = (start, stop)` draws m nodes and uses some of them, as a smaller draw: subsets of different sizes that share
    nodes, wherever they meet the same seed.
    """

    m: Count
    draw: AbstractDraw = Independent()
    kept: tuple[int, int] | None = None
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_count(self.m)
        if self.kept is not None and not (isinstance(self.m, int) and 0 <= self.kept[0] < self.kept[1] <= self.m):
            reject("kept", self.kept, f"m = {self.m}: this is no part of the nodes", "Pass 0 <= start < stop <= m.")

    def bind(self, context: Context) -> AbstractTokenIntegral:
        cloud = context.offering
        tokens = tokens_of(cloud.measure)
        m = nodes_for(self.m, tokens)
        start, stop = (0, m) if self.kept is None else self.kept
        if stop - start >= tokens:
            return Exact().bind(context)
        nodes = self.draw.nodes(cloud.measure, cloud.points, m, context.seed)
        return dataclasses.replace(self, nodes=nodes.part(start, stop))

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        return subset_means(q, asked, memory, beta, causal, check_bound(self.nodes))


Drawn = TypeVar("Drawn")


def check_bound(drawn: Drawn | None) -> Drawn:
    """What an estimate has drawn, if it has been bound."""
    if drawn is None:
        reject("nodes", None, "the estimate was not bound", "Bind the operator: operator.bind(Context(cloud)).")
    return drawn


def subset_means(q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool, nodes: Nodes) -> Means:
    """The mean over given nodes: O(queries * nodes) operations, twice differentiable."""
    check_own(asked, memory.measure, causal)
    keys, values = nodes.of(memory)
    log_weight = nodes.log_weight(memory.measure)[:, None, None, :]
    if not causal:
        return in_blocks(lambda rows: softmax_means(q[:, :, rows], keys, values, beta, log_weight), q.shape[2])
    seen = visible(asked, memory.measure, q.device, nodes.chosen).unsqueeze(1)  # (batch 1 queries nodes)
    own = None
    if asked is memory.measure:  # a row's own token is counted apart, unless it has no mass
        log_own = asked.log_mass if asked.log_own is None else asked.log_own
        own = beta * (q * memory.keys).sum(-1, keepdim=True)  # beta <q_i, k_i> + log w_ii
        own = own if log_own is None else own + log_own[:, None, :, None]
        heavy = torch.ones_like(seen[..., :1]) if asked.heavy is None else asked.heavy[:, None, :, None]
        rows = torch.arange(q.shape[2], device=q.device)
        seen = torch.cat([heavy, seen & (nodes.chosen[:, None, None, :] != rows[:, None])], -1)

    def block(rows: slice) -> Tensor:
        logits = beta * (q[:, :, rows] @ keys.transpose(-1, -2)) + log_weight
        if own is None:
            return softmax_over(logits, seen[:, :, rows]) @ values
        alpha = softmax_over(torch.cat([own[:, :, rows], logits], -1), seen[:, :, rows])
        return alpha[..., :1] * memory.values[:, :, rows] + alpha[..., 1:] @ values

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
class Debiased(AbstractTokenIntegral):
    """y = y_m + Delta_l / P(l) with one level l drawn at random: an unbiased attention output.

    y_m is the subset estimate over m nodes, Delta_l = y_{2^l m} - (y' + y'')/2 the gain of 2^l m nodes over their two
    halves, and the last level has the exact integral on its finer side: sum_l E Delta_l = exact - E y_m. C.-H. Rhee and
    P. W. Glynn, Unbiased estimation with square root convergence for SDE models, Oper. Res. 63 (2015). The exact term
    costs O(T^2) and comes with probability ~ (m/T)^1.5. One level serves all sequences of a solve, each with nodes of
    its own. With m >= T the integral is taken exactly.

    Unbiased is the output of one attention. A loss behind a nonlinear flow is biased all the same: that is what
    `continua.control.DebiasedObjective` is for. In evaluation, without a seed, it is one fixed draw.
    """

    m: Count
    level: Level | None = dataclasses.field(default=None, compare=False, repr=False)
    materialised: bool = False
    """The exact term is twice differentiable; set by `bind`."""

    def __post_init__(self) -> None:
        check_count(self.m)

    def bind(self, context: Context) -> AbstractTokenIntegral:
        cloud = context.offering
        tokens = tokens_of(cloud.measure)
        m = nodes_for(self.m, tokens)
        if m >= tokens:
            return Exact().bind(context)
        last = max(1, math.ceil(math.log2(tokens / m)))  # the first level with as many nodes as tokens
        drawn, probability = draw_level(last, branch_seed(context.seed or 0, 0))
        seed = None if context.seed is None else branch_seed(context.seed, 1)
        nodes = Independent().nodes(cloud.measure, cloud.points, m * 2**drawn, seed)
        level = Level(nodes, m, probability, drawn == last)
        return dataclasses.replace(self, level=level, materialised=context.second_order)

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        nodes, m, probability, exact = check_bound(self.level)
        size = nodes.chosen.shape[1]

        def over(start: int, stop: int) -> Means:
            return subset_means(q, asked, memory, beta, causal, nodes.part(start, stop))

        whole = Exact(self.materialised)
        fine = whole.means(q, asked, memory, beta, causal) if exact else over(0, size)
        gain = fine - 0.5 * (over(0, size // 2) + over(size // 2, size))
        return over(0, m) + gain / probability
