"""How much network and reference count: chosen by validation, kept in the readout of the network."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from continua.control import call_model
from continua.core.batch import Batch, PredictedInterval, ReferenceAnswer
from continua.core.shapes import Float, Int, Tensor
from continua.data import AbstractTask, Csv, Split, Uea
from continua.model import ContinuousTransformer
from continua.train.learner import place
from continua.train.models import scale_outputs

_INSIDE = 0.8
"""Fraction of the values that an interval is to hold."""
_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the network's logits that are tried, beside none."""
_REFERENCES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Fractions of the reference's logits that are tried beside those of a network that answers alone as well."""
_SURELY = 1.5
"""A gain counts from so many of its standard errors on."""
_FEWEST = 4
"""Of fewer gains nobody knows the standard error."""
_MOST = 500
"""Windows of training, at most, that the width of intervals is measured on."""


def settle_outputs(model: ContinuousTransformer, task: AbstractTask) -> dict[str, dict[str, float]]:
    """Weighs what the network adds by the validation split, unless that reads the test; says by how much.

    Both change the parameters of the readout: the settled model is one like any other.
    """
    if not task.form.added or "validation" in task.facts():
        return {}
    if isinstance(task, Csv):
        return _settle_series(model, task)
    assert isinstance(task, Uea)
    return _settle_labels(model, task)


@torch.no_grad()
def _settle_labels(model: ContinuousTransformer, task: Uea) -> dict[str, dict[str, float]]:
    """The factor of the network's logits, and of the reference's where the network has learnt to answer alone.

    A network has to prove that it gains, unless samples are missing and the reference has proved to lose by it.
    """
    found = [_Reading.of(model, batch) for batch in task.readings(Split.VALIDATION)]
    if not task.form.alone:
        share = share_of_logits(*found[0])
        scale_outputs(model, torch.full((task.form.outputs,), share))
        return {"classes": {"factor of the network": share}}
    proof = len(found[0].labels) < _FEWEST or not _suffers(task)
    weight, share = weigh_logits(found, _REFERENCES, proof)
    factors, shift = torch.full((task.form.outputs,), share), torch.zeros(task.form.outputs)
    factors[-1], shift[-1] = 0.0, weight - 1.0
    scale_outputs(model, factors, shift)
    return {"classes": {"factor of the network": share, "factor of the reference": weight}}


class _Reading(NamedTuple):
    """Of some series the logits of the network and those of the reference, and their labels."""

    output: Float[Tensor, "series classes"]
    offset: Float[Tensor, "series classes"]
    labels: Int[Tensor, " series"]

    @classmethod
    def of(cls, model: ContinuousTransformer, batch: Batch) -> "_Reading":
        assert batch.targets is not None and batch.offset is not None
        parts = [place(batch.part(i, i + 250), model) for i in range(0, len(batch.targets), 250)]
        output = torch.cat([call_model(model.in_eval_mode(), part).output.cpu() for part in parts]).to(batch.offset)
        return cls(output[:, : batch.offset.shape[-1]], batch.offset, batch.targets)

    def losses(self, weight: float, share: float) -> Float[Tensor, " series"]:
        """The cross-entropy of so much of the reference's logits and so much of the network's."""
        return F.cross_entropy(weight * self.offset + share * self.output, self.labels, reduction="none")


def share_of_logits(
    output: Float[Tensor, "series classes"], offset: Float[Tensor, "series classes"], labels: Int[Tensor, " series"]
) -> float:
    """How much of a network's logits is best added to those of a reference, by series that neither was fitted to."""
    return weigh_logits([_Reading(output, offset, labels)], (1.0,))[1]


def weigh_logits(readings: Sequence[_Reading], weights: Sequence[float], proof: bool = True) -> tuple[float, float]:
    """The factors of a reference and of a network with the least cross-entropy on readings of the same series.

    If they need `proof`, they are drawn to those of the reference alone by the noise of what they gain over it.
    """
    pairs = [(1.0, 0.0), *itertools.product(weights, _SHARES)]
    losses = {pair: torch.stack([each.losses(*pair) for each in readings]).mean(0) for pair in pairs}
    best = min(pairs, key=lambda pair: float(losses[pair].mean()))
    trust = _trust(losses[pairs[0]] - losses[best]) if proof else 1.0
    return 1.0 - trust * (1.0 - best[0]), trust * best[1]


def _suffers(task: Uea) -> bool:
    """Whether the reference loses by missing samples, surely, of the series of training and validation left out."""
    known, gains = task.transform.left_out_logits, []
    for split, first in ((Split.TRAIN, 0), (Split.VALIDATION, task.count(Split.TRAIN))):
        thinned = []
        for batch in task.readings(split):
            assert batch.targets is not None and batch.offset is not None and batch.index is not None
            both = (batch.offset, known[first + batch.index])
            gaps, whole = (F.cross_entropy(logits, batch.targets, reduction="none") for logits in both)
            thinned.append(gaps - whole)
        gains.append(torch.stack(thinned).mean(0))
    return _trust(torch.cat(gains)) > 0.0


