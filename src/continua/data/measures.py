"""Measures of every sequence, for labels, tokens and numbers."""

import torch
from torch.nn import functional as F

from continua.core.shapes import Float, Int, Tensor


def label_hits(logits: Float[Tensor, "size outputs"], labels: Int[Tensor, " size"]) -> Float[Tensor, " size"]:
    """1 where the highest logit is that of the label, else 0."""
    return (logits.argmax(-1) == labels).to(logits.dtype)


def token_losses(
    logits: Float[Tensor, "size tokens outputs"], tokens: Int[Tensor, "size tokens"]
) -> Float[Tensor, " size"]:
    """The mean of -log softmax(logits)[token] over each sequence, in nats."""
    return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").mean(1)


def squared_errors(
    output: Float[Tensor, "size tokens outputs"],
    target: Float[Tensor, "size tokens outputs"],
    weight: Float[Tensor, "size tokens"] | None = None,
) -> Float[Tensor, " size"]:
    """sum_i w_i |output_i - target_i|^2 / (outputs sum_i w_i)."""
    error = (output - target).square().mean(-1)
    if weight is None:
        return error.mean(1)
    return (error * weight).sum(1) / weight.sum(1)


def relative_errors(
    output: Float[Tensor, "size tokens outputs"], target: Float[Tensor, "size tokens outputs"]
) -> Float[Tensor, " size"]:
    """|output - target|_2 / |target|_2, the relative L2 error on an equispaced grid."""
    gap = torch.linalg.vector_norm(output - target, dim=(1, 2))
    return gap / torch.linalg.vector_norm(target, dim=(1, 2)).clamp_min(1e-12)


def asked_errors(
    output: Float[Tensor, "size tokens outputs"], target: Float[Tensor, "size tokens outputs"]
) -> dict[str, Float[Tensor, " size"]]:
    """Squared errors where the first half of the asked times lies between observations and the second beyond them."""
    half = target.shape[1] // 2
    return {
        "mean squared error": squared_errors(output, target),
        "squared error between": squared_errors(output[:, :half], target[:, :half]),
        "squared error ahead": squared_errors(output[:, half:], target[:, half:]),
    }
