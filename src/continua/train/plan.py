"""What a training run does: how long, how fast, how often it looks up."""

import dataclasses
import math
from typing import final

from continua.core.errors import reject


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """Updates of `batch` sequences; the rate rises linearly over the first `warmup` share and falls by a cosine.

    - `clip`: the largest norm of a gradient, longer ones are shortened to it;
    - `evaluations`: how often, evenly spread and at the end, the validation split is read;
    - `checkpoints`: how often a checkpoint is written, likewise;
    - `jitter`: each update has a depth grid of its own, the inner depths of the model's moved at random by up to this
      share of half a step to either side; as many steps, no more evaluations;
    - `floor`: the share of the highest rate that the cosine falls to.
    """

    updates: int
    batch: int
    seed: int = 0
    warmup: float = 0.1
    clip: float = 1.0
    evaluations: int = 5
    checkpoints: int = 5
    jitter: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("updates", "batch", "evaluations", "checkpoints"):
            if getattr(self, name) < 1:
                reject(name, getattr(self, name), "training needs at least one", f"Pass {name} >= 1.")
        if not 0.0 <= self.warmup < 1.0:
            reject("warmup", self.warmup, "this is no share of the updates", "Pass 0 <= warmup < 1.")
        if not 0.0 <= self.floor <= 1.0:
            reject("floor", self.floor, "this is no share of the highest rate", "Pass 0 <= floor <= 1.")
        if not 0.0 < self.clip < math.inf:
            reject("clip", self.clip, "a norm is positive", "Pass clip > 0.")
        if not 0.0 <= self.jitter <= 1.0:
            reject("jitter", self.jitter, "depths that move by more would pass one another", "Pass 0 <= jitter <= 1.")

    def rate(self, update: int) -> float:
        """The learning rate of an update, as a share of the highest: linear to 1, then a cosine towards `floor`."""
        done, rise = update / self.updates, self.warmup
        if done < rise:
            return (update + 1) / (rise * self.updates + 1)
        fall = 0.5 * (1.0 + math.cos(math.pi * (done - rise) / (1.0 - rise)))
        return self.floor + (1.0 - self.floor) * fall

    def evaluates(self, update: int) -> bool:
        """Whether the validation split is read after this many updates."""
        return _due(update, self.updates, self.evaluations)

    def keeps(self, update: int) -> bool:
        """Whether a checkpoint is written after this many updates."""
        return _due(update, self.updates, self.checkpoints)


def _due(update: int, updates: int, times: int) -> bool:
    """Whether one of `times` evenly spread moments, the last at the end, falls on this update."""
    return (update * times) // updates > ((update - 1) * times) // updates
