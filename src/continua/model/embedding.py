"""Embeddings: from what a user has to a cloud of weighted tokens."""

import abc
import math
from typing import Any, TypeAlias, final

import torch
from torch import nn

from continua.core.checks import at_least, has_shape, is_a, is_traced, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Bool, Points, Tensor
from continua.fields import Constant
from continua.model.positions import AbstractPositionCode, Clock
from continua.operators import AbstractNorm, LayerNorm
from continua.spaces import AbstractCausalRule, AbstractManifold, AbstractSampleRule, Cloud, Counting, Trapezoid
from continua.spaces.measure import check_times

Code: TypeAlias = AbstractPositionCode | None
WithQueries: TypeAlias = tuple[Cloud, Tensor]
"""A cloud with queries merged in by time, and where each query (batch, queries) stands among its tokens."""


class AbstractEmbedding(nn.Module, abc.ABC):
    """Inputs -> the cloud at depth 0. Inputs come from outside, so their shapes are checked here, with a cure.

    With `query_times` (batch, queries) the cloud also holds a query per time: a token without mass, which
    reads the samples and changes neither them nor the other queries.
    """

    width: int
    """Size of one token's state."""

    @abc.abstractmethod
    def forward(self, *inputs: Any, query_times: Tensor | None = None, **named: Any) -> Cloud | WithQueries:
        """The cloud at depth 0; with `query_times` also where the queries stand among its tokens."""


@final
class CloudEmbedding(AbstractEmbedding):
    """The input is a cloud already, or points (batch, tokens, width) on the counting measure."""

    def __init__(self, width: int) -> None:
        super().__init__()
        at_least(1, width=width)
        self.width = width

    def forward(self, cloud: Any, query_times: Tensor | None = None) -> Cloud:
        if query_times is not None:
            why = "a cloud does not say what a time without a sample is"
            cure = "Pass a cloud with queries to the model itself: cloud.with_queries(points, times)."
            reject("query_times", tuple(query_times.shape), why, cure)
        if isinstance(cloud, Tensor):
            cloud = Cloud(cloud)
        is_a(Cloud, "Pass Cloud(points, mass, positions), or points (batch, tokens, width).", cloud=cloud)
        return check_cloud(cloud, self.width)


def check_cloud(cloud: Cloud, width: int) -> Cloud:
    """Rejects a cloud whose tokens do not have the model's width."""
    if cloud.points.shape[-1] != width:
        cure = f"Pass points of shape (batch, tokens, {width})."
        reject("cloud", tuple(cloud.points.shape), "the width does not fit the model", cure)
    return cloud


