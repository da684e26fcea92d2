"""What every terminal loss is, and the checks that all of them share."""

import abc

import torch

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Tensor


class AbstractLoss(abc.ABC):
    """The terminal loss: (output of the readout, batch) -> one number, the mean over what counts.

    Absent tokens (`batch.present`) and targets outside `batch.mask` never count, whatever stands there.
    """

    @abc.abstractmethod
    def __call__(self, output: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """The loss, differentiable in the output."""


def counted(batch: Batch, like: Tensor) -> Bool[Tensor, "batch tokens"]:
    """The tokens whose targets count: present, and in the mask where there is one. `like` is (batch, tokens, ...)."""
    size = tuple(like.shape[:2])
    counts = torch.ones(size, dtype=torch.bool, device=like.device)
    for name, given in (("mask", batch.mask), ("present", batch.present)):
        if given is None:
            continue
        if tuple(given.shape) != size or given.dtype != torch.bool:
            cure = f"Pass a boolean tensor of shape {size}; true means that the token counts."
            reject(f"batch.{name}", f"{tuple(given.shape)}, {given.dtype}", "this is no mask of the tokens", cure)
        counts = counts & given
    return counts


def check_any(counts: Bool[Tensor, "batch tokens"]) -> None:
    """Rejects a batch of which nothing counts: its mean would be 0/0."""
    if not bool(counts.any()):
        cure = "Mark at least one present token, or skip the batch."
        reject("batch", f"<{counts.numel()} tokens>", "no target counts, so the loss has nothing to average", cure)


def needed(targets: Tensor | None) -> Tensor:
    """The targets, or an error that says they are missing."""
    if targets is None:
        reject("batch.targets", None, "this loss compares with targets", "Pass Batch(inputs, targets).")
    return targets
