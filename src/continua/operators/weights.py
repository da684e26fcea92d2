"""The weights alpha_ij that attention gives, for whoever wants to look at them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, final

from continua.core.shapes import Float, Tensor
from continua.operators.integral import AbstractTokenIntegral, Means, Memory, Queries, check_own, attention_matrix
from continua.operators.operator import AbstractOperator, Context
from continua.operators.parameters import Theta
from continua.operators.resolution import with_integral
from continua.spaces import Cloud, Measure

Weights = Float[Tensor, "batch heads queries tokens"]


class Kernel(NamedTuple):
    """The weights of one attention, and the measure of the tokens that answer: those of the cloud, or of a memory."""

    weights: Weights
    answering: Measure


@final
@dataclasses.dataclass(frozen=True)
class Watched(AbstractTokenIntegral):
    """The exact token integral that forms alpha, O(queries * tokens) in memory, and hands it to `show`, detached."""

    show: Callable[["Kernel"], None]

    def bind(self, context: Context) -> "Watched":
        return self

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        check_own(asked, memory.measure, causal)
        alpha = attention_matrix(q, asked, memory, beta, causal)
        self.show(Kernel(alpha.detach(), memory.measure))
        return alpha @ memory.values


def attention_kernels(
    operator: AbstractOperator, theta: Theta, cloud: Cloud, memory: Cloud | None = None
) -> list[Kernel]:
    """`attention_weights`, each with the measure that it sums over."""
    found: list[Kernel] = []
    watched = with_integral(operator, Watched(found.append)).bind(Context(cloud, memory))
    watched.velocity(theta, cloud)
    return found


def attention_weights(
    operator: AbstractOperator, theta: Theta, cloud: Cloud, memory: Cloud | None = None
) -> list[Weights]:
    """alpha_ij of every attention inside an operator, in the order in which they act; none where there is none.

    Rows sum to one, and are those of the exact softmax wherever the operator itself would estimate. Norms, rotary
    positions, masses and causality are those of the operator. On the counting measure: the weights of
    `torch.nn.MultiheadAttention` before they are averaged over heads.
    """
    return [kernel.weights for kernel in attention_kernels(operator, theta, cloud, memory)]
