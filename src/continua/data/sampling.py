"""Signals in other samplings: shifted, thinned out, interpolated."""

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor


def shifted(
    values: Float[Tensor, "batch tokens features"], generator: torch.Generator
) -> Float[Tensor, "batch tokens features"]:
    """Each sequence shifted in a circle by a whole number of samples of its own, drawn from all."""
    batch, tokens, _ = values.shape
    start = torch.randint(tokens, (batch, 1), generator=generator)
    index = (start + torch.arange(tokens)) % tokens
    return values.take_along_dim(index.unsqueeze(-1), 1)


def thinned(
    values: Float[Tensor, "batch tokens features"],
    positions: Float[Tensor, "batch tokens"],
    share: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "batch kept features"], Float[Tensor, "batch kept"]]:
    """Every sequence without a random share of its samples, each with a subset of its own; at least two are kept."""
    if not 0.0 <= share < 1.0:
        reject("share", share, "a share below 1 can be dropped", "Pass 0 <= share < 1.")
    batch, tokens, _ = values.shape
    kept = max(2, round(tokens * (1.0 - share)))
    index = torch.rand(batch, tokens, generator=generator).argsort(1)[:, :kept].sort(1).values
    return values.take_along_dim(index.unsqueeze(-1), 1), positions.gather(1, index)


def interpolated(
    values: Float[Tensor, "batch tokens features"], positions: Float[Tensor, "batch tokens"], samples: int
) -> tuple[Float[Tensor, "batch samples features"], Float[Tensor, "batch samples"]]:
    """Linear interpolation at `samples` equispaced times from the first to the last.

    Equivalent to `numpy.interp` for each sequence and feature.
    """
    if samples < 2:
        reject("samples", samples, "both ends are samples", "Pass 2 or more.")
    share = torch.linspace(0.0, 1.0, samples, dtype=positions.dtype)
    times = positions[:, :1] + share * (positions[:, -1:] - positions[:, :1])
    right = torch.searchsorted(positions.contiguous(), times).clamp(1, positions.shape[1] - 1)
    left = right - 1
    t0, t1 = positions.gather(1, left), positions.gather(1, right)
    part = ((times - t0) / (t1 - t0)).unsqueeze(-1)
    lower = values.take_along_dim(left.unsqueeze(-1), 1)
    upper = values.take_along_dim(right.unsqueeze(-1), 1)
    return lower + part * (upper - lower), times


def check_shares(what: str, **shares: float) -> None:
    """Shares of the samples that may be dropped: some must remain."""
    for name, share in shares.items():
        if not 0.0 <= share <= 0.9:
            reject(name, share, f"this share of the {what} cannot be dropped", "Pass a number from 0 to 0.9.")
