"""Low-rank attention through landmarks, and its use as a control variate."""

import dataclasses
from typing import ClassVar, final

import torch

from continua.core.checks import share
from continua.core.shapes import Float, Tensor
from continua.operators.integral import AbstractTokenIntegral, Exact, Means, Memory, Queries
from continua.operators.nodes import (
    AbstractDraw,
    Count,
    Independent,
    Nodes,
    check_count,
    nodes_at,
    nodes_for,
    tokens_of,
)
from continua.operators.operator import Context
from continua.operators.subset import Subset, check_bound, in_blocks, softmax_means, subset_means
from continua.spaces import Measure


@final
@dataclasses.dataclass(frozen=True)
class Nystrom(AbstractTokenIntegral):
    """y = F A^+ B v with F = softmax(q k~), A = softmax(q~ k~), B = softmax(q~ k + log w), over m landmarks q~, k~.

    Deterministic: the landmarks are the tokens at even quantiles of the mass, and queries that are no tokens give even
    ones of their own. Y. Xiong et al., Nystromformer, AAAI 2021. A^+ = A^T (A A^T + ridge)^-1 damps singular values
    below sqrt(ridge): the landmarks of a smooth signal are nearly dependent, and a pseudo-inverse that cuts them off
    would jump along depth. With m >= T the integral is taken exactly. Refused where attention is causal: a landmark
    would carry later tokens into earlier rows.
    """

    serves_causal: ClassVar[bool] = False
    m: Count
    ridge: float = 1e-6
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)
    materialised: bool = False
    """B is twice differentiable; set by `bind`."""

    def __post_init__(self) -> None:
        check_count(self.m)
        share(none=False, all=False, ridge=self.ridge)

    def bind(self, context: Context) -> AbstractTokenIntegral:
        cloud = context.offering
        tokens = tokens_of(cloud.measure)
        m = nodes_for(self.m, tokens)
        if m >= tokens:
            return Exact().bind(context)
        middles = (torch.arange(m, dtype=torch.float64) + 0.5) / m
        nodes = nodes_at(middles.unsqueeze(0), cloud.measure, cloud.points)
        return dataclasses.replace(self, nodes=nodes, materialised=context.second_order)

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        assert not causal, "Attention refuses it"
        return self.spread(q, self.exact(self.landmarks(q, asked, memory), memory, beta), asked, memory, beta)

    def landmarks(self, q: Queries, asked: Measure, memory: Memory) -> Float[Tensor, "batch heads landmarks key"]:
        """The landmark queries q~."""
        chosen = check_bound(self.nodes).chosen
        if asked is memory.measure:
            return q.take_along_dim(chosen[:, None, :, None], 2)
        return q[:, :, torch.linspace(0, q.shape[2] - 1, chosen.shape[1], device=q.device).round().long()]

    def exact(self, rows: Queries, memory: Memory, beta: float) -> Means:
        """B v: the means of the landmark queries over all tokens."""
        return Exact(self.materialised).means(rows, memory.measure, memory, beta, causal=False)

    def spread(
        self,
        q: Queries,
        means: Float[Tensor, "batch heads landmarks value"],
        asked: Measure,
        memory: Memory,
        beta: float,
    ) -> Means:
        """F A^+ means: from the landmarks to all queries."""
        keys, _ = check_bound(self.nodes).of(memory)
        near = torch.softmax(beta * (self.landmarks(q, asked, memory) @ keys.transpose(-1, -2)), -1)
        a = near.double()  # the product squares the condition number
        gram = a @ a.mT + self.ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        values = torch.linalg.solve(gram, a).mT.to(near.dtype) @ means
        return in_blocks(lambda rows: softmax_means(q[:, :, rows], keys, values, beta), q.shape[2])


@final
@dataclasses.dataclass(frozen=True)
class Controlled(AbstractTokenIntegral):
    """y = y_subset + (y_low-rank - y_low-rank over the same subset): the subset with a control variate.

    What the landmarks of `baseline` explain is summed over all tokens; only the rest is left to chance. As biased as
    the two subset estimates, O(1/m), and of smaller variance the better the low rank. With m >= T, or as many
    landmarks, the integral is taken exactly. Refused where attention is causal.
    """

    serves_causal: ClassVar[bool] = False
    m: Count
    baseline: Nystrom
    draw: AbstractDraw = Independent()
    nodes: Nodes | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_count(self.m)

    def bind(self, context: Context) -> AbstractTokenIntegral:
        subset, baseline = Subset(self.m, self.draw).bind(context), self.baseline.bind(context)
        if not isinstance(subset, Subset) or not isinstance(baseline, Nystrom):
            return Exact().bind(context)
        return dataclasses.replace(self, nodes=subset.nodes, baseline=baseline)

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        assert not causal, "Attention refuses it"
        nodes, low_rank = check_bound(self.nodes), self.baseline
        rows = low_rank.landmarks(q, asked, memory)
        missed = low_rank.exact(rows, memory, beta) - subset_means(rows, asked, memory, beta, False, nodes)
        explained = low_rank.spread(q, missed, asked, memory, beta)
        return subset_means(q, asked, memory, beta, False, nodes) + explained
