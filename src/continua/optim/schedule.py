"""Rates over training time: cosine with warm-up, the time counted in updates, tokens or seconds."""

import abc
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, final

from torch.optim import Optimizer

from continua.core.errors import reject


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
        for name, value in (("floor", self.floor), ("first", self.first)):
            if not 0 <= value <= 1:
                reject(name, value, "it is a share of the rate", f"Pass 0 <= {name} <= 1.")

    def factor(self, spent: float | int) -> float:
        """What the rate is multiplied by after `spent`."""
        if spent < self.warmup:
            return self.first + (1.0 - self.first) * spent / self.warmup
        share = min(1.0, (spent - self.warmup) / (self.total - self.warmup))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * share))


class AbstractClock(abc.ABC):
    """How training time is counted."""

    @abc.abstractmethod
    def spent(self, amount: float | int | None, elapsed: float) -> float:
        """What one update adds: `amount` is what the loop says of it, `elapsed` its seconds."""


@final
@dataclasses.dataclass(frozen=True)
class Updates(AbstractClock):
    """Counts updates."""

    def spent(self, amount: float | int | None, elapsed: float) -> float:
        return 1.0


@final
@dataclasses.dataclass(frozen=True)
class Tokens(AbstractClock):
    """Counts tokens: `schedule.step(tokens)`."""

    def spent(self, amount: float | int | None, elapsed: float) -> float:
        if amount is None or not amount >= 0:
            reject("amount", amount, "this schedule counts tokens", "Call schedule.step(tokens of the update).")
        return float(amount)


@final
@dataclasses.dataclass(frozen=True)
class Seconds(AbstractClock):
    """Counts seconds of training, without those between saving and resuming."""

    def spent(self, amount: float | int | None, elapsed: float) -> float:
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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.optimiser, self.curve, self.clock, self.now = optimiser, curve, clock, now
        self.spent = 0.0
        self.base = [group.setdefault("initial_lr", group["lr"]) for group in optimiser.param_groups]
        self._apply()

    def step(self, amount: float | int | None = None) -> None:
        """Counts one update, and sets the rates of the next."""
        self.spent += self.clock.spent(amount, self.now() - self._last)
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
