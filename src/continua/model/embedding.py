"""Embeddings: from what a user has to a cloud of weighted tokens."""

import abc
from typing import Any, final

import torch
from torch import nn

from continua.core.errors import check_size, reject
from continua.core.shapes import Points, Tensor
from continua.fields import parameter_spaces
from continua.model.positions import AbstractPositionCode
from continua.spaces import AbstractCausalRule, AbstractParameterSpace, AbstractSampleRule, Cloud, Counting, Trapezoid


class AbstractEmbedding(nn.Module, abc.ABC):
    """Inputs -> the cloud at depth 0. Inputs come from outside, so their shapes are checked here, with a cure."""

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Size of one token's state."""

    @abc.abstractmethod
    def forward(self, *inputs: Any, **named: Any) -> Cloud:
        """The cloud at depth 0."""

    @abc.abstractmethod
    def ask(self, times: Tensor, *inputs: Any, **named: Any) -> tuple[Cloud, Tensor]:
        """The cloud at depth 0 with queries at `times` (batch, queries), and their indices among its tokens."""

    @final
    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments that build this embedding anew (its values apart)."""


class Embedded(AbstractEmbedding):
    """The input is a cloud already."""

    def __init__(self, width: int) -> None:
        super().__init__()
        check_size("width", width, "an embedding")
        self._width = width

    @property
    def width(self) -> int:
        return self._width

    def forward(self, cloud: Any) -> Cloud:
        if not isinstance(cloud, Cloud):
            reject("cloud", type(cloud).__name__, "this model reads clouds", "Pass Cloud(points, mass, positions).")
        if cloud.points.shape[-1] != self._width:
            cure = f"Pass points of shape (batch, tokens, {self._width})."
            reject("cloud", tuple(cloud.points.shape), "the width does not fit the model", cure)
        return cloud

    def ask(self, times: Tensor, cloud: Any) -> tuple[Cloud, Tensor]:
        cure = "Pass a cloud with queries to the model itself: cloud.with_queries(points, times)."
        reject("times", tuple(times.shape), "this embedding does not know what a time without a sample is like", cure)

    def arguments(self) -> dict[str, Any]:
        return {"width": self._width}


class TokenEmbedding(AbstractEmbedding):
    """Whole numbers from a vocabulary, as trained vectors, with a code for their positions: x_i = E[n_i] + code(t_i).

    Where `present` is false a token is absent, and whatever number stands there is not read. With `asks` a trained
    vector stands for a token that was not observed.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        code: AbstractPositionCode | None = None,
        rule: AbstractSampleRule = Counting(),
        asks: bool = False,
    ) -> None:
        super().__init__()
        check_size("vocabulary", vocabulary, "an embedding")
        check_size("width", width, "an embedding")
        _check_code(code, width)
        self.vocabulary = vocabulary
        self.table = nn.Parameter(torch.randn(vocabulary, width) * 0.02)
        self.code = code
        self.rule = rule
        self.unobserved = nn.Parameter(torch.randn(width) * 0.02) if asks else None

    @property
    def width(self) -> int:
        return self.table.shape[1]

    def forward(self, tokens: Tensor, positions: Tensor | None = None, present: Tensor | None = None) -> Cloud:
        _check_tensor("tokens", tokens)
        if tokens.ndim != 2 or tokens.numel() == 0:
            cure = "Pass a tensor of shape (batch, tokens); a single sequence is tokens.unsqueeze(0)."
            reject("tokens", tuple(tokens.shape), "tokens have two axes, neither empty", cure)
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            reject("tokens", tokens.dtype, "tokens are whole numbers", "Convert with tokens.long().")
        _check_tokens(tokens, positions, present)
        if present is not None:
            tokens = tokens.masked_fill(~present, 0)
        unknown = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if unknown.numel() > 0:
            cure = f"Pass whole numbers from 0 to {self.vocabulary - 1}, and mark padding in present."
            reject("tokens", int(unknown[0]), "there is no such token", cure)
        return _cloud(self.table[tokens], positions, present, self.code, self.rule)

    def ask(self, times: Tensor, *inputs: Any, **named: Any) -> tuple[Cloud, Tensor]:
        cloud = self(*inputs, **named)
        return cloud.with_queries(*_queries(self.unobserved, times, cloud, self.code))

    def arguments(self) -> dict[str, Any]:
        known = {"vocabulary": self.vocabulary, "width": self.width, "code": self.code, "rule": self.rule}
        return {**known, "asks": self.unobserved is not None}