class AbstractSampleEmbedding(AbstractEmbedding):
    """Tokens at real times t_i, with a code for their positions: x_i = state_i + code(t_i).

    `rule` turns the times into quadrature masses, so that refining the sampling of one signal converges. With `queries`
    a trained vector stands for a token that was not observed. Without a `clock` times are taken as they are. Where
    `present` is false a token is absent, and whatever stands there is not read.
    """

    def _place(self, width: int, code: Code, rule: AbstractSampleRule, queries: bool, clock: Clock | None) -> None:
        """What every such embedding holds; called last in a constructor, for the order of random draws."""
        if code is not None and code.width != width:
            reject("code", code.width, f"its width is not that of the tokens, {width}", f"Build it with width={width}.")
        self.width, self.code, self.rule, self.queries, self.clock = width, code, rule, queries, clock
        self.unobserved = nn.Parameter(torch.randn(width) * 0.02) if queries else None

    @abc.abstractmethod
    def _check(self, samples: Tensor) -> None:
        """Rejects what is no batch of samples, with the cure."""

    @abc.abstractmethod
    def _states(self, samples: Tensor, present: Bool[Tensor, "batch tokens"] | None) -> Points:
        """The samples embedded one by one, absent ones as anything finite."""

    @final
    def _weigh(
        self, samples: Tensor, times: Tensor | None, present: Tensor | None, query_times: Tensor | None
    ) -> Cloud | WithQueries:
        """The weighted cloud of embedded tokens; without times and without a clock, time is the index."""
        self._check(samples)
        _check_rows(samples.shape[:2], times, present)
        if times is not None and isinstance(self, TokenEmbedding):
            _refuse_mask(times)
        points, code, rule = self._states(samples, present), self.code, self.rule
        t = self._token_times(points, times, present)
        if times is not None and self.clock is not None:
            # cells of a table may stand outside the window that the model was built for
            spans = 1.5 if isinstance(self, VectorEmbedding) else math.inf
            self.clock.check_extent(t, present, query_times, spans)
        if code is not None:
            points = points + code(t if present is None else t.masked_fill(~present, 0.0))
        given = None if times is None and self.clock is None else t
        if isinstance(rule, Counting):  # no quadrature, so absent tokens may stand anywhere
            cloud = Cloud(points, None if present is None else present.to(points.dtype), given)
        else:
            own = rule.own(t, present) if isinstance(rule, AbstractCausalRule) else None
            cloud = Cloud(points, rule.mass(t, present), given, own)
        return cloud if query_times is None else cloud.with_queries(*self._queries(query_times, cloud))

    def _token_times(self, points: Points, times: Tensor | None, present: Tensor | None) -> Tensor:
        """Without a clock float64 times, such as seconds since 1970, would be rounded to float32 and merge."""
        batch, tokens, _ = points.shape
        if self.clock is not None:
            if times is None:
                return self.clock.regular_times(present, (batch, tokens), points)
            return self.clock.read(times, present, points)
        if times is None:
            return torch.arange(tokens, dtype=points.dtype, device=points.device).expand(batch, tokens)
        if times.is_floating_point() and times.dtype != points.dtype:
            cure = "Give the embedding a Clock(start, end), or shift times to start near 0 and convert them."
            reject("times", times.dtype, f"the model works in {points.dtype}", cure)
        return times.to(points)

    def _queries(self, query_times: Tensor, cloud: Cloud) -> tuple[Points, Tensor]:
        """States and times of queries: the vector of the unobserved, with the code of each time."""
        if self.unobserved is None:
            why = "this embedding has no state for times without a sample"
            cure = "Build the model with time=TokenTime(queries=True)."
            reject("query_times", tuple(query_times.shape), why, cure)
        has_shape((None, None), "Pass a tensor of shape (batch, queries).", query_times=query_times)
        times = self._token_times(cloud.points, query_times, None)
        points = self.unobserved.expand(*times.shape, -1)
        return points if self.code is None else points + self.code(times), times


