"""The one attention of the project: softmax attention as an integral operator on measures."""

import dataclasses
import math
from typing import NamedTuple, final

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Tensor
from continua.operators.integral import AbstractTokenIntegral, Exact, Memory
from continua.operators.linear import linear
from continua.operators.operator import AbstractOperator, Context
from continua.operators.parameters import bias, weight
from continua.spaces.cloud import Cloud


class AttentionTheta(NamedTuple):
    """Parameters of the heads at one depth, and their masses p (`None`: the counting measure, p_k = 1)."""

    q: Float[Tensor, "*batched heads key width"]
    k: Float[Tensor, "*batched heads key width"]
    v: Float[Tensor, "*batched heads value width"]
    o: Float[Tensor, "*batched heads value width"]
    bq: Float[Tensor, "*batched heads key"] | None = None
    bk: Float[Tensor, "*batched heads key"] | None = None
    bv: Float[Tensor, "*batched heads value"] | None = None
    bo: Float[Tensor, "*batched width"] | None = None
    p: Float[Tensor, "*batched heads"] | None = None


@final
@dataclasses.dataclass(frozen=True)
class Attention(AbstractOperator):
    """A(x, mu, nu) = sum_k p_k O_k^T sum_j softmax_j( beta <Q_k x, K_k x_j> + log w_j ) V_k x_j.

    The mean of V x_j under the measure mu tilted by e^{beta <Qx, Kx_j>}, integrated over the head measure
    nu = sum_k p_k delta_{theta_k} (docs/mathematics.md, section 1). Q, K and V are affine unless `biased=False`, and a
    bias bo is added to the whole. With counting measures it is the multi-head attention of
    `torch.nn.MultiheadAttention`, exactly.

    `value` defaults to `key`, `beta` to 1/sqrt(key). `causal` restricts the measure of query i to t_j <= t_i.
    """

    heads: int
    key: int
    value: int | None = None
    beta: float | None = None
    causal: bool = False
    biased: bool = True
    integral: AbstractTokenIntegral = Exact()

    def __post_init__(self) -> None:
        for name, size in (("heads", self.heads), ("key", self.key), ("value", self._value)):
            if size < 1:
                reject(name, size, "attention needs at least one", f"Pass {name} >= 1.")
        if self.beta is not None and not math.isfinite(self.beta):
            reject("beta", self.beta, "the inverse temperature is not finite", "Pass a number or None.")

    @property
    def _value(self) -> int:
        return self.key if self.value is None else self.value

    @property
    def inverse_temperature(self) -> float:
        """beta, or its default 1/sqrt(key)."""
        return 1.0 / math.sqrt(self.key) if self.beta is None else self.beta

    def spec(self, width: int) -> AttentionTheta:
        heads, key, value = self.heads, self.key, self._value
        weights = AttentionTheta(
            q=weight((heads, key, width), width),
            k=weight((heads, key, width), width),
            v=weight((heads, value, width), width),
            o=weight((heads, value, width), heads * value),
        )
        if not self.biased:
            return weights
        return weights._replace(
            bq=bias((heads, key)), bk=bias((heads, key)), bv=bias((heads, value)), bo=bias((width,))
        )

    def bind(self, context: Context) -> "Attention":
        return dataclasses.replace(self, integral=self.integral.twice()) if context.twice else self

    def memory(self, theta: AttentionTheta, cloud: Cloud) -> Memory:
        keys = _to_heads(cloud.points, theta.k, theta.bk)
        values = _to_heads(cloud.points, theta.v, theta.bv)
        return Memory(keys, values, cloud.measure)

    def attend(self, theta: AttentionTheta, queries: Cloud, memory: Memory) -> Points:
        q = _to_heads(queries.points, theta.q, theta.bq)
        y = self.integral.means(q, queries.measure, memory, self.inverse_temperature, self.causal)
        if theta.p is not None:
            y = y * theta.p[..., :, None, None]  # (batch heads queries value), p over heads
        y = y.transpose(1, 2).flatten(2)  # (batch queries heads*value)
        return linear(y, theta.o.flatten(-3, -2).transpose(-1, -2), theta.bo)


def _to_heads(
    x: Points, w: Float[Tensor, "*batched heads key width"], b: Float[Tensor, "*batched heads key"] | None
) -> Float[Tensor, "batch heads tokens key"]:
    y = linear(x, w.flatten(-3, -2), None if b is None else b.flatten(-2))
    return y.unflatten(-1, w.shape[-3:-1]).transpose(1, 2)
