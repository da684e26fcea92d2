"""Terminal losses: what the output of a model is compared with, averaged over what counts."""

import abc
import dataclasses
from typing import final

import torch
import torch.nn.functional as F

from continua.core.batch import Batch
from continua.core.checks import fraction, is_a, is_traced, refuse_where
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Tensor
from continua.spaces import AbstractSampleRule


class AbstractLoss(abc.ABC):
    """The terminal loss: (output of the readout, batch) -> one number, the mean over what counts.

    Absent targets (`batch.target_present`) and those outside `batch.mask` never count, whatever stands there.
    """

    @abc.abstractmethod
    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """The loss, differentiable in the output."""


@dataclasses.dataclass(frozen=True)
class AbstractLabelLoss(AbstractLoss):
    """-log softmax(output)_y of labels y; `smoothing` spreads that fraction of each label uniformly over all classes.

    Reference implementation: `torch.nn.functional.cross_entropy`.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        fraction(all=False, smoothing=self.smoothing)

    @final
    def _mean(
        self, logits: Float[Tensor, "*tokens classes"], labels: Int[Tensor, "*tokens"], counts: Bool[Tensor, "*tokens"]
    ) -> Float[Tensor, ""]:
        """The mean over all that count, each alike; labels and logits of the others are not read."""
        if not bool(counts.any()):
            cure = "Mark at least one present token, or skip the batch."
            reject("batch", f"<{counts.numel()} tokens>", "no target counts, so the loss has nothing to average", cure)
        _check_range(labels, counts, logits.shape[-1])
        return F.cross_entropy(logits[counts], labels[counts].long(), label_smoothing=self.smoothing)


@final
@dataclasses.dataclass(frozen=True)
class CrossEntropy(AbstractLabelLoss):
    """-log softmax(output)_y, one label y per sequence: classification.

    Its derivative by the logits is softmax - onehot, so that behind a linear readout W the terminal costate is
    W^T (softmax - onehot), of norm at most sqrt(2) |W|. Logits of a reference (`batch.offset`) are added to the output;
    if `alone`, the loss is the mean of that of the sum and that of the output by itself, so that either answers.
    """

    alone: bool = False

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        if output.ndim != 2:
            cure = "Read out one output per sequence (MeanReadout), or use NextToken or MaskedToken."
            reject("output", tuple(output.shape), "classification needs logits of shape (batch, classes)", cure)
        labels, counts = _labels(batch, output), _count_targets(batch, output)
        loss = self._mean(batch.logits(output), labels, counts)
        if not self.alone or batch.offset is None:
            return loss
        return 0.5 * (loss + self._mean(output[:, : batch.offset.shape[-1]], labels, counts))


@final
@dataclasses.dataclass(frozen=True)
class NextToken(AbstractLabelLoss):
    """-log softmax(output_i)_{y_{i+1}}, averaged over all tokens whose successor is present.

    The targets are the tokens themselves (`None`: the first input), and the shift is made here; with `shifted=True`
    target i is already the successor of token i. Padding is not predicted and predicts nothing.
    """

    shifted: bool = False

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        if batch.targets is None and not self.shifted:
            is_a(Tensor, "Pass the tokens as targets.", **{"batch.inputs[0]": batch.inputs[0]})
            batch = dataclasses.replace(batch, targets=batch.inputs[0])
        labels, counts = _labels_of_tokens(batch, output)
        _refuse_moved(batch, self.shifted)
        if not self.shifted:
            # A pair counts where both of its tokens are there; the mask speaks of targets, so of the second alone.
            there = torch.ones_like(counts) if batch.target_present is None else batch.target_present
            counts = torch.cat([torch.zeros_like(counts[:, :1]), counts[:, 1:] & there[:, :-1]], 1)
            _check_range(labels, counts, output.shape[-1])  # before the shift, so that it names the label as passed
            output, labels, counts = output[:, :-1], labels[:, 1:], counts[:, 1:]
        return self._mean(output, labels, counts)


def _refuse_moved(batch: Batch, shifted: bool) -> None:
    """Refuses targets that would train for another token than the next: for the second ahead, or to copy the input."""
    tokens, targets = batch.inputs[0], batch.targets
    if is_traced() or not isinstance(tokens, Tensor) or targets is None or targets.shape != tokens.shape:
        return
    same, moved = torch.equal(targets, tokens), torch.equal(targets[:, :-1], tokens[:, 1:])
    if same != moved and same == shifted:  # one token repeated is both
        why, cure = "they are moved by one, and would be moved again", "Pass NextToken(shifted=True), or the tokens."
        if shifted:
            why, cure = "they are the tokens themselves, to be copied", "Pass NextToken(), or tokens moved by one."
        reject("batch.targets", tuple(targets.shape), why, cure)


@final
@dataclasses.dataclass(frozen=True)
class MaskedToken(AbstractLabelLoss):
    """-log softmax(output_i)_{y_i}, averaged over the tokens of `batch.mask`: what stood where the input was masked."""

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        if batch.mask is None:
            cure = "Pass Batch(inputs, targets, mask=...), true where a token was masked."
            reject("batch.mask", None, "without it all tokens would count, those that the model can see too", cure)
        return self._mean(output, *_labels_of_tokens(batch, output))


@final
@dataclasses.dataclass(frozen=True)
class MeanSquaredError(AbstractLoss):
    """sum_bi w_bi mean_c |output - y|^2 / sum_bi w_bi over all tokens that count, w the masses of `batch.mass`.

    An `Objective` takes those of the cloud, so that with one output per token this is the mean over token time. With
    `Batch(mass=torch.ones(...))`, and with one output per sequence, it is `torch.nn.functional.mse_loss`.
    """

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        gap, _, weights = _compare(output, batch, None)
        each = gap.square().flatten(weights.ndim).mean(-1)
        return (weights * each).sum() / weights.sum()


@final
@dataclasses.dataclass(frozen=True)
class RelativeL2(AbstractLoss):
    """mean_b |output_b - y_b| / |y_b| with |u|^2 = sum_i w_i |u_i|^2, the usual loss of neural operators.

    The weights w_i are those that `rule` gives to `batch.target_times`; without a rule, `batch.mass`, for which an
    `Objective` takes the masses of the cloud: the norm is an integral over token time. With
    `Batch(mass=torch.ones(...))` each token counts alike, as in `LpLoss` of neuraloperator. A target of norm zero is
    refused.
    """

    rule: AbstractSampleRule | None = None

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        gap, targets, weights = _compare(output, batch, self.rule)
        root = weights.sqrt().view(*weights.shape, *(1 for _ in gap.shape[weights.ndim :]))
        # vector_norm, not sqrt of a sum: its gradient at a perfect answer is 0, not nan
        distance, size = (torch.linalg.vector_norm((root * x).flatten(1), dim=-1) for x in (gap, targets))
        why, cure = "nothing is small relative to that", "Leave the sequence out, or use MeanSquaredError()."
        refuse_where(~(size > 0), why, cure, **{"the norm of batch.targets": size})
        return (distance / size).mean()


@final
@dataclasses.dataclass(frozen=True)
class SeriesScore(AbstractLoss):
    """mean of r^2 + 2 pinball(r) over the targets that are known, r = (y - answer) / spread, with `batch.reference`.

    The mean answers for the squared error alone, the ends of the interval for the pinball score of the levels 0.1 and
    0.9 (`PredictedInterval.pinball`), about a mean that is held fixed. Both are proper scores.
    """

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        targets = _require_targets(batch)
        if batch.reference is None:
            why, cure = "the output is what is added to a reference", "Pass Batch(..., reference=ReferenceAnswer(...))."
            reject("batch.reference", None, why, cure)
        spread, known = batch.reference.spread, ~targets.isnan()
        truth = torch.where(known, targets, batch.reference.values)
        answer = batch.reference.answer(output)
        fixed = answer.mean - answer.mean.detach()  # ends move with the mean, and do not move it
        ends = answer._replace(low=answer.low - fixed, high=answer.high - fixed)
        score = ((truth - answer.mean) / spread).square() + 2.0 * ends.pinball(truth) / spread
        return torch.where(known, score, 0.0).sum() / known.sum().clamp_min(1)


def _count_targets(batch: Batch, output: Tensor) -> Bool[Tensor, "batch *tokens"]:
    """Which targets count, one per token or, where outputs are so, per sequence: present, and in the mask."""
    size = tuple(output.shape[: 2 if output.ndim > 2 else 1])
    counts = torch.ones(size, dtype=torch.bool, device=output.device)
    for name, given in (("mask", batch.mask), ("target_present", batch.target_present)):
        if given is None:
            continue
        if tuple(given.shape) != size or given.dtype != torch.bool:
            cure = f"Pass a boolean tensor of shape {size}; true means that the target counts."
            reject(f"batch.{name}", f"{tuple(given.shape)}, {given.dtype}", "this is no mask of the targets", cure)
        counts = counts & given
    return counts


def _require_targets(batch: Batch) -> Tensor:
    if batch.targets is None:
        reject("batch.targets", None, "this loss compares with targets", "Pass Batch(inputs, targets).")
    return batch.targets


def _labels_of_tokens(batch: Batch, output: Tensor) -> tuple[Int[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
    """The targets, one whole number for each token, and which of them count."""
    if output.ndim != 3:
        cure = "Read out one output per token (TokenReadout), or use CrossEntropy for one label per sequence."
        reject("output", tuple(output.shape), "tokens need logits of shape (batch, tokens, classes)", cure)
    return _labels(batch, output), _count_targets(batch, output)


def _labels(batch: Batch, output: Tensor) -> Int[Tensor, "*tokens"]:
    """The targets, one whole number for each row of logits."""
    labels = _require_targets(batch)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        cure = "Convert whole numbers with targets.long(); mark missing labels in batch.mask instead of nan."
        reject("batch.targets", labels.dtype, "labels are whole numbers", cure)
    if labels.shape != output.shape[:-1]:
        cure = f"Pass labels of shape {tuple(output.shape[:-1])}."
        reject("batch.targets", tuple(labels.shape), f"the logits have shape {tuple(output.shape)}", cure)
    return labels


def _check_range(labels: Tensor, counts: Tensor, classes: int) -> None:
    wrong = counts & ((labels < 0) | (labels >= classes))
    cure = f"Pass labels from 0 to {classes - 1}; leave targets out with batch.mask."
    refuse_where(wrong, f"there are {classes} classes", cure, **{"batch.targets": labels})


def _compare(output: Tensor, batch: Batch, rule: AbstractSampleRule | None) -> tuple[Tensor, Tensor, Tensor]:
    """output - targets, the targets and the weights, with zeros wherever nothing counts."""
    targets = _require_targets(batch)
    if targets.shape != output.shape:
        cure = f"Pass targets of shape {tuple(output.shape)}; broadcasting would hide a mistake."
        reject("batch.targets", tuple(targets.shape), f"the output has shape {tuple(output.shape)}", cure)
    if targets.dtype != output.dtype:
        cure = f"Convert with targets.to({output.dtype})."
        reject("batch.targets", targets.dtype, f"the output is {output.dtype}", cure)
    counts = _count_targets(batch, output)
    if output.ndim == 2:  # one output per sequence
        output, targets = output[counts], targets[counts]
        weights = output.new_ones(len(output))
    else:
        # Filled before anything is computed: a weight of zero would leave the nan of an absent target a nan.
        absent = ~counts.view(*counts.shape, *(1 for _ in output.shape[2:]))
        output, targets = output.masked_fill(absent, 0.0), targets.masked_fill(absent, 0.0)
        weights = torch.where(counts, _weights(output, batch, rule), 0.0)
    if not bool(weights.sum() > 0):
        cure = "Give a target that counts positive mass, or skip the batch."
        reject("batch.mass", weights.detach(), "nothing that counts has mass", cure)
    cure = "Remove or impute the sample, or leave it out with batch.mask."
    refuse_where(~torch.isfinite(targets), "a target is not finite", cure, **{"batch.targets": targets})
    return output - targets, targets, weights


def _weights(output: Tensor, batch: Batch, rule: AbstractSampleRule | None) -> Float[Tensor, "batch tokens"]:
    weights = batch.mass
    if rule is not None:
        if batch.target_times is None:
            cure = "Pass Batch(inputs, targets, target_times=...), or RelativeL2() without a rule."
            reject("batch.target_times", None, f"{type(rule).__name__} weighs times", cure)
        weights = rule.mass(batch.target_times, batch.target_present)
    if weights is None:
        return output.new_ones(output.shape[:2])
    if weights.shape != output.shape[:2] or not bool((weights >= 0).all()):
        cure = f"Pass masses >= 0 of shape {tuple(output.shape[:2])}."
        reject("batch.mass", weights.detach(), "these do not weigh the tokens of the output", cure)
    return weights.to(output)
