"""A batch of examples: what a model reads, what it should have answered, and which answers count."""

import dataclasses
from typing import Any, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """A plain container, the same for data, objective and training loop; it knows no model and no vocabulary.

    - `inputs`: the arguments of the model in their order, `model(*batch.inputs)`: `(values, times, present)` for
      signals, `(tokens, times, present)` for whole numbers, `(cloud,)` for an embedded cloud, and for an
      encoder-decoder one such tuple for the source and one for the target.
    - `targets`: labels (batch,) or (batch, tokens), or values in the shape of the output. `None` where the loss reads
      the inputs themselves (`NextToken`).
    - `mask`: which targets count, (batch, tokens); `None` means all.
    - `mass`: quadrature masses of the targets, (batch, tokens), for losses that are integrals over token time.
    - `query_times`: times (batch, queries) at which the targets are wanted, where these are not the tokens themselves.
    - `times`, `present`: times of the targets and which of them are there.

    Where `mass`, `times` and `present` are not given, an objective takes them from the cloud that the model's
    embedding made of the inputs.
    """

    inputs: tuple[Any, ...]
    targets: Tensor | None
    mask: Bool[Tensor, "batch tokens"] | None = None
    mass: Float[Tensor, "batch tokens"] | None = None
    times: Float[Tensor, "batch tokens"] | None = None
    present: Bool[Tensor, "batch tokens"] | None = None
    query_times: Float[Tensor, "batch tokens"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, tuple) or len(self.inputs) == 0:
            cure = "Pass a tuple, such as (values, times, present); one tensor alone is (values,)."
            reject("inputs", type(self.inputs).__name__, "inputs are the arguments of a model in their order", cure)
        if self.targets is not None and not isinstance(self.targets, Tensor):
            cure = "Convert with torch.as_tensor(targets)."
            reject("targets", type(self.targets).__name__, "targets are one tensor", cure)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """This batch elsewhere; `dtype` is for real numbers, whole numbers and masks keep theirs."""
        moved = {f.name: _move(getattr(self, f.name), device, dtype) for f in dataclasses.fields(self)}
        return Batch(**moved)

    def part(self, start: int, stop: int) -> "Batch":
        """The examples from `start` to before `stop`."""
        return Batch(**{f.name: _part(getattr(self, f.name), start, stop) for f in dataclasses.fields(self)})


def _part(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_part(x, start, stop) for x in value)
    return value[start:stop] if isinstance(value, Tensor) else value


def _move(value: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, tuple):
        return tuple(_move(x, device, dtype) for x in value)
    return value.to(device, dtype) if hasattr(value, "to") else value
