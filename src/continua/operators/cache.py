"""The token integral of a sequence that is read piece by piece: keys and values of earlier tokens are kept."""

import dataclasses
from typing import final

import torch

from continua.core.errors import reject
from continua.operators.attention import Attention
from continua.operators.compose import Dropout, Sum
from continua.operators.integral import AbstractTokenIntegral, Exact, KeyValues, Means, Queries
from continua.operators.norms import PostNorm, PreNorm
from continua.operators.operator import AbstractOperator, AbstractPointwise, Binding
from continua.spaces import Measure


@final
class KVCache:
    """What all earlier tokens offered, one `KeyValues` for each token integral of a solve, in the order of evaluation.

    A solve on a fixed grid of depth asks for the same integrals in the same order whatever the tokens are, so the n-th
    one of this piece goes on where the n-th one of the pieces before it ended.
    """

    def __init__(self) -> None:
        self._kept: list[KeyValues] = []
        self._place = 0
        self._measures: tuple[Measure, Measure] | None = None

    def begin(self) -> None:
        """The next integral is the first of a new piece of the sequence."""
        self._place, self._measures = 0, None

    def clear(self) -> None:
        self._kept = []
        self.begin()

    def append(self, kv: KeyValues) -> KeyValues:
        """Keys and values of all tokens so far, those of `kv` last; it is kept in place of what was kept here."""
        if self._place == len(self._kept):
            self._kept.append(kv)
        else:
            keys, values, measure = self._kept[self._place]
            keys, values = torch.cat([keys, kv.keys], 2), torch.cat([values, kv.values], 2)
            self._kept[self._place] = KeyValues(keys, values, self._measure(measure, kv.measure, keys))
        self._place += 1
        return self._kept[self._place - 1]

    def _measure(self, before: Measure, new: Measure, like: torch.Tensor) -> Measure:
        """The measure of all tokens, built once in a solve: all its integrals are on one measure."""
        if self._measures is None or self._measures[0] is not new:
            assert before.positions is not None and new.positions is not None
            positions = torch.cat([before.positions, new.positions], 1)
            self._measures = (new, Measure.of(tuple(positions.shape), like, positions=positions))
        return self._measures[1]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CachedIntegral(AbstractTokenIntegral):
    """The exact causal token integral of the tokens of one piece over these and all earlier ones, which `past` keeps.

        y_i = sum_{t_j <= t_i} e^{beta <q_i, k_j>} v_j / sum_{t_j <= t_i} e^{beta <q_i, k_j>} ,   i in the piece

    Equal to the rows of `Exact` on the whole sequence. Tokens weigh alike (the counting measure) and have positions,
    and each piece comes after those before it.
    """

    past: KVCache

    def bind(self, binding: Binding) -> "CachedIntegral":
        measure = binding.cloud.measure
        if measure.positions is None or measure.mass is not None:
            cure = "Pass Cloud(points, positions=...), the positions increasing from piece to piece."
            reject("cloud", measure.mass, "pieces of a sequence have times, and tokens that weigh alike", cure)
        return self

    def means(self, q: Queries, asked: Measure, kv: KeyValues, beta: float, causal: bool) -> Means:
        if not causal:
            cure = "Build it with Attention(..., causal=True)."
            reject("operator", "attention", "its earlier tokens would have to see later ones", cure)
        joined = self.past.append(kv)
        newest = q.shape[2] == 1  # sees all tokens there are, which the fused kernel need not be told
        return Exact().means(q, asked, joined, beta, causal=not newest)


def why_not_cacheable(operator: AbstractOperator) -> str | None:
    """Why the tokens of an operator cannot be read piece by piece; `None` where they can."""
    if isinstance(operator, AbstractPointwise):
        return None
    if isinstance(operator, Attention):
        if not operator.causal:
            return "its attention is not causal, so that every new token changes all earlier ones"
        exact = isinstance(operator.integral, Exact)
        return None if exact else f"its token integral is an estimate, {type(operator.integral).__name__}"
    if isinstance(operator, PreNorm | PostNorm | Dropout):
        return why_not_cacheable(operator.inner)
    if isinstance(operator, Sum):
        return next((why for term in operator.terms if (why := why_not_cacheable(term)) is not None), None)
    return f"{type(operator).__name__} keeps no keys and values of its own tokens"
