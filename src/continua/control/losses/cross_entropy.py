"""Cross-entropy: one label a sequence, the next token, or tokens that were masked."""

import dataclasses
from typing import final

import torch
import torch.nn.functional as F

from continua.control.losses.loss import AbstractLoss, check_any, counted, needed
from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Int, Tensor


@final
@dataclasses.dataclass(frozen=True)
class CrossEntropy(AbstractLoss):
    """-log softmax(output)_y, one label y a sequence: classification.

    Its derivative by the logits is softmax - onehot, so that behind a linear readout W the terminal costate is
    W^T (softmax - onehot), of norm at most sqrt(2) |W|. `smoothing` spreads that share of each label evenly over all
    classes. Reference implementation: `torch.nn.functional.cross_entropy`.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        if output.ndim != 2:
            cure = "Read out one output a sequence (MeanReadout), or use NextToken or MaskedToken."
            reject("output", tuple(output.shape), "classification needs logits of shape (batch, classes)", cure)
        labels = needed(batch.targets)
        _check_whole(labels, output)
        _check_range(labels, torch.ones_like(labels, dtype=torch.bool), output.shape[-1])
        return F.cross_entropy(output, labels.long(), label_smoothing=self.smoothing)


@final
@dataclasses.dataclass(frozen=True)
class NextToken(AbstractLoss):
    """-log softmax(output_i)_{y_{i+1}}, averaged over all tokens whose successor is present.

    The targets are the tokens themselves (`None`: the first input), and the shift is made here; with `shifted=True`
    target i is already the successor of token i. Padding is not predicted and predicts nothing.
    """

    shifted: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        _check_per_token(output)
        labels = batch.inputs[0] if batch.targets is None and not self.shifted else needed(batch.targets)
        if not isinstance(labels, Tensor):
            cure = "Pass the tokens as targets."
            reject("batch.targets", None, f"the first input is no tensor but {type(labels).__name__}", cure)
        _check_whole(labels, output)
        counts = counted(batch, output)
        if not self.shifted:
            there = torch.ones_like(counts) if batch.present is None else batch.present
            counts = torch.cat([torch.zeros_like(counts[:, :1]), counts[:, 1:] & there[:, :-1]], 1)
            _check_range(labels, counts, output.shape[-1])  # here, where its message can say which label it is
            output, labels, counts = output[:, :-1], labels[:, 1:], counts[:, 1:]
        return _token_mean(output, labels, counts, self.smoothing)


@final
@dataclasses.dataclass(frozen=True)
class MaskedToken(AbstractLoss):
    """-log softmax(output_i)_{y_i}, averaged over the tokens of `batch.mask`: what stood where the input was masked."""

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        _check_per_token(output)
        if batch.mask is None:
            cure = "Pass Batch(inputs, targets, mask=...), true where a token was masked."
            reject("batch.mask", None, "without it all tokens would count, those that the model can see too", cure)
        labels = needed(batch.targets)
        _check_whole(labels, output)
        return _token_mean(output, labels, counted(batch, output), self.smoothing)


def _token_mean(
    logits: Float[Tensor, "batch tokens classes"],
    labels: Int[Tensor, "batch tokens"],
    counts: Bool[Tensor, "batch tokens"],
    smoothing: float,
) -> Float[Tensor, ""]:
    """The mean over all tokens that count, each alike; labels and logits of the others are not read."""
    check_any(counts)
    _check_range(labels, counts, logits.shape[-1])
    return F.cross_entropy(logits[counts], labels[counts].long(), label_smoothing=smoothing)


def _check_per_token(output: Tensor) -> None:
    if output.ndim != 3:
        cure = "Read out one output a token (TokenReadout), or use CrossEntropy for one label a sequence."
        reject("output", tuple(output.shape), "tokens need logits of shape (batch, tokens, classes)", cure)


def _check_whole(labels: Tensor, output: Tensor) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        cure = "Convert whole numbers with targets.long(); mark missing labels in batch.mask instead of nan."
        reject("batch.targets", labels.dtype, "labels are whole numbers", cure)
    if labels.shape != output.shape[:-1]:
        cure = f"Pass labels of shape {tuple(output.shape[:-1])}."
        reject("batch.targets", tuple(labels.shape), f"the logits have shape {tuple(output.shape)}", cure)


def _check_range(labels: Tensor, counts: Tensor, classes: int) -> None:
    wrong = counts & ((labels < 0) | (labels >= classes))
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        cure = f"Pass labels from 0 to {classes - 1}; leave targets out with batch.mask or batch.present."
        reject(f"batch.targets{at}", int(labels[tuple(at)]), f"there are {classes} classes", cure)


def _check_smoothing(smoothing: float) -> None:
    if not 0.0 <= smoothing < 1.0:
        reject("smoothing", smoothing, "this is no share of a label", "Pass 0 <= smoothing < 1.")
