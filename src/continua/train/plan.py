"""What a training run does: how long, how fast, how often it looks up."""

import dataclasses
from typing import final

from continua.core.checks import at_least, positive, share
from continua.optim import CosineDecay


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """Updates of `batch_size` sequences; the rate rises linearly over the first `warmup` share and falls by a cosine.

    - `clip`: the largest norm of a gradient, longer ones are shortened to it;
    - `evaluations`: how often, evenly spread and at the end, the validation split is read;
    - `checkpoints`: how often a checkpoint is written, likewise;
    - `jitter`: each update has a depth grid of its own, the inner depths of the model's moved at random by up to this
      share of half a step to either side; as many steps, no more evaluations;
    - `floor`: the share of the highest rate that the cosine falls to.
    """

    updates: int
    batch_size: int
    seed: int = 0
    warmup: float = 0.1
    clip: float = 1.0
    evaluations: int = 5
    checkpoints: int = 5
    jitter: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        at_least(
            1,
            updates=self.updates,
            batch_size=self.batch_size,
            evaluations=self.evaluations,
            checkpoints=self.checkpoints,
        )
        share(all=False, warmup=self.warmup)
        share(floor=self.floor, jitter=self.jitter)
        positive(clip=self.clip)

    @property
    def curve(self) -> CosineDecay:
        """The learning rate over updates, as a share of the highest: linear to 1, then a cosine towards `floor`."""
        rise = self.warmup * self.updates
        return CosineDecay(rise, self.updates, self.floor, first=1.0 / (rise + 1.0))

    def evaluates(self, update: int) -> bool:
        """Whether the validation split is read after this many updates."""
        return _due(update, self.updates, self.evaluations)

    def keeps(self, update: int) -> bool:
        """Whether a checkpoint is written after this many updates."""
        return _due(update, self.updates, self.checkpoints)


def _due(update: int, updates: int, times: int) -> bool:
    """Whether one of `times` evenly spread moments, the last at the end, falls on this update."""
    return (update * times) // updates > ((update - 1) * times) // updates
