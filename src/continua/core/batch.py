"""A batch of examples: what a model reads, what it should have answered, and which answers count."""

import dataclasses
from typing import Any, NamedTuple, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Tensor

_EIGHT_OF_TEN = 1.2815515655446004
"""Deviations to either side that hold eight of ten values of a normal law: scipy.stats.norm.ppf(0.9)."""
LOW, HIGH = 0.1, 0.9
"""The levels of an interval's ends."""


class PredictedInterval(NamedTuple):
    """Means (batch, queries, channels), and the ends that eight of ten values are said to lie between."""

    mean: Tensor
    low: Tensor
    high: Tensor

    def pinball(self, targets: Tensor) -> Tensor:
        """max(p (y - q), (p - 1) (y - q)), a mean over both ends q of levels p = 0.1 and 0.9: a proper score."""
        ends = ((LOW, targets - self.low), (HIGH, targets - self.high))
        return sum(torch.maximum(p * gap, (p - 1.0) * gap) for p, gap in ends) / 2.0  # pyright: ignore[reportReturnType]


class ReferenceAnswer(NamedTuple):
    """What a reference method answers at query times, and how far off it usually is; a network learns the rest.

    - `values` (batch, queries, channels): the answer of the reference, in the units of the targets;
    - `spread`: the deviation of its errors there; `ahead`: where a channel has no later observation.
    """

    values: Float[Tensor, "batch queries channels"]
    spread: Float[Tensor, "batch queries channels"]
    ahead: Bool[Tensor, "batch queries channels"]

    def answer(self, output: Float[Tensor, "batch queries outputs"]) -> PredictedInterval:
        """values + spread m, and spread e^a times 1.28 to either side of it.

        A network has four numbers (m, m', a, a') for each channel: m and a count between observations, m' and a' ahead
        of them, so that either pair may be weighed by itself. With zeros the reference itself is the answer.
        """
        m, later, a, wide = output.unflatten(-1, (4, -1)).unbind(-2)
        mean = self.values + self.spread * torch.where(self.ahead, later, m)
        half = _EIGHT_OF_TEN * self.spread * torch.where(self.ahead, wide, a).clamp(-4.0, 4.0).exp()
        return PredictedInterval(mean, mean - half, mean + half)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """A plain container, the same for data, objective and training loop; it knows no model and no vocabulary.

    - `inputs`: the arguments of the model in their order, `model(*batch.inputs)`: `(values, times, present)` for
      signals, `(tokens, times, present)` for whole numbers, `(cloud,)` for an embedded cloud, and for an
      encoder-decoder one such tuple for the source and one for the target.
    - `targets`: labels (batch,) or (batch, tokens), or values in the shape of the output. `None` where the loss reads
      the inputs themselves (`NextToken`).
    - `mask`: which targets count, (batch, tokens) or, with one output per sequence, (batch,); `None` means all.
    - `mass`: quadrature masses of the targets, (batch, tokens), for losses that are integrals over token time.
    - `query_times`: times (batch, queries), in the unit of the inputs, at which targets are wanted that are no tokens.
    - `target_times`, `target_present`: token times of the targets, as the model scales them (0 to 1 for signals), for a
      loss with a rule of its own, and which of the targets are there.
    - `reference`: what a reference method answers, where the network's output is added to it (`ReferenceAnswer`).
    - `offset`: logits of a reference method, which are added to those of the network. With one output more than
      classes, the last is added to the factor of the reference, which is 1; it is set, and not trained.
    - `index`: which sequences of their split these are.

    Where `mass`, `target_times` and `target_present` are not given, an objective takes them from the cloud that the
    model's embedding made of the inputs.
    """

    inputs: tuple[Any, ...]
    targets: Tensor | None
    mask: Bool[Tensor, "batch *tokens"] | None = None
    mass: Float[Tensor, "batch tokens"] | None = None
    target_times: Float[Tensor, "batch tokens"] | None = None
    target_present: Bool[Tensor, "batch *tokens"] | None = None
    query_times: Float[Tensor, "batch tokens"] | None = None
    reference: ReferenceAnswer | None = None
    offset: Float[Tensor, "batch classes"] | None = None
    index: Int[Tensor, " batch"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, tuple) or len(self.inputs) == 0:
            cure = "Pass a tuple, such as (values, times, present); one tensor alone is (values,)."
            reject("inputs", type(self.inputs).__name__, "inputs are the arguments of a model in their order", cure)
        if self.targets is not None and not isinstance(self.targets, Tensor):
            cure = "Convert with torch.as_tensor(targets)."
            reject("targets", type(self.targets).__name__, "targets are one tensor", cure)

    def logits(self, output: Tensor) -> Tensor:
        """The output of a network with those of the reference, where there is one."""
        if self.offset is None:
            return output
        own, more = output.tensor_split([self.offset.shape[-1]], dim=-1)
        return own + (1.0 + more.detach().sum(-1, keepdim=True)) * self.offset

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """This batch elsewhere; `dtype` is for real numbers, whole numbers and masks keep theirs."""
        moved = {f.name: _move(getattr(self, f.name), device, dtype) for f in dataclasses.fields(self)}
        return Batch(**moved)

    def part(self, start: int, stop: int) -> "Batch":
        """The examples from `start` to before `stop`."""
        return Batch(**{f.name: _part(getattr(self, f.name), start, stop) for f in dataclasses.fields(self)})


def _rebuild(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _part(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, tuple):
        return _rebuild(value, [_part(x, start, stop) for x in value])
    return value[start:stop] if isinstance(value, Tensor) else value


def _move(value: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, tuple):
        return _rebuild(value, [_move(x, device, dtype) for x in value])
    return value.to(device, dtype) if hasattr(value, "to") else value
