"""Rotary positions for real token time."""

import dataclasses
import math
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.spaces import Measure


@final
@dataclasses.dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by their times: <R(t) q, R(s) k> = <q, R(s - t) k> depends on s - t alone.

    R(t) turns the pair (x_r, x_{r + n/2}) by om_r t, the frequencies om_r spaced geometrically from `fastest` towards
    `slowest`. J. Su et al., RoFormer (2021), has fastest = 1 and slowest = 1e-4 on the index. Any real time will do.
    """

    fastest: float = 1.0
    slowest: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.slowest <= self.fastest < math.inf:
            reject("slowest", self.slowest, "frequencies are positive and ordered", "Pass 0 < slowest <= fastest.")

    def frequencies(self, key: int, like: Tensor) -> Float[Tensor, " half"]:
        """om_r for r = 0, ..., key/2 - 1."""
        steps = [self.fastest * (self.slowest / self.fastest) ** (2 * r / key) for r in range(key // 2)]
        return torch.tensor(steps, dtype=like.dtype, device=like.device)

    def turned(
        self, x: Float[Tensor, "batch heads tokens nodes_key"], measure: Measure, key: int
    ) -> Float[Tensor, "batch heads tokens nodes_key"]:
        """Every token's vector turned by its time; without positions, time is the index."""
        times = measure.positions
        if times is None:
            times = torch.arange(x.shape[2], dtype=x.dtype, device=x.device).expand(x.shape[0], -1)
        angles = times.masked_fill(~measure.present, 0.0) if measure.present is not None else times
        angles = angles[:, None, :, None, None] * self.frequencies(key, x)  # (batch 1 tokens 1 half)
        cos, sin = angles.cos(), angles.sin()
        x = x.unflatten(-1, (-1, key))
        first, second = x.chunk(2, -1)
        swapped = torch.cat([second, first], -1)
        return torch.addcmul(x * torch.cat([cos, cos], -1), swapped, torch.cat([-sin, sin], -1)).flatten(3)
