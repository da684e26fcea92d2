"""The token integral of attention: the mean of values under the tilted measure e^{beta <q,k>} mu.

    y_i = sum_j w_j e^{beta <q_i, k_j>} v_j / sum_j w_j e^{beta <q_i, k_j>}

The weights stand inside the softmax, once, hence in numerator and normaliser (docs/mathematics.md, section 1).
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Tensor
from continua.operators.operator import Context
from continua.spaces import Measure


class Memory(NamedTuple):
    """What tokens offer to queries: keys and values of every head, on the measure they belong to."""

    keys: Float[Tensor, "batch heads tokens key"]
    values: Float[Tensor, "batch heads tokens value"]
    measure: Measure


Queries = Float[Tensor, "batch heads queries key"]
Means = Float[Tensor, "batch heads queries value"]


class AbstractTokenIntegral(abc.ABC):
    """A way to evaluate the token integral: exact, or by an estimate."""

    serves_causal: ClassVar[bool] = True
    """Whether the measure of a query may be restricted to the tokens before it."""

    @abc.abstractmethod
    def bind(self, context: Context) -> "AbstractTokenIntegral":
        """This way with its nodes drawn, on a path that can be differentiated twice if the context says so."""

    @abc.abstractmethod
    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        """y_i for every query; `asked` is the measure of the queries (their times decide what a causal one sees)."""


@final
@dataclasses.dataclass(frozen=True)
class Exact(AbstractTokenIntegral):
    """y_i = sum_j alpha_ij v_j over every token, in O(tokens) memory, by torch's fused attention.

    Reference implementation: `torch.nn.functional.scaled_dot_product_attention`, to which this is equal on the counting
    measure. Masses are folded into the inner product, q' = [beta q, 1], k' = [k, log w], because a mask that needs a
    gradient, or meets causality, would leave the fused path.

    With `materialised=True` the kernel alpha is formed in O(queries * tokens) memory instead: the path for second
    derivatives and forward mode. It is also taken where no fused kernel knows the rows: causal queries that are not the
    tokens themselves, or tokens that share a time.
    """

    materialised: bool = False

    def bind(self, context: Context) -> "Exact":
        return Exact(materialised=True) if context.second_order else self

    def means(self, q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
        itself = asked is memory.measure
        check_own(asked, memory.measure, causal)
        in_order = not causal or (itself and not memory.measure.tied and not memory.measure.early)
        if self.materialised or not in_order:
            return _materialised(q, asked, memory, beta, causal)
        if causal and memory.measure.log_own is not None:
            return _own_row(q, memory, beta)
        return _fused(q, memory, beta, causal)


def check_own(asked: Measure, measure: Measure, causal: bool) -> None:
    """Rejects own masses where causal queries are not the tokens that have them."""
    if causal and measure.log_own is not None and asked is not measure:
        why = "these queries are not the tokens of the memory, and own masses belong to a token's own row"
        reject("own", "given", why, "Use a rule without own masses, such as BackwardRectangle.")


def _fused(q: Queries, memory: Memory, beta: float, causal: bool) -> Means:
    k, v, measure = memory
    log_mass = measure.log_mass
    if causal and measure.even and measure.suffix:
        log_mass = None  # padding at the end lies in everybody's future, and equal masses cancel
    if log_mass is None:
        return _attention(q, k, v, beta, causal)
    if not causal and not log_mass.requires_grad:
        return _attention(q, k, v, beta, False, log_mass[:, None, None, :])
    ones = q.new_ones(()).expand(*q.shape[:-1], 1)
    folded_q = torch.cat([q * beta, ones], -1)
    folded_k = torch.cat([k, log_mass[:, None, :, None].expand(*k.shape[:-1], 1)], -1)
    return _attention(folded_q, folded_k, v, 1.0, causal)


def _own_row(q: Queries, memory: Memory, beta: float) -> Means:
    """Causal rows that differ on the diagonal alone: token i weighs own_i in its own row and w_i in later ones.

    The log-sum-exp merge of {j < i} with {i} is left to the fused kernel. An extra first key, the probe, is seen by all
    rows and pushes the diagonal out of sight (row i of a causal square sees the keys 0..i: the probe and j < i). Its
    logit in row i is that of the diagonal, <q'_i, probe> = beta <q_i,k_i> + log own_i, and its value reports the
    weight alpha_ii that the row gives it, so y_i = sum_{j<i} alpha_ij v_j + alpha_ii v_i.
    """
    k, v, measure = memory
    assert measure.log_own is not None
    q = q * beta
    diagonal = (q * k).sum(-1, keepdim=True) + measure.log_own[:, None, :, None]
    ones = q.new_ones(()).expand_as(diagonal)
    columns = diagonal.new_zeros(()) if measure.log_mass is None else measure.log_mass[:, None, :, None]
    folded_q = torch.cat([q, ones, diagonal], -1)
    folded_k = torch.cat([k, columns.expand_as(diagonal), torch.zeros_like(diagonal)], -1)
    reports = torch.cat([v, torch.zeros_like(diagonal)], -1)
    y = _attention(folded_q, _with_probe(folded_k), _with_probe(reports), 1.0, causal=True)
    return y[..., :-1] + y[..., -1:] * v


def _with_probe(rows: Tensor) -> Tensor:
    """A first row e_last before all but the last of `rows`."""
    probe = torch.zeros_like(rows[..., :1, :])
    probe[..., -1] = 1.0
    return torch.cat([probe, rows[..., :-1, :]], -2)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None = None) -> Tensor:
    """Fused attention for any scale and value size: head sizes must agree, so the shorter is padded with zeros."""
    if scale <= 0:  # the fused kernel multiplies the -inf of its causal mask by the scale
        q, scale = q * scale, 1.0
    key, value = q.shape[-1], v.shape[-1]
    if value < key:
        v = F.pad(v, (0, key - value))
    elif key < value:
        q, k = F.pad(q, (0, value - key)), F.pad(k, (0, value - key))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return y[..., :value]


def _materialised(q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool) -> Means:
    return tilted(q, asked, memory, beta, causal) @ memory.values


def tilted(
    q: Queries, asked: Measure, memory: Memory, beta: float, causal: bool
) -> Float[Tensor, "batch heads queries tokens"]:
    """alpha_ij = w_j e^{beta <q_i, k_j>} / sum_l w_l e^{beta <q_i, k_l>}, in O(queries * tokens) memory.

    The row of a causal query that sees no token is zero.
    """
    k, _, measure = memory
    logits = beta * (q @ k.transpose(-1, -2))
    if measure.log_mass is not None:
        logits = logits + measure.log_mass[:, None, None, :]
    if not causal:
        return torch.softmax(logits, -1)
    if measure.log_own is not None:
        diagonal = beta * (q * k).sum(-1) + measure.log_own[:, None, :]
        here = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
        logits = torch.where(here, diagonal.unsqueeze(-1), logits)
    seen = visible(asked, measure, q.device).unsqueeze(1)
    alone = ~seen.any(-1, keepdim=True)  # sees the empty measure, whose mean is zero
    alpha = torch.softmax(logits.masked_fill(~(seen | alone), -torch.inf), -1)
    return alpha.masked_fill(alone, 0.0)


def visible(
    asked: Measure, measure: Measure, device: torch.device, nodes: Int[Tensor, "batch nodes"] | None = None
) -> Bool[Tensor, "batch queries tokens"]:
    """Which tokens a causal query sees, all or some nodes: those with mass and t_j <= t_i; ties see each other."""
    t, s = asked.positions, measure.positions
    if (t is None or s is None) and asked is not measure:
        cure = "Give both clouds positions, or use attention that is not causal."
        reject("positions", None, "a causal query needs its time and those of the tokens", cure)
    if t is None or s is None:
        index = torch.arange(asked.shape[1], device=device).expand(asked.shape)
        t = s = index
    heavy = measure.heavy
    if nodes is not None:
        s = s.gather(1, nodes)
        heavy = None if heavy is None else heavy.gather(1, nodes)
    seen = t[:, :, None] >= s[:, None, :]
    return seen if heavy is None else seen & heavy[:, None, :]