@final
class TokenEmbedding(AbstractSampleEmbedding):
    """Whole numbers n_i from a vocabulary, as trained vectors, with a code for positions: x_i = E[n_i] + code(t_i)."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        code: Code = None,
        rule: AbstractSampleRule = Counting(),
        queries: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        at_least(1, vocabulary=vocabulary, width=width)
        self.vocabulary = vocabulary
        self.table = nn.Parameter(torch.randn(vocabulary, width) * 0.02)
        self._place(width, code, rule, queries, clock)

    def forward(
        self,
        tokens: Tensor,
        times: Tensor | None = None,
        present: Tensor | None = None,
        query_times: Tensor | None = None,
    ) -> Cloud | WithQueries:
        """The cloud of tokens (batch, tokens); without times and without a clock, time is the index."""
        return self._weigh(tokens, times, present, query_times)

    def _check(self, samples: Tensor) -> None:
        _check_tensor("tokens", samples)
        if samples.ndim != 2 or samples.numel() == 0:
            cure = "Pass a tensor of shape (batch, tokens); a single sequence is tokens.unsqueeze(0)."
            reject("tokens", tuple(samples.shape), "tokens have two dimensions, neither empty", cure)
        if samples.is_floating_point() or samples.dtype == torch.bool:
            reject("tokens", samples.dtype, "tokens are whole numbers", "Convert with tokens.long().")

    def _states(self, samples: Tensor, present: Bool[Tensor, "batch tokens"] | None) -> Points:
        tokens = samples if present is None else samples.masked_fill(~present, 0)
        cure = f"Pass whole numbers from 0 to {self.vocabulary - 1}, and mark padding in present."
        refuse_where(
            (tokens < 0) | (tokens >= self.vocabulary), "there is no such entry in the vocabulary", cure, tokens=tokens
        )
        return self.table[tokens]


@final
class VectorEmbedding(AbstractSampleEmbedding):
    """Samples of a signal with several features, at real times: x_i = W u_i + b + code(t_i)."""

    def __init__(
        self,
        features: int,
        width: int,
        code: Code = None,
        rule: AbstractSampleRule = Trapezoid(),
        queries: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        at_least(1, features=features, width=width)
        self.features = features
        self.linear = nn.Linear(features, width)
        self._place(width, code, rule, queries, clock)

    def forward(
        self,
        values: Tensor,
        times: Tensor | None = None,
        present: Tensor | None = None,
        query_times: Tensor | None = None,
    ) -> Cloud | WithQueries:
        """The cloud of values (batch, tokens, features); without times and without a clock, time is the index."""
        return self._weigh(values, times, present, query_times)

    def _check(self, samples: Tensor) -> None:
        check_values(samples, self.features, self.linear.weight.dtype)

    def _states(self, samples: Tensor, present: Bool[Tensor, "batch tokens"] | None) -> Points:
        values = samples if present is None else samples.masked_fill(~present.unsqueeze(-1), 0.0)
        cure = "Leave the sample out, its time too; present marks padding at the end. Where single features are "
        cure += "missing, build the model with TokenTime(channels=...): each value is a token then."
        refuse_where(~torch.isfinite(values), "a sample is not finite", cure, values=values)
        return self.linear(values).to(values.dtype)  # under autocast a product has half precision, and states have not


def check_values(samples: Tensor, features: int, dtype: torch.dtype) -> None:
    """Rejects what is no batch of samples with so many features in this precision."""
    _check_tensor("values", samples)
    shape = tuple(samples.shape)
    if samples.numel() == 0:
        reject("values", shape, "there are no tokens", f"Pass at least one: (batch, tokens, {features}).")
    if samples.ndim != 3 or shape[-1] != features:
        reject("values", shape, f"the shape must be (batch, tokens, {features})", _reshape(shape, features))
    if dtype not in (torch.float32, torch.float64):
        cure = "Keep the parameters in float32, and call the model under torch.autocast(device, dtype)."
        reject("model", dtype, "states are float32 or float64", cure)
    if samples.dtype != dtype:
        reject("values", samples.dtype, "the model has another dtype", f"Convert with values.to({dtype}).")


def _reshape(shape: tuple[int, ...], features: int) -> str:
    """What most likely turns values of this shape into (batch, tokens, features)."""
    if shape[1:] == (features,):
        return "A single sequence is values.unsqueeze(0)."
    if len(shape) == 2 and features == 1:
        return "Give the values a dimension for the feature: values.unsqueeze(-1)."
    if len(shape) == 3 and shape[1] == features:
        return "The features stand before the tokens: pass values.transpose(1, 2)."
    return f"Pass {features} numbers for each token, or build the model with another number of features."


def _check_tensor(name: str, value: object) -> None:
    """A list, an array or a nested tensor is met with the way to pass sequences of different lengths."""
    if not isinstance(value, Tensor) or value.is_nested:
        cure = (
            "Convert an array with torch.as_tensor; pad sequences of different lengths with "
            "torch.nn.utils.rnn.pad_sequence(..., batch_first=True) and mark the real tokens in present."
        )
        reject(name, type(value).__name__, "this is no plain tensor", cure)


def _check_rows(shape: torch.Size, times: Tensor | None, present: Tensor | None) -> None:
    """Mask and times have one entry per token; times are checked as they came, before a clock reads them."""
    for name, tensor in (("times", times), ("present", present)):
        if tensor is None:
            continue
        _check_tensor(name, tensor)
        if tensor.shape != shape:
            cure = f"Pass one entry per token: shape {tuple(shape)}"
            if tensor.shape == shape[1:]:
                cure += f", {name}.expand({shape[0]}, -1) if all sequences share them"
            reject(name, tuple(tensor.shape), "the shape does not fit the tokens", f"{cure}.")
    if times is not None and times.dtype == torch.bool:
        reject("times", times.dtype, "this is a mask, and times are numbers", "Pass the mask as present=...")
    if present is not None:
        if present.dtype != torch.bool:
            reject("present", present.dtype, "this is no mask", "Convert with present.bool(); true means present.")
        cure = "True means present, so pass ~mask of a padding mask; else leave the sequence out of the batch."
        refuse_where(~present.any(-1), "this sequence has no observed token", cure, present=present)
    if times is not None:
        check_times("times", times, torch.ones_like(times, dtype=torch.bool) if present is None else present)


def _refuse_mask(times: Tensor) -> None:
    """Refuses times of three or more tokens that are all 0 or 1: the mask that others take as second argument."""
    if not is_traced() and times.shape[1] > 2 and bool(((times == 0) | (times == 1)).all()):
        cure = "Pass it as present=mask.bool(), true where a token is; without times, time is the index."
        reject("times", tuple(times.shape), "all are 0 or 1: this looks like a mask", cure)


class AbstractEmbeddingWrapper(AbstractEmbedding):
    """X(0) = wrap(inner embedding), the same for tokens and for queries."""

    inner: AbstractEmbedding

    @abc.abstractmethod
    def wrap(self, cloud: Cloud) -> Cloud:
        """The cloud of the inner embedding in other states."""

    @final
    def forward(self, *inputs: Any, **named: Any) -> Cloud | WithQueries:
        found = self.inner(*inputs, **named)
        return self.wrap(found) if isinstance(found, Cloud) else (self.wrap(found[0]), found[1])


@final
class NormedEmbedding(AbstractEmbeddingWrapper):
    """X(0) = norm(inner embedding), with trained gain and bias, as in BERT."""

    def __init__(self, inner: AbstractEmbedding, norm: AbstractNorm = LayerNorm()) -> None:
        super().__init__()
        self.inner, self.norm, self.width = inner, norm, inner.width
        self.theta = Constant(norm.spec(inner.width))

    def wrap(self, cloud: Cloud) -> Cloud:
        return cloud.at(self.norm.normalise(self.theta(0.0), cloud.points))


@final
class ProjectedEmbedding(AbstractEmbeddingWrapper):
    """X(0) = P(inner embedding): tokens start on a manifold."""

    def __init__(self, inner: AbstractEmbedding, manifold: AbstractManifold) -> None:
        super().__init__()
        self.inner, self.manifold, self.width = inner, manifold, inner.width

    def wrap(self, cloud: Cloud) -> Cloud:
        return cloud.at(self.manifold.project(cloud.points))


@final
class CellEmbedding(AbstractSampleEmbedding):
    """Samples (v, e_c, u) -> tokens (v e_c, e_c, u): e_c has a 1 for the channel c among 0s, u are static numbers.

    Nothing is trained but the vector of a query. Tokens of one time share its mass, so that a sensor does not count
    more where others report at the same moment. A stem with `channels` reads these tokens (`InterpolatedStem`).
    """

    def __init__(
        self,
        channels: int,
        static: int = 0,
        rule: AbstractSampleRule = Trapezoid(),
        queries: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        at_least(1, channels=channels)
        at_least(0, static=static)
        self.channels, self.static = channels, static
        self.register_buffer("like", torch.zeros(()), persistent=False)  # says in which precision the model works
        self._place(2 * channels + static, None, rule, queries, clock)

    def forward(
        self,
        values: Tensor,
        times: Tensor | None = None,
        present: Tensor | None = None,
        query_times: Tensor | None = None,
    ) -> Cloud | WithQueries:
        """The cloud of samples (batch, tokens, 1 + channels + static), each with its time."""
        if times is None:
            why = "cells of one row share a time, which their order does not tell"
            reject("times", None, why, "Pass model(cells, times), with one time per cell.")
        return self._weigh(values, times, present, query_times)

    def _check(self, samples: Tensor) -> None:
        check_values(samples, 1 + self.channels + self.static, self.like.dtype)

    def _states(self, samples: Tensor, present: Bool[Tensor, "batch tokens"] | None) -> Points:
        values = samples if present is None else samples.masked_fill(~present.unsqueeze(-1), 0.0)
        cure = "Leave the cell out, its time too; present marks padding at the end."
        refuse_where(~torch.isfinite(values), "a cell is not finite", cure, values=values)
        value, channel, static = values.split([1, self.channels, self.static], -1)
        named = channel.sum(-1) == (1.0 if present is None else present.to(channel.dtype))
        if not bool((named & ((channel == 0.0) | (channel == 1.0)).all(-1)).all()):
            cure = f"Pass a value, then {self.channels} numbers with a 1 for its channel and 0s, then static numbers."
            reject("values", tuple(samples.shape), "the channel of a token is not a single 1 among 0s", cure)
        return torch.cat([value * channel, channel, static], -1)

    like: Tensor
