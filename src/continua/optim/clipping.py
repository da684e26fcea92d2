"""Gradient clipping by norm, over all parameters or group by group; gradients that are not finite are named."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim import foreach


def clip_gradients(module: nn.Module, limit: float) -> Tensor:
    """Scales all gradients of `module` so that their joint norm is at most `limit`; returns the norm before.

    Equals `torch.nn.utils.clip_grad_norm_`, sharded parameters included. An infinite limit measures and checks only.
    """
    return _clipped(list(module.named_parameters()), limit)


def clip_groups(optimiser: Optimizer, limit: float) -> list[Tensor]:
    """Scales the gradients of each parameter group by themselves; returns the norm of each before."""
    norms = []
    for place, group in enumerate(optimiser.param_groups):
        names = group.get("param_names") or [f"parameter {i} of group {place}" for i in range(len(group["params"]))]
        norms.append(_clipped(list(zip(names, group["params"], strict=True)), limit))
    return norms


@torch.no_grad()
def _clipped(named: Iterable[tuple[str, Tensor]], limit: float) -> Tensor:
    if not limit > 0:
        reject("limit", limit, "a norm is positive", "Pass limit > 0, or math.inf to check gradients only.")
    graded = [(name, p) for name, p in named if p.grad is not None]
    parts = [(name, torch.linalg.vector_norm(p.grad)) for name, p in graded if p.grad is not None]
    # a sharded parameter's norm is the sum over ranks, which every rank then knows
    parts = [(name, norm.full_tensor() if hasattr(norm, "full_tensor") else norm) for name, norm in parts]  # pyright: ignore[reportAttributeAccessIssue]
    if not parts:
        return torch.zeros(())
    total = torch.linalg.vector_norm(torch.stack([norm.to(parts[0][1].device) for _, norm in parts]))
    if not math.isfinite(total):
        names = [name for name, norm in parts if not math.isfinite(norm)] or [name for name, _ in parts]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        cure = "Skip this update, lower the rate, or look for the batch that caused it."
        reject("gradients", shown, "they are not finite", cure)
    if total > limit:
        for kind in (True, False):  # shards and whole tensors do not mix in one call
            grads = [p.grad for _, p in graded if hasattr(p.grad, "device_mesh") is kind]
            if grads:
                foreach.mul_(grads, float(limit / total))
    return total
