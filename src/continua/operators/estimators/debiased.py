"""An unbiased estimate of the token integral by randomised telescoping."""

import dataclasses
from typing import NamedTuple, final

from continua.core.errors import reject
from continua.core.seeds import branched
from continua.operators.estimators.draws import Independent
from continua.operators.estimators.levels import drawn_level, last_level
from continua.operators.estimators.nodes import Count, Nodes, check_count, nodes_for, tokens_of
from continua.operators.estimators.subset import subset_means
from continua.operators.integral import AbstractTokenIntegral, Exact, Means, Memory, Queries
from continua.operators.operator import Context
from continua.spaces import Measure


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
        check_count("m", self.m)

    def bind(self, context: Context) -> AbstractTokenIntegral:
        cloud = context.offering
        tokens = tokens_of(cloud.measure)
        m = nodes_for(self.m, tokens)
        if m >= tokens:
            return Exact().bind(context)
        last = last_level(m, tokens)
        drawn, probability = drawn_level(last, branched(context.seed or 0, 0))
        seed = None if context.seed is None else branched(context.seed, 1)
        nodes = Independent().nodes(cloud.measure, cloud.points, m * 2**drawn, seed)
        level = Level(nodes, m, probability, drawn == last)
        return dataclasses.replace(self, level=level, materialised=context.second_order)

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        if self.level is None:
            reject("level", None, "the estimate was not bound", "Bind the operator: operator.bind(Context(cloud)).")
        nodes, m, probability, exact = self.level
        size = nodes.chosen.shape[1]

        def over(start: int, stop: int) -> Means:
            return subset_means(q, asked, memory, beta, causal, nodes.part(start, stop))

        whole = Exact(self.materialised)
        fine = whole.means(q, asked, memory, beta, causal) if exact else over(0, size)
        gain = fine - 0.5 * (over(0, size // 2) + over(size // 2, size))
        return over(0, m) + gain / probability
