"""MNIST-1D: forty samples of a distorted, shifted, noisy digit, to be told from ten classes."""

import dataclasses
import functools
import random
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from continua.core.batch import Batch
from continua.core.checks import share
from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.measures import label_hits
from continua.data.sampling import drop_samples, interpolate, roll
from continua.data.task import AbstractTask, Form, Preset, Question, Split, Wording

_VALIDATION = 500
"""Of the 4,000 training samples, the last 500 are for validation where they are held out."""


@final
@dataclasses.dataclass(frozen=True)
class Mnist1d(AbstractTask):
    """The data set of S. Greydanus, Scaling down deep learning (2020), generated here by the package `mnist1d`.

    Token time is [0, 1]. The split is the generator's own: 4,000 for training, 1,000 for the test.

    - `shift`: training signals are shifted in a circle, as the generator itself does with its templates;
    - `dropped`: of every training batch a random share of the samples, from 0 to this, is dropped;
    - `test_dropped`, `test_samples`: the test with this share dropped (drawn from `seed`), or interpolated at so many
      equispaced times;
    - `held_out`: train on 3,500 and validate on the other 500; otherwise the test split is also the validation.
    """

    shift: bool = True
    dropped: float = 0.0
    test_dropped: float = 0.0
    test_samples: int | None = None
    held_out: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        share(0.9, dropped=self.dropped, test_dropped=self.test_dropped)

    @property
    def name(self) -> str:
        return "mnist1d"

    @property
    def form(self) -> Form:
        return Form(outputs=10, question=Question.LABEL, features=1, span=1.0, spacing=1.0 / 39.0)

    @property
    def augmentation(self) -> str:
        shift = ["circular shifts by a random number of samples"] if self.shift else []
        drop = [f"0 to {self.dropped:.0%} of the samples dropped at random"] if self.dropped else []
        return " and ".join(shift + drop)

    def presets(self) -> Mapping[str, Preset]:
        demo = Preset(48, 3, 96, energy=0.003, stem_radius=5.5, stem_modes=11, updates=2200, lr=5e-3)
        demo = dataclasses.replace(demo, stem_gaps=self.dropped > 0.0)
        return {"demo": demo, "full": dataclasses.replace(demo, updates=10_000)}

    def count(self, split: Split) -> int:
        return len(self._part(split)[1])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        values, labels = (tensor[index] for tensor in self._part(split))
        times = torch.linspace(0.0, 1.0, values.shape[1]).expand(len(index), -1)
        if split is not Split.TRAIN and self.test_dropped > 0.0:
            # each sample has a subset of its own, whatever the batch it stands in
            own = [drop_samples(v[None], times[:1], self.test_dropped, generator_of(self.seed * 10**6 + int(i)))
                   for v, i in zip(values, index, strict=True)]  # fmt: skip
            values, times = torch.cat([v for v, _ in own]), torch.cat([t for _, t in own])
        if split is not Split.TRAIN and self.test_samples is not None:
            values, times = interpolate(values, times, self.test_samples)
        return Batch((values, times), labels)

    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        values, times = batch.inputs
        assert values is not None and times is not None
        if self.shift:
            values = roll(values, generator)
        if self.dropped > 0.0:
            dropped = self.dropped * float(torch.rand((), generator=generator))
            values, times = drop_samples(values, times, dropped, generator)
        return Batch((values, times), batch.targets)

    def measures(self, output: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
        return {"accuracy": label_hits(output, targets)}

    @property
    def better(self) -> int:
        return 1

    @property
    def wording(self) -> Wording:
        return Wording()

    def facts(self) -> dict[str, Any]:
        counts = {"training samples": self.count(Split.TRAIN), "test samples": self.count(Split.TEST), "classes": 10}
        return counts if self.held_out else {**counts, "validation": "the test samples"}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {
            "half of the samples dropped": dataclasses.replace(self, test_dropped=0.5),
            "80 interpolated samples": dataclasses.replace(self, test_samples=80),
        }

    def _part(self, split: Split) -> tuple[Tensor, Tensor]:
        train, test = _generated()
        if split is Split.TEST or (split is Split.VALIDATION and not self.held_out):
            return test
        if not self.held_out:
            return train
        kept = slice(-_VALIDATION, None) if split is Split.VALIDATION else slice(0, -_VALIDATION)
        return train[0][kept], train[1][kept]


@functools.cache
def _generated() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Values (samples, 40, 1) and labels of both splits; the global random states are left as they were."""
    make_dataset = extra("mnist1d.data", "data").make_dataset
    states = random.getstate(), np.random.get_state()
    try:
        data = make_dataset()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])

    def part(suffix: str) -> tuple[Tensor, Tensor]:
        values = torch.tensor(data["x" + suffix], dtype=torch.float32)
        return values.unsqueeze(-1), torch.tensor(data["y" + suffix])

    return part(""), part("_test")
