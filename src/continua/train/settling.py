"""How much a network counts beside the simple rule that it adds to: chosen by validation, kept in its readout."""

import torch
import torch.nn.functional as F

from continua.control import call_model
from continua.core.batch import Baseline
from continua.core.shapes import Tensor
from continua.data import AbstractTask, Csv, Split
from continua.model import ContinuousTransformer
from continua.train.learner import place
from continua.train.models import scale_outputs

_INSIDE = 0.8
"""Share of the values that an interval is to hold."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the network's logits that are tried."""


def settle_outputs(model: ContinuousTransformer, task: AbstractTask) -> dict[str, dict[str, float]]:
    """Weighs what the network adds by the validation split, unless that reads the test; says by how much.

    Both change the weights of the readout: the settled model is one like any other.
    """
    if not task.form.added or "validation" in task.facts():
        return {}
    return _settle_series(model, task) if isinstance(task, Csv) else _settle_labels(model, task)


@torch.no_grad()
def _settle_labels(model: ContinuousTransformer, task: AbstractTask) -> dict[str, dict[str, float]]:
    """The share of the network's logits with the least cross-entropy."""
    quiet, found = model.in_eval_mode(), []
    for batch in task.batches(Split.VALIDATION, 250):
        assert batch.targets is not None and batch.offset is not None
        found.append(
            (call_model(quiet, place(batch, model)).output.cpu().to(batch.offset), batch.offset, batch.targets)
        )
    output, offset, labels = (torch.cat(each) for each in zip(*found, strict=True))
    share = min(_SHARES, key=lambda g: float(F.cross_entropy(g * output + offset, labels)))
    scale_outputs(model, torch.full((output.shape[-1],), share))
    return {"classes": {"share of the network": share}}


@torch.no_grad()
def _settle_series(model: ContinuousTransformer, task: Csv) -> dict[str, dict[str, float]]:
    """For each channel and part (between, ahead) the network's share, and the width of the intervals.

    The share g = <m, r> / <m, m> in [0, 1], with m what the network adds and r what the rule leaves, has the least
    squared error on the windows. It is shrunk by 1 - (se / gain)^2, with se the standard error of the gain over the
    windows, to 0 where the gain is less than that. Intervals are widened or narrowed until they hold eight of ten.
    """
    added, left, ahead, wide = _collect(model, task)
    channels, found = left.shape[-1], {}
    factors, shift = torch.ones(4, channels), torch.zeros(4, channels)
    for channel in range(channels):
        for part, later in enumerate((False, True)):
            here = (ahead[..., channel] == later) & ~left[..., channel].isnan()
            m, r = (torch.where(here, each[..., channel], 0.0).double() for each in (added, left))
            share = _share(m, r)
            factors[part, channel] = share
            ratio = ((r - share * m).abs() / wide[..., channel].double())[here]
            width = max(1e-2, float(ratio.quantile(_INSIDE))) if len(ratio) > 4 else 1.0
            shift[2 + part, channel] = torch.tensor(width).log()
            name = f"{task.form.wording.names[channel]}, {'ahead' if later else 'between'}"
            found[name] = {"share of the network": share, "width": width}
    scale_outputs(model, factors.flatten(), shift.flatten())
    return found


def _share(m: Tensor, r: Tensor) -> float:
    """g of one channel and part, over (windows, queries)."""
    size = float(m.square().sum())
    if size == 0.0:
        return 0.0
    share = min(1.0, max(0.0, float((m * r).sum()) / size))
    gains = (r.square() - (r - share * m).square()).sum(1)
    gain, error = float(gains.mean()), float(gains.std(correction=0)) / max(1, len(gains) - 1) ** 0.5
    return share * max(0.0, 1.0 - (error / gain) ** 2) if gain > 0.0 else 0.0


def _collect(model: ContinuousTransformer, task: Csv) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Over validation, each (windows, queries, channels): what is added, what is left, what is ahead, half widths."""
    found, quiet = [], model.in_eval_mode()
    for batch in task.batches(Split.VALIDATION, 250):
        assert batch.baseline is not None and batch.targets is not None
        nothing = Baseline(torch.zeros_like(batch.targets), batch.baseline.spread, batch.baseline.ahead)
        answer = nothing.answer(call_model(quiet, place(batch, model)).output.cpu().to(batch.targets))
        left = batch.targets - batch.baseline.values
        found.append((answer.mean, left, batch.baseline.ahead, answer.high - answer.mean))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))  # pyright: ignore[reportReturnType]
