"""What the loop does around an update: rates over training time (updates, tokens or seconds), and gradient clipping."""

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from continua.core.checks import share
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.optim.optimiser import foreach


@final
@dataclasses.dataclass(frozen=True)
class CosineDecay:
    """A factor that rises from `first` to 1 until `warmup` and falls along a cosine to `floor` until `total`.

        floor + (1 - floor)(1 + cos(pi s))/2 ,   s = (spent - warmup)/(total - warmup)

    Warm-up and total are in the unit of the clock.
    """

    warmup: float | int
    total: float | int
    floor: float | int = 0.1
    first: float | int = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.total:
            reject("warmup", self.warmup, f"the whole takes {self.total}", "Pass 0 <= warmup < total.")
        share(floor=self.floor, first=self.first)

    def factor(self, spent: float | int) -> float:
        """What the rate is multiplied by after `spent`."""
        if spent < self.warmup:
            return self.first + (1.0 - self.first) * spent / self.warmup
        s = min(1.0, (spent - self.warmup) / (self.total - self.warmup))
        return self.floor + (1.0 - self.floor) * (0.5 * (1.0 + math.cos(math.pi * s)))


class AbstractClock(abc.ABC):
    """How training time is counted."""

    @abc.abstractmethod
    def count(self, amount: float | int | None, elapsed: float) -> float:
        """What one update adds: `amount` is what the loop says of it, `elapsed` its seconds."""


@final
@dataclasses.dataclass(frozen=True)
class Updates(AbstractClock):
    """Counts updates."""

    def count(self, amount: float | int | None, elapsed: float) -> float:
        return 1.0


@final
@dataclasses.dataclass(frozen=True)
class Tokens(AbstractClock):
    """Counts tokens: `schedule.step(tokens)`."""

    def count(self, amount: float | int | None, elapsed: float) -> float:
        if amount is None or not amount >= 0:
            reject("amount", amount, "this schedule counts tokens", "Call schedule.step(tokens of the update).")
        return float(amount)


@final
@dataclasses.dataclass(frozen=True)
class Seconds(AbstractClock):
    """Counts seconds of training, without those between saving and resuming."""

    def count(self, amount: float | int | None, elapsed: float) -> float:
        return elapsed


@final
class Schedule:
    """Multiplies the rates of an optimiser's groups by a factor of the training time spent.

    Used as torch's schedulers are: `optimiser.step(); schedule.step()`, with `state_dict` and `get_last_lr`. With
    updates as clock it equals `torch.optim.lr_scheduler.LambdaLR(optimiser, cosine.factor)`.
    """

    def __init__(
        self,
        optimiser: Optimizer,
        curve: CosineDecay,
        clock: AbstractClock = Updates(),
        spent: float | int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.optimiser, self.curve, self.clock, self.now = optimiser, curve, clock, now
        self.spent = float(spent)
        # as torch's schedulers do: saved with its optimiser, a group remembers its highest rate
        self.base = [group.setdefault("initial_lr", group["lr"]) for group in optimiser.param_groups]
        self._apply()

    def step(self, amount: float | int | None = None) -> None:
        """Counts one update, and sets the rates of the next."""
        self.spent += self.clock.count(amount, self.now() - self._last)
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The rates of the groups as they are."""
        return [group["lr"] for group in self.optimiser.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""
        return {"spent": self.spent, "base": list(self.base)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the saved schedule was."""
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


def clip_gradients(module: nn.Module, limit: float) -> Tensor:
    """Scales all gradients of `module` so that their joint norm is at most `limit`; returns the norm before.

    Equals `torch.nn.utils.clip_grad_norm_`, sharded parameters included. An infinite limit measures and checks only.
    """
    return _clip(list(module.named_parameters()), limit)


def clip_groups(optimiser: Optimizer, limit: float) -> list[Tensor]:
    """Scales the gradients of each parameter group by themselves; returns the norm of each before."""
    norms = []
    for place, group in enumerate(optimiser.param_groups):
        names = group.get("param_names") or [f"parameter {i} of group {place}" for i in range(len(group["params"]))]
        norms.append(_clip(list(zip(names, group["params"], strict=True)), limit))
    return norms


@torch.no_grad()
def _clip(named: Iterable[tuple[str, Tensor]], limit: float) -> Tensor:
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
    factor = float(limit / (total + 1e-6))  # torch's own formula: equal gradients, to the last digit
    if factor < 1.0:
        for kind in (True, False):  # shards and whole tensors do not mix in one call
            grads = [p.grad for _, p in graded if hasattr(p.grad, "device_mesh") is kind]
            if grads:
                foreach.mul_(grads, factor)
    return total