class VectorEmbedding(AbstractEmbedding):
    """Samples of a signal with several features, at real times: x_i = W u_i + b + code(t_i).

    `rule` turns the times into quadrature masses, so that refining the sampling of one signal converges. With `asks` a
    trained vector stands in for W u + b at times without a sample.
    """

    def __init__(
        self,
        features: int,
        width: int,
        code: AbstractPositionCode | None = None,
        rule: AbstractSampleRule = Trapezoid(),
        asks: bool = False,
    ) -> None:
        super().__init__()
        check_size("features", features, "an embedding")
        check_size("width", width, "an embedding")
        _check_code(code, width)
        self.linear = nn.Linear(features, width)
        self.code = code
        self.rule = rule
        self.unobserved = nn.Parameter(torch.randn(width) * 0.02) if asks else None

    @property
    def width(self) -> int:
        return self.linear.out_features

    def forward(self, values: Tensor, positions: Tensor | None = None, present: Tensor | None = None) -> Cloud:
        _check_tensor("values", values)
        if values.ndim != 3 or values.numel() == 0 or values.shape[-1] != self.linear.in_features:
            size = self.linear.in_features
            cure = f"Pass a tensor of shape (batch, tokens, {size}); a single sequence is values.unsqueeze(0)."
            reject("values", tuple(values.shape), "the shape does not fit the embedding", cure)
        if values.dtype != self.linear.weight.dtype:
            cure = f"Convert with values.to({self.linear.weight.dtype})."
            reject("values", values.dtype, "the model has another dtype", cure)
        _check_tokens(values[..., 0], positions, present)
        if present is not None:
            values = values.masked_fill(~present.unsqueeze(-1), 0.0)
        if not bool(torch.isfinite(values).all()):
            at = (~torch.isfinite(values)).nonzero()[0].tolist()
            cure = "Remove or impute the sample, or mark it absent in present."
            reject(f"values{at}", float(values[tuple(at)]), "a sample is not finite", cure)
        return _cloud(self.linear(values), positions, present, self.code, self.rule)

    def ask(self, times: Tensor, *inputs: Any, **named: Any) -> tuple[Cloud, Tensor]:
        cloud = self(*inputs, **named)
        return cloud.with_queries(*_queries(self.unobserved, times, cloud, self.code))

    def arguments(self) -> dict[str, Any]:
        known = {"features": self.linear.in_features, "width": self.width, "code": self.code, "rule": self.rule}
        return {**known, "asks": self.unobserved is not None}


def _cloud(
    points: Points,
    positions: Tensor | None,
    present: Tensor | None,
    code: AbstractPositionCode | None,
    rule: AbstractSampleRule,
) -> Cloud:
    """The weighted cloud of embedded tokens; without positions, time is the index."""
    index = torch.arange(points.shape[1], dtype=points.dtype, device=points.device).expand(points.shape[:2])
    times = index if positions is None else _as_times(positions, points)
    if code is not None:
        points = points + code(times if present is None else times.masked_fill(~present, 0.0))
    given = None if positions is None else times
    if isinstance(rule, Counting):  # no quadrature, so absent tokens may stand anywhere
        return Cloud(points, None if present is None else present.to(points.dtype), given)
    own = rule.own(times, present) if isinstance(rule, AbstractCausalRule) else None
    return Cloud(points, rule.mass(times, present), given, own)


def _queries(
    unobserved: Tensor | None, times: Tensor, cloud: Cloud, code: AbstractPositionCode | None
) -> tuple[Tensor, Tensor]:
    """States and times of queries: the vector of the unobserved, with the code of each time."""
    if unobserved is None:
        cure = "Build the embedding with asks=True, and train it on such questions."
        reject("times", tuple(times.shape), "this embedding has no state for times without a sample", cure)
    if times.ndim != 2:
        reject("times", tuple(times.shape), "times have two axes", "Pass a tensor of shape (batch, asked).")
    times = _as_times(times, cloud.points)
    points = unobserved.expand(*times.shape, -1)
    return points if code is None else points + code(times), times


def _as_times(positions: Tensor, points: Points) -> Tensor:
    """Whole numbers are times; rounding float64 times, such as seconds since 1970, to float32 would merge them."""
    if positions.is_floating_point() and positions.dtype != points.dtype:
        cure = "Shift times to start near 0 in float64, then convert with positions.to(model's dtype)."
        reject("positions", positions.dtype, f"the model works in {points.dtype}", cure)
    return positions.to(points)


def _check_tensor(name: str, value: object) -> None:
    """A list, an array or a nested tensor is met with the way to pass sequences of different lengths."""
    if not isinstance(value, Tensor) or value.is_nested:
        cure = (
            "Convert an array with torch.as_tensor; pad sequences of different lengths with "
            "torch.nn.utils.rnn.pad_sequence(..., batch_first=True) and mark the real tokens in present."
        )
        reject(name, type(value).__name__, "this is no plain tensor", cure)


def _check_tokens(like: Tensor, positions: Tensor | None, present: Tensor | None) -> None:
    """Mask and times have one entry a token."""
    for name, tensor in (("positions", positions), ("present", present)):
        if tensor is not None:
            _check_tensor(name, tensor)
        if tensor is not None and tensor.shape != like.shape:
            cure = f"Pass one entry a token: shape {tuple(like.shape)}."
            reject(name, tuple(tensor.shape), "the shape does not fit the tokens", cure)
    if positions is not None and positions.dtype == torch.bool:
        reject("positions", positions.dtype, "this is a mask, and times are numbers", "Pass the mask as present=...")
    if present is not None and present.dtype != torch.bool:
        reject("present", present.dtype, "this is no mask", "Convert with present.bool(); true means present.")


def _check_code(code: AbstractPositionCode | None, width: int) -> None:
    if code is not None and code.width != width:
        reject("code", code.width, f"its width is not that of the tokens, {width}", f"Build it with width={width}.")
