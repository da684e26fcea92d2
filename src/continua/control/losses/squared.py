"""Losses of values: the mean squared error and the relative L2 distance, weighted as integrals over token time."""

import dataclasses
from typing import final

import torch

from continua.control.losses.loss import AbstractLoss, check_any, counted, needed
from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.spaces import AbstractSampleRule


@final
@dataclasses.dataclass(frozen=True)
class MeanSquaredError(AbstractLoss):
    """sum_bi w_bi mean_c |output - y|^2 / sum_bi w_bi over all tokens that count; without weights each counts alike.

    One output a sequence: the plain mean. Reference implementation: `torch.nn.functional.mse_loss` on the present.
    """

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        gap, targets, weights = _compared(output, batch, None)
        del targets
        each = gap.square().flatten(weights.ndim).mean(-1)
        return (weights * each).sum() / weights.sum()


@final
@dataclasses.dataclass(frozen=True)
class RelativeL2(AbstractLoss):
    """mean_b |output_b - y_b| / |y_b| with |u|^2 = sum_i w_i |u_i|^2, the usual loss of neural operators.

    The weights w_i are those that `rule` gives to `batch.positions`; without a rule, `batch.weights`; without either
    each token counts alike. A target of norm zero is refused.
    """

    rule: AbstractSampleRule | None = None

    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        gap, targets, weights = _compared(output, batch, self.rule)
        root = weights.sqrt().view(*weights.shape, *(1 for _ in gap.shape[weights.ndim :]))
        distance, size = (torch.linalg.vector_norm((root * x).flatten(1), dim=-1) for x in (gap, targets))
        if not bool((size > 0).all()):
            sequence = int((~(size > 0)).nonzero()[0])
            why = "its norm is zero, and nothing is small relative to that"
            cure = "Leave the sequence out, or use MeanSquaredError()."
            reject(f"batch.targets[{sequence}]", f"norm {float(size[sequence])}", why, cure)
        return (distance / size).mean()


def _compared(output: Tensor, batch: Batch, rule: AbstractSampleRule | None) -> tuple[Tensor, Tensor, Tensor]:
    """output - targets, the targets and the weights, with zeros wherever nothing counts."""
    targets = needed(batch.targets)
    if targets.shape != output.shape:
        cure = f"Pass targets of shape {tuple(output.shape)}; broadcasting would hide a mistake."
        reject("batch.targets", tuple(targets.shape), f"the output has shape {tuple(output.shape)}", cure)
    if targets.dtype != output.dtype:
        cure = f"Convert with targets.to({output.dtype})."
        reject("batch.targets", targets.dtype, f"the output is {output.dtype}", cure)
    if output.ndim < 3:  # one output a sequence
        _check_finite(targets)
        return output - targets, targets, output.new_ones(output.shape[0])
    counts = counted(batch, output)
    check_any(counts)
    absent = ~counts.view(*counts.shape, *(1 for _ in output.shape[2:]))
    targets = targets.masked_fill(absent, 0.0)
    _check_finite(targets)
    weights = torch.where(counts, _weights(output, batch, rule), 0.0)
    if not bool(weights.sum() > 0):
        reject("batch.weights", weights.detach(), "nothing that counts has weight", "Give a target positive weight.")
    return output.masked_fill(absent, 0.0) - targets, targets, weights


def _weights(output: Tensor, batch: Batch, rule: AbstractSampleRule | None) -> Float[Tensor, "batch tokens"]:
    weights = batch.weights
    if rule is not None:
        if batch.positions is None:
            cure = "Pass Batch(inputs, targets, positions=...), or RelativeL2() without a rule."
            reject("batch.positions", None, f"{type(rule).__name__} weighs times", cure)
        weights = rule.mass(batch.positions, batch.present)
    if weights is None:
        return output.new_ones(output.shape[:2])
    if weights.shape != output.shape[:2] or not bool((weights >= 0).all()):
        cure = f"Pass weights >= 0 of shape {tuple(output.shape[:2])}."
        reject("batch.weights", weights.detach(), "these do not weigh the tokens of the output", cure)
    return weights.to(output)


def _check_finite(targets: Tensor) -> None:
    broken = ~torch.isfinite(targets)
    if bool(broken.any()):
        at = broken.nonzero()[0].tolist()
        cure = "Remove or impute the sample, or leave it out with batch.mask."
        reject(f"batch.targets{at}", float(targets[tuple(at)]), "a target is not finite", cure)
