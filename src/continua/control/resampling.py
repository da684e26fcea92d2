"""One signal, sampled otherwise: fewer of its samples, or more on the straight lines between them."""

from typing import NamedTuple

import torch

from continua.core.errors import check_size, reject
from continua.core.shapes import Bool, Float, Int, Positions, Tensor


class Signals(NamedTuple):
    """Samples of a batch of signals; absent ones come last in their row."""

    values: Float[Tensor, "batch tokens features"]
    positions: Positions
    present: Bool[Tensor, "batch tokens"]

    @classmethod
    def of(cls, values: Tensor, positions: Tensor | None = None, present: Tensor | None = None) -> "Signals":
        """As a model takes them: without positions time is the index, without a mask all are present."""
        batch, tokens = values.shape[:2]
        index = torch.arange(tokens, dtype=values.dtype, device=values.device).expand(batch, tokens)
        seen = torch.ones(batch, tokens, dtype=torch.bool, device=values.device) if present is None else present
        if bool((~seen[:, :-1] & seen[:, 1:]).any()):
            reject("present", seen, "absent tokens stand between present ones", "Move them to the end of their row.")
        return cls(values, index if positions is None else positions.to(values.dtype), seen)

    @property
    def counts(self) -> Int[Tensor, "batch 1"]:
        """Present samples of each signal."""
        return self.present.sum(1, keepdim=True)


class Resampled(NamedTuple):
    """The same signals sampled otherwise, and the samples that both have."""

    signals: Signals
    here: Int[Tensor, "batch shared"]
    """Where the shared samples stand now."""
    there: Int[Tensor, "batch shared"]
    """Where they stood."""
    shared: Bool[Tensor, "batch shared"]
    """Which of them are samples, and no padding."""


def thinned(signals: Signals, stride: int) -> Resampled:
    """Every `stride`-th sample of each signal, and its last, so that the span stays."""
    check_size("stride", stride, "thinning")
    last = signals.counts - 1
    steps = -(-last // stride)
    j = torch.arange(int(steps.max()) + 1, device=last.device).expand(len(last), -1)
    there, present = torch.minimum(j * stride, last), j <= steps
    return Resampled(Signals(*_taken(signals, there), present), j, there, present)


def interpolated(signals: Signals, factor: int) -> Resampled:
    """`factor` - 1 samples more between each two, values and times alike on the straight line between them."""
    check_size("factor", factor, "interpolation")
    last = signals.counts - 1
    j = torch.arange(factor * int(last.max()) + 1, device=last.device).expand(len(last), -1)
    present, u = j <= factor * last, torch.minimum(j, factor * last)
    low, share = u // factor, (u % factor).to(signals.values.dtype) / factor
    before, after = _taken(signals, low), _taken(signals, torch.minimum(low + 1, last))
    values = torch.lerp(before[0], after[0], share.unsqueeze(-1))
    there = torch.arange(signals.values.shape[1], device=last.device).expand_as(signals.present)
    here = torch.minimum(there * factor, factor * last)
    return Resampled(Signals(values, torch.lerp(before[1], after[1], share), present), here, there, signals.present)


def _taken(signals: Signals, index: Int[Tensor, "batch others"]) -> tuple[Tensor, Tensor]:
    return signals.values.take_along_dim(index.unsqueeze(-1), 1), signals.positions.gather(1, index)
