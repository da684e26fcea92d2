"""Masses of heads lie on the simplex: not negative, summing to one."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.operators.parameters import Role, Spec


def check_simplex(name: str, c: Tensor) -> None:
    """Rejects columns (the first axis runs along one) that are not on the simplex, to the rounding of their dtype."""
    slack = math.sqrt(torch.finfo(c.dtype).eps)  # of sums and products in this dtype
    off = float((c.detach().sum(0) - 1.0).abs().max())
    if not (off <= slack and float(c.detach().min()) >= -slack):
        cure = (
            "Normalise each column: c.clamp_(min=0); c /= c.sum(0). Train it with a mirror step, which keeps it there."
        )
        reject(name, c, f"masses of heads lie on the simplex; sums are off by {off:.1e}", cure)


def check_loaded(masses: Iterable[tuple[str, Spec]], state: dict[str, Any]) -> None:
    """Rejects the masses among values that are about to be loaded; `masses` names them in `state`."""
    for name, spec in masses:
        value = state.get(name)
        if spec.role is Role.HEAD_MASS and value is not None:
            check_simplex(name, value)
