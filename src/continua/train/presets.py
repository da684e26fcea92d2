"""What a training run does, how long and how fast; sizes of models and of their training that suit the tasks."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import final

from continua.core.checks import at_least, positive, share
from continua.data import AbstractTask, Csv, Mnist1d, Split
from continua.optim import CosineDecay


class StepperKind(enum.StrEnum):
    """How depth is stepped in training."""

    EULER = "euler"
    MIDPOINT = "midpoint"
    SPLITTING = "splitting"


@final
@dataclasses.dataclass(frozen=True)
class Preset:
    """Sizes of a model and of its training that suit a task.

    The width, the heads that share it, the hidden size of the feed-forward, the Legendre modes of the weights along a
    depth that is solved in `steps` equal steps; the radius of the continuous local stem in units of the spacing (0: no
    stem), its modes, and whether it hears how far away samples are; updates, sequences in a batch, the highest learning
    rate of AdamW and that of SOAP, weight decay; the share of the updates in which the
    rate rises, the share of the highest rate that it falls to, and `beta2`, how much of its second moments AdamW keeps.
    With `jitter` every update solves on a grid of its own, the inner depths moved at random by up to this share of half
    a step: the weights then do not lean on one grid. Every further mode weighs `mode_ratio` times the one before
    (`DampedBasis`), and `energy` is the price of motion (`KineticEnergy`): both keep the flow so smooth that a few
    steps resolve it.
    """

    width: int = 48
    heads: int = 3
    hidden: int = 96
    modes: int = 3
    mode_ratio: float = 0.3
    depth: float = 1.0
    steps: int = 2
    stepper: StepperKind = StepperKind.MIDPOINT
    jitter: float = 1.0
    energy: float = 0.0
    stem_radius: float = 0.0
    stem_modes: int = 7
    stem_gaps: bool = False
    updates: int = 1000
    batch_size: int = 50
    learning_rate: float = 3e-3
    soap_learning_rate: float = 3e-3
    weight_decay: float = 0.05
    warmup_ratio: float = 0.1
    floor: float = 0.0
    beta2: float = 0.98


_DEMO = {
    "mnist1d": Preset(48, 3, 96, energy=0.003, stem_radius=5.5, stem_modes=11, updates=2200, learning_rate=5e-3),
    # the budget of nanoGPT's CPU recipe, width 128, 4 heads, 2,000 updates of 12 windows, about 0.8 M numbers, and its
    # AdamW: rate 1e-3 falling to 1e-4, a rise over the first twentieth, betas (0.9, 0.99), decay 0.1
    "text": Preset(128, 4, 512, modes=4, depth=1.5, updates=2000, batch_size=12, learning_rate=1e-3, weight_decay=0.1,
                   warmup_ratio=0.05, floor=0.1, beta2=0.99),
    "digits": Preset(32, 2, 64, steps=3, energy=0.002, updates=1000, learning_rate=5e-3),
    "spirals": Preset(48, 4, 96, steps=3, stem_radius=6.0, stem_gaps=True, updates=1000),
    "burgers": Preset(32, 2, 64, steps=3, stem_radius=3.0, stem_modes=5, updates=600, batch_size=16, weight_decay=0.0),
    "darcy": Preset(32, 4, 64, steps=3, updates=600, batch_size=8, weight_decay=0.0),
    "uea": Preset(48, 3, 96, energy=0.01, stem_radius=5.0, stem_modes=9, updates=500, batch_size=16),
    "csv": Preset(48, 4, 96, steps=3, stem_radius=6.0, stem_gaps=True, updates=500, batch_size=32),
}  # fmt: skip
_LONGER = {"mnist1d": 10_000, "text": 10_000, "digits": 4000, "spirals": 6000, "burgers": 6000, "darcy": 6000,
           "uea": 5000, "csv": 2000}  # fmt: skip

PRESETS: dict[str, dict[str, Preset]] = {
    task: {"demo": demo, "full": dataclasses.replace(demo, updates=_LONGER[task])} for task, demo in _DEMO.items()
}
"""The presets of every task, by name: the first, `demo`, is the default, `full` trains longer."""


def presets_of(task: AbstractTask) -> Mapping[str, Preset]:
    """The presets of a task, fitted to its data."""
    presets = PRESETS[task.name]
    if isinstance(task, Mnist1d) and task.dropped > 0.0:
        return {name: dataclasses.replace(preset, stem_gaps=True) for name, preset in presets.items()}
    if isinstance(task, Csv):  # a file of the user's may have fewer windows than the batch has sequences
        windows = task.count(Split.TRAIN)
        return {name: dataclasses.replace(p, batch_size=min(p.batch_size, windows)) for name, p in presets.items()}
    return presets


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """Updates of `batch_size` sequences; the rate rises linearly over the first `warmup_ratio` and falls by a cosine.

    - `clip`: the largest norm of a gradient, longer ones are shortened to it;
    - `validations`: how often, evenly spread and at the end, the validation split is read;
    - `checkpoints`: how often a checkpoint is written, likewise;
    - `jitter`: each update has a depth grid of its own, the inner depths of the model's moved at random by up to this
      share of half a step to either side; as many steps, no more evaluations;
    - `floor`: the share of the highest rate that the cosine falls to.
    """

    updates: int
    batch_size: int
    seed: int = 0
    warmup_ratio: float = 0.1
    clip: float = 1.0
    validations: int = 5
    checkpoints: int = 5
    jitter: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, updates=self.updates, batch_size=self.batch_size)
        at_least(1, validations=self.validations, checkpoints=self.checkpoints)
        share(all=False, warmup_ratio=self.warmup_ratio)
        share(floor=self.floor, jitter=self.jitter)
        positive(clip=self.clip)

    @property
    def curve(self) -> CosineDecay:
        """The learning rate over updates, as a share of the highest: linear to 1, then a cosine towards `floor`."""
        rise = self.warmup_ratio * self.updates
        return CosineDecay(rise, self.updates, self.floor, first=1.0 / (rise + 1.0))

    def validates(self, update: int) -> bool:
        """Whether the validation split is read after this many updates."""
        return _due(update, self.updates, self.validations)

    def keeps(self, update: int) -> bool:
        """Whether a checkpoint is written after this many updates."""
        return _due(update, self.updates, self.checkpoints)


def _due(update: int, updates: int, times: int) -> bool:
    """Whether one of `times` evenly spread moments, the last at the end, falls on this update."""
    return (update * times) // updates > ((update - 1) * times) // updates
