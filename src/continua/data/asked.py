"""Training batches of series with asked rows, changed in ways that leave their answers true.

A token holds the values of all columns, 0 where one is missing, and behind them each column's 1 or 0 for there or
missing. Of the asked rows the first half lies between seen ones, the second beyond them.
"""

import math

import torch

from continua.core.batch import Batch
from continua.core.shapes import Float, Tensor


def token(values: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows features"]:
    """Values with their missing cells marked, as a token holds them."""
    return torch.cat([values.nan_to_num(0.0), (~values.isnan()).to(values.dtype)], -1)


def rescaled(batch: Batch, level: float, spread: float, generator: torch.Generator) -> Batch:
    """y -> a y + b for each column of each sequence, what is asked alike: ln a ~ N(0, spread^2), b ~ N(0, level^2)."""
    assert batch.targets is not None
    values, there = batch.inputs[0].chunk(2, -1)
    drawn = torch.randn(2, len(values), 1, values.shape[-1], generator=generator)
    a, b = (spread * drawn[0]).exp(), level * drawn[1]
    moved = torch.cat([(a * values + b) * there, there], -1)
    return Batch((moved, *batch.inputs[1:]), a * batch.targets + b, query_times=batch.query_times)


def redrawn(batch: Batch, generator: torch.Generator) -> Batch:
    """Other rows held out between the seen ones, as many, drawn from all that are complete; the ends stay seen."""
    values, times, present = batch.inputs
    assert batch.targets is not None and batch.query_times is not None
    held, columns = batch.targets.shape[1] // 2, batch.targets.shape[2]
    pool = torch.cat([values, token(batch.targets[:, :held])], 1)
    clock = torch.cat([times, batch.query_times[:, :held]], 1)
    there = torch.cat([present, present.new_ones(len(present), held)], 1)
    order = clock.masked_fill(~there, math.inf).argsort(1)
    pool, clock, there = pool.take_along_dim(order.unsqueeze(-1), 1), clock.gather(1, order), there.gather(1, order)

    index, last = torch.arange(there.shape[1]), there.sum(1, keepdim=True) - 1
    complete = (pool[..., columns:] > 0).all(-1) & (index > 0) & (index < last)
    drawn = (
        torch.rand(there.shape, generator=generator).masked_fill(~complete, -1.0).topk(held, 1).indices.sort(1).values
    )
    seen = there & ~torch.zeros_like(there).scatter(1, drawn, True)
    kept = (~seen).byte().argsort(dim=1, stable=True)[:, : times.shape[1]]
    present = seen.gather(1, kept)
    tokens = pool.take_along_dim(kept.unsqueeze(-1), 1).masked_fill(~present.unsqueeze(-1), 0.0)
    targets = pool[..., :columns].take_along_dim(drawn.unsqueeze(-1), 1)
    return Batch(
        (tokens, clock.gather(1, kept).masked_fill(~present, 0.0), present),
        torch.cat([targets, batch.targets[:, held:]], 1),
        query_times=torch.cat([clock.gather(1, drawn), batch.query_times[:, held:]], 1),
    )
