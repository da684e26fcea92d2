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
from continua.operators.operator import Binding
from continua.spaces import Measure


class KeyValues(NamedTuple):
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
    def bind(self, binding: Binding) -> "AbstractTokenIntegral":
        """This way with its nodes drawn, on a path that can be differentiated twice if the binding says so."""

    @abc.abstractmethod
    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
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

    def bind(self, binding: Binding) -> "Exact":
        return Exact(materialised=True) if binding.second_derivatives else self

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        k, v, measure = kv
        own = causal and measure.log_own is not None
        if own:
            check_own(asked, measure, causal)
        # torch's causal mask is by index: right for tokens in the order of time, each of which sees itself. Ties see
        # each other, an early query sees nothing, and other queries have times of their own.
        in_order = not causal or (asked is measure and not measure.tied and not measure.early)
        if self.materialised or not in_order:
            return attention_matrix(q, asked, kv, beta, causal) @ v
        log_mass, mask, folded = measure.log_mass, None, own
        if own:
            q, k, v, beta = *_fold_own_rows(q, kv, beta), 1.0
        elif (causal and measure.uniform and measure.suffix) or log_mass is None:
            # Padding at the end lies in everybody's future, and equal masses cancel. In this order: a compiler that
            # has not looked at `log_mass` needs no graph of its own for batches without padding.
            pass
        elif causal or log_mass.requires_grad:  # a mask with a gradient, or beside is_causal, would not be fused
            q, k, beta, folded = *_fold_masses(q, k, log_mass, beta), 1.0, True
        else:
            mask = log_mass[:, None, None, :]
        if beta <= 0:  # the fused kernel multiplies the -inf of its causal mask by the scale
            q, beta = q * beta, 1.0
        size = v.shape[-1]
        if q.shape[-1] != size:
            q, k, v = _pad(q, k, v)
        if folded and torch.is_autocast_enabled(q.device.type):  # in half precision log 0 would not be finite
            with torch.autocast(q.device.type, enabled=False):
                q, k, v = (x.to(kv.measure.tensors[0].dtype) for x in (q, k, v))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=beta)[..., :size]
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=beta)[..., :size]
        return y[..., :-1] + y[..., -1:] * kv.values if own else y


def check_own(asked: Measure, measure: Measure, causal: bool) -> None:
    """Rejects own masses where causal queries are not the tokens that have them."""
    if causal and measure.log_own is not None and asked is not measure:
        why = "these queries are not the tokens that answer, and own masses belong to a token's own row"
        reject("own", "given", why, "Use a rule without own masses, such as BackwardRectangle.")


def _fold_masses(q: Queries, k: Tensor, log_mass: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """q' = [beta q, 1] and k' = [k, log w], whose inner product is the tilted logit beta <q, k> + log w."""
    ones = q.new_ones(()).expand(*q.shape[:-1], 1)
    column = log_mass[:, None, :, None].expand(*k.shape[:-1], 1)
    return torch.cat([q * beta, ones], -1), torch.cat([k, column], -1)


def _fold_own_rows(q: Queries, kv: KeyValues, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Causal rows that differ on the diagonal alone: token i weighs own_i in its own row and w_i in later ones.

    The log-sum-exp merge of {j < i} with {i} is left to the fused kernel. An extra first key, the probe, is seen by all
    rows and pushes the diagonal out of sight (row i of a causal square sees the keys 0..i: the probe and j < i). Its
    logit in row i is that of the diagonal, <q'_i, probe> = beta <q_i,k_i> + log own_i, and its value reports the
    weight alpha_ii that the row gives it, so y_i = sum_{j<i} alpha_ij v_j + alpha_ii v_i.
    """
    k, v, measure = kv
    assert measure.log_own is not None
    q = q * beta
    diagonal = (q * k).sum(-1, keepdim=True) + measure.log_own[:, None, :, None]
    ones = q.new_ones(()).expand_as(diagonal)
    columns = diagonal.new_zeros(()) if measure.log_mass is None else measure.log_mass[:, None, :, None]
    folded_q = torch.cat([q, ones, diagonal], -1)
    folded_k = torch.cat([k, columns.expand_as(diagonal), torch.zeros_like(diagonal)], -1)
    reports = torch.cat([v, torch.zeros_like(diagonal)], -1)
    return folded_q, _with_probe(folded_k), _with_probe(reports)


def _with_probe(rows: Tensor) -> Tensor:
    """A first row e_last before all but the last of `rows`."""
    probe = torch.zeros_like(rows[..., :1, :])
    probe[..., -1] = 1.0
    return torch.cat([probe, rows[..., :-1, :]], -2)


def _pad(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fused kernels want one size for keys and values: the shorter gets zeros, which change no inner product."""
    missing = q.shape[-1] - v.shape[-1]
    if missing > 0:
        return q, k, F.pad(v, (0, missing))
    return F.pad(q, (0, -missing)), F.pad(k, (0, -missing)), v


def attention_matrix(
    q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool
) -> Float[Tensor, "batch heads queries tokens"]:
    """alpha_ij = w_j e^{beta <q_i, k_j>} / sum_l w_l e^{beta <q_i, k_l>}, in O(queries * tokens) memory.

    The row of a causal query that sees no token is zero.
    """
    k, _, measure = kv
    logits = beta * (q @ k.transpose(-1, -2))
    if measure.log_mass is not None:
        logits = logits + measure.log_mass[:, None, None, :]
    if not causal:
        return torch.softmax(logits, -1)
    if measure.log_own is not None:
        diagonal = beta * (q * k).sum(-1) + measure.log_own[:, None, :]
        here = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
        logits = torch.where(here, diagonal.unsqueeze(-1), logits)
    return softmax_over(logits, visible(asked, measure, q.device).unsqueeze(1))


def softmax_over(logits: Tensor, seen: Tensor) -> Tensor:
    """The softmax over what is seen, and zero in a row that sees nothing: the mean of the empty measure is zero."""
    alone = ~seen.any(-1, keepdim=True)
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
        t = s = torch.arange(asked.shape[1], device=device).expand(asked.shape)
    heavy = measure.heavy
    if nodes is not None:
        s = s.gather(1, nodes)
        heavy = None if heavy is None else heavy.gather(1, nodes)
    seen = t[:, :, None] >= s[:, None, :]
    return seen if heavy is None else seen & heavy[:, None, :]
