"""Handwritten digits of 8 x 8 pixels as clouds of 64 tokens."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

import torch

from continua.core.batch import Batch
from continua.core.checks import fraction
from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Int, Tensor
from continua.data.sampling import drop_samples, fourier_features
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_SIDE = 8
_VALIDATION, _TEST = 200, 360
_WAVES = 3
"""Waves that tell rows apart, and as many for columns: a line through 0 and 1 would have to be bent by the flow."""


@final
@dataclasses.dataclass(frozen=True)
class Digits(AbstractTask):
    """The digits of scikit-learn (E. Alpaydin and C. Kaynak, 1998): 1,237 to train, 200 to validate, 360 to test.

    A token is a pixel; its features are its brightness b in [0, 1], the waves cos(pi k p) and sin(pi k p), k = 1 to 3,
    of its row and its column p in [0, 1], and b times each of them, so that a mean over pixels knows where they are
    bright. Token time is the pixel's place along the rows, from 0 to 1. A random fraction of the pixels, from 0 to
    `missing`, is left out of every training batch, `test_missing` of the test.
    """

    missing: float = 0.0
    test_missing: float = 0.0

    name = "digits"

    def __post_init__(self) -> None:
        fraction(0.9, missing=self.missing, test_missing=self.test_missing)

    @property
    def form(self) -> Form:
        size, wording = 1 + 8 * _WAVES, Wording(picture=_SIDE)
        about = {"spacing": 1.0 / (_SIDE**2 - 1), "wording": wording, "gaps": self.missing > 0.0}
        return Form(10, Question.LABEL, features=size, span=1.0, **about)

    def count(self, split: Split) -> int:
        held = {Split.VALIDATION: _VALIDATION, Split.TEST: _TEST}
        return held[split] if split in held else len(_load()[1]) - sum(held.values())

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        before = list(Split)[: list(Split).index(split)]
        values, labels = (tensor[index + sum(map(self.count, before))] for tensor in _load())
        times = torch.linspace(0.0, 1.0, _SIDE**2).expand(len(index), -1)
        if split is not Split.TRAIN and self.test_missing > 0.0:
            values, times = drop_samples(values, times, self.test_missing, generator_of(int(index[0])))
        return Batch((values, times), labels)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self.missing == 0.0:
            return batch
        values, times = batch.inputs
        missing = self.missing * float(torch.rand((), generator=generator))
        return Batch(drop_samples(values, times, missing, generator), batch.targets)

    def details(self) -> dict[str, Any]:
        drop = f"0 to {self.missing:.0%} of the pixels missing at random"
        return {"classes": 10, "augmentation": drop} if self.missing else {"classes": 10}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {"half of the pixels missing": dataclasses.replace(self, test_missing=0.5)}


@functools.cache
def _load() -> tuple[Tensor, Tensor]:
    """(samples, 64, features) and labels, in an order drawn once for all."""
    images, labels = extra("sklearn.datasets", "data").load_digits(return_X_y=True)
    bright = torch.tensor(images, dtype=torch.float32).unsqueeze(-1) / 16.0
    place = torch.arange(_SIDE, dtype=torch.float32) / (_SIDE - 1)
    waves = fourier_features(torch.cartesian_prod(place, place), _WAVES)
    # the file has its digits writer by writer: unshuffled, the test would be of other writers than the training
    order = torch.randperm(len(bright), generator=generator_of(0))
    values = torch.cat([bright, waves.expand(len(bright), -1, -1), bright * waves], -1)
    return values[order], torch.tensor(labels)[order]