class _Answers(NamedTuple):
    """Of windows, (windows, queries, channels): what the network adds, what the reference leaves, nan where not known,
    what is ahead, half the width of the reference's interval, and the logarithm that the network would widen it by.
    """

    added: Tensor
    left: Tensor
    ahead: Tensor
    half: Tensor
    widening: Tensor

    def of(self, channel: int, later: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """m, r, half and widening (windows, queries) of one channel between or ahead, and which of them are there."""
        here = (self.ahead[..., channel] == later) & ~self.left[..., channel].isnan()
        parts = (each[..., channel].double() for each in (self.added, self.left, self.half, self.widening))
        return *(torch.where(here, each, 0.0) for each in parts), here  # pyright: ignore[reportReturnType]


@torch.no_grad()
def _settle_series(model: ContinuousTransformer, task: Csv) -> dict[str, dict[str, float]]:
    """For each channel and part (between, ahead) the network's factor g, and the width of the intervals.

    The factor g = <m, r> / <m, m> in [0, 1], with m what the network adds and r what the reference leaves, has the
    least squared error on validation; it is shrunk by the noise of that gain (`_trust`). Intervals are widened or
    narrowed until they hold eight of ten values of validation, and eight of ten of training windows that the reference
    was not fitted to, whichever needs more: validation is one short stretch, and may be a calm one. The network's own
    widths count if they gain in the pinball score of validation.
    """
    held, fitted = (_collect(model, task, split) for split in (Split.VALIDATION, Split.TRAIN))
    channels, found = held.left.shape[-1], {}
    factors, shift = torch.ones(4, channels), torch.zeros(4, channels)
    for channel in range(channels):
        for part, later in enumerate((False, True)):
            blocks, (m, r, half, widening, here) = _blocks(task, later), held.of(channel, later)
            share = _share(m, r, blocks)
            error = r - share * m
            # the training windows are learnt: there errors of the reference stand for the sum's, as much smaller
            # as they are on validation
            smaller = float((error.square().sum() / r.square().sum()).sqrt()) if bool(r.any()) else 1.0
            _, old, before, wider, there = fitted.of(channel, later)
            plain, own = (
                _width(
                    error.abs() / _widen(half, k * widening),
                    here,
                    smaller * old.abs() / _widen(before, k * wider),
                    there,
                )
                for k in (0.0, 1.0)
            )
            scores = [_pinball(error, width * _widen(half, k * widening), here) for k, width in ((0, plain), (1, own))]
            counts = _trust((scores[0] - scores[1]).sum(1), blocks) > 0.0
            width = own if counts else plain
            factors[part, channel], factors[2 + part, channel] = share, float(counts)
            shift[2 + part, channel] = torch.tensor(width).log()
            name = f"{task.form.wording.names[channel]}, {'ahead' if later else 'between'}"
            found[name] = {"factor of the network": share, "width": width, "widths of the network": float(counts)}
    scale_outputs(model, factors.flatten(), shift.flatten())
    return found


def _share(m: Tensor, r: Tensor, blocks: Int[Tensor, " windows"]) -> float:
    """g of one channel and part, over (windows, queries)."""
    size = float(m.square().sum())
    if size == 0.0:
        return 0.0
    share = min(1.0, max(0.0, float((m * r).sum()) / size))
    return share * _trust((r.square() - (r - share * m).square()).sum(1), blocks)


def _trust(gains: Float[Tensor, " windows"], blocks: Int[Tensor, " windows"] | None = None) -> float:
    """1 - (se / gain)^2, with se the standard error of the mean gain, 0 where the gain is less than 1.5 of these.

    Windows of one block are no news of each other, and count as one.
    """
    if blocks is not None:
        gains = torch.zeros(int(blocks.max()) + 1, dtype=gains.dtype).index_add(0, blocks, gains)
    if len(gains) < _FEWEST:
        return 0.0
    gain, error = float(gains.mean()), float(gains.std(correction=0)) / (len(gains) - 1) ** 0.5
    return 1.0 - (error / gain) ** 2 if gain > _SURELY * error else 0.0


def _blocks(task: Csv, ahead: bool) -> Int[Tensor, " windows"]:
    """Numbers of the stretches in which the windows of validation begin.

    Answers between observations are nearly independent in windows a quarter of their length apart; forecasts, which err
    in one direction for long, a whole length.
    """
    windows = task.series.windows
    length = windows.size if ahead else windows.size // 4
    places = [(series, first // length) for series, first in windows.starts[Split.VALIDATION]]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    return torch.tensor([numbers[place] for place in places])


def _widen(half: Tensor, widening: Tensor) -> Tensor:
    """Half widths, with the network's share in them as `ReferenceAnswer.answer` takes it; 1 where nothing is asked."""
    return torch.where(half > 0.0, half * widening.clamp(-4.0, 4.0).exp(), 1.0)


def _width(held: Tensor, here: Tensor, fitted: Tensor, there: Tensor) -> float:
    """What intervals are multiplied by, from errors in units of half of them."""
    found = [
        float(ratio[known].quantile(_INSIDE)) for ratio, known in ((held, here), (fitted, there)) if known.sum() > 4
    ]
    return max([1e-2, *found]) if found else 1.0


def _pinball(error: Tensor, half: Tensor, here: Tensor) -> Tensor:
    nothing = torch.zeros_like(error)
    return torch.where(here, PredictedInterval(nothing, -half, half).pinball(error), 0.0)


def _collect(model: ContinuousTransformer, task: Csv, split: Split) -> _Answers:
    """What reference and network say of the windows of a split."""
    found, quiet, count = [], model.in_eval_mode(), task.count(split)
    index = torch.linspace(0, count - 1, min(count, _MOST) if split is Split.TRAIN else count).round().long()
    for chosen in index.split(250):
        batch = task.batch(split, chosen)
        assert batch.reference is not None and batch.targets is not None
        output = call_model(quiet, place(batch, model)).output.cpu().to(batch.targets)
        nothing = ReferenceAnswer(torch.zeros_like(batch.targets), batch.reference.spread, batch.reference.ahead)
        answer, plain = nothing.answer(output), nothing.answer(torch.zeros_like(output))
        left = batch.targets - batch.reference.values
        widening = ((answer.high - answer.mean) / plain.high).log()
        found.append((answer.mean, left, batch.reference.ahead, plain.high, widening))
    return _Answers(*(torch.cat(each) for each in zip(*found, strict=True)))
