"""What the loop does around an update: rates over training time (updates, tokens or seconds), and gradient clipping."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch
from torch import nn
from torch.optim import Optimizer

from continua.core.checks import fraction
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim.optimiser import foreach


@final
@dataclasses.dataclass(frozen=True)
class CosineDecay:
    """A factor that rises from `first` to 1 until `warmup` and falls along a cosine to `min_lr_ratio` until `total`.

        min_lr_ratio + (1 - min_lr_ratio)(1 + cos(pi s))/2 ,   s = (spent - warmup)/(total - warmup)

    Warm-up and total are in the unit that the schedule counts.
    """

    warmup: float | int
    total: float | int
    min_lr_ratio: float | int = 0.1
    first: float | int = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.total:
            reject("warmup", self.warmup, f"the whole takes {self.total}", "Pass 0 <= warmup < total.")
        fraction(min_lr_ratio=self.min_lr_ratio, first=self.first)

    def factor(self, spent: float | int) -> float:
        """What the rate is multiplied by after `spent`."""
        if spent < self.warmup:
            return self.first + (1.0 - self.first) * spent / self.warmup
        s = min(1.0, (spent - self.warmup) / (self.total - self.warmup))
        return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * (0.5 * (1.0 + math.cos(math.pi * s)))


Count: TypeAlias = Callable[[float | int | None, float], float]
"""What one update adds to the time spent, from the amount that the loop says of it and the seconds that it took."""


def by_updates(amount: float | int | None, seconds: float) -> float:
    """Counts updates."""
    return 1.0


def by_tokens(amount: float | int | None, seconds: float) -> float:
    """Counts tokens: `schedule.step(tokens)`."""
    if amount is None or not amount >= 0:
        reject("amount", amount, "this schedule counts tokens", "Call schedule.step(tokens of the update).")
    return float(amount)


def by_seconds(amount: float | int | None, seconds: float) -> float:
    """Counts seconds of training, without those between saving and resuming."""
    return seconds


@final
class Schedule:
    """Multiplies the rates of an optimiser's groups by a factor of the training time spent.

    Used as torch's schedulers are: `optimiser.step(); schedule.step()`, with `state_dict` and `get_last_lr`. With
    updates counted it equals `torch.optim.lr_scheduler.LambdaLR(optimiser, cosine.factor)`.
    """

    def __init__(
        self,
        optimiser: Optimizer,
        curve: CosineDecay,
        count: Count = by_updates,
        spent: float | int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.optimiser, self.curve, self.count, self.now = optimiser, curve, count, now
        self.spent = float(spent)
        # as torch's schedulers do: saved with its optimiser, a group remembers its highest rate
        self.base = [group.setdefault("initial_lr", group["lr"]) for group in optimiser.param_groups]
        self._apply()

    def step(self, amount: float | int | None = None) -> None:
        """Counts one update, and sets the rates of the next."""
        self.spent += self.count(amount, self.now() - self._last)
        self._apply()

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimiser.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent, "base": list(self.base)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["base"]) != len(self.optimiser.param_groups):
            why = f"the optimiser has {len(self.optimiser.param_groups)} groups"
            reject("state", len(state["base"]), why, "Load it beside the optimiser it was saved with.")
        self.spent, self.base = float(state["spent"]), list(state["base"])
        self._apply()

    def _apply(self) -> None:
        self._last = self.now()
        factor = self.curve.factor(self.spent)
        for group, rate in zip(self.optimiser.param_groups, self.base, strict=True):
            group["lr"] = rate * factor


@torch.no_grad()
def clip_gradients(module: nn.Module, limit: float) -> Tensor:
    """Scales all gradients of `module` so that their joint norm is at most `limit`; returns the norm before.

    Equals `torch.nn.utils.clip_grad_norm_`, sharded parameters included. An infinite limit measures and checks only.
    """
    if not limit > 0:
        reject("limit", limit, "a norm is positive", "Pass limit > 0, or math.inf to check gradients only.")
    graded = [(name, p.grad) for name, p in module.named_parameters() if p.grad is not None]
    parts = [(name, torch.linalg.vector_norm(g)) for name, g in graded]
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
    factor = float(limit / (total + 1e-6))  # torch's own formula: equal gradients, to the last digit
    if factor < 1.0:
        for kind in (True, False):  # shards and whole tensors do not mix in one call
            grads = [g for _, g in graded if hasattr(g, "device_mesh") is kind]
            if grads:
                foreach.mul_(grads, factor)
    return total
