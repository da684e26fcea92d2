"""MNIST-1D: forty samples of a distorted, shifted, noisy digit, one of ten classes."""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
import torch

from continua.core.batch import Batch
from continua.core.checks import fraction
from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Int, Tensor
from continua.data.sampling import drop_samples, interpolate, roll
from continua.data.task import AbstractTask, Form, Question, Split


@final
@dataclasses.dataclass(frozen=True)
class Mnist1d(AbstractTask):
    """The data set of S. Greydanus, Scaling down deep learning (2020), generated here by the package `mnist1d`.

    Token time is the place in the signal, from 0 to 1. The split is the generator's own: 4,000 for training, 1,000 for
    the test, which is also the validation. Training signals are shifted in a circle, as the generator itself does with
    its templates, and of every batch a random fraction of the samples, from 0 to `missing`, is left out.

    `test_missing`, `test_samples`: the test with this fraction missing, or interpolated at so many equispaced times.
    """

    missing: float = 0.0
    test_missing: float = 0.0
    test_samples: int | None = None

    name = "mnist1d"

    def __post_init__(self) -> None:
        fraction(0.9, missing=self.missing, test_missing=self.test_missing)

    @property
    def form(self) -> Form:
        return Form(outputs=10, question=Question.LABEL, features=1, spacing=1.0 / 39.0, gaps=self.missing > 0.0)

    def count(self, split: Split) -> int:
        return len(_generate()[split is not Split.TRAIN][1])

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        values, labels = (tensor[index] for tensor in _generate()[split is not Split.TRAIN])
        times = torch.linspace(0.0, 1.0, values.shape[1]).expand(len(index), -1)
        if split is not Split.TRAIN and self.test_missing > 0.0:
            # each sample has a subset of its own, whatever the batch it stands in
            own = [drop_samples(v[None], times[:1], self.test_missing, generator_of(int(i)))
                   for v, i in zip(values, index, strict=True)]  # fmt: skip
            values, times = torch.cat([v for v, _ in own]), torch.cat([t for _, t in own])
        if split is not Split.TRAIN and self.test_samples is not None:
            values, times = interpolate(values, times, self.test_samples)
        return Batch((values, times), labels)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        values, times = roll(batch.inputs[0], generator), batch.inputs[1]
        if self.missing > 0.0:
            missing = self.missing * float(torch.rand((), generator=generator))
            values, times = drop_samples(values, times, missing, generator)
        return Batch((values, times), batch.targets)

    def details(self) -> dict[str, Any]:
        drop = f" and 0 to {self.missing:.0%} of the samples missing at random" if self.missing else ""
        shift = "circular shifts by a random number of samples"
        return {"classes": 10, "validation": "the test examples", "augmentation": shift + drop}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {
            "half of the samples missing": dataclasses.replace(self, test_missing=0.5),
            "80 interpolated samples": dataclasses.replace(self, test_samples=80),
        }


@contextlib.contextmanager
def _preserve_random_states() -> Iterator[None]:
    """The package seeds the global random states of Python and numpy, which are not ours to change."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@functools.cache
def _generate() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Values (samples, 40, 1) and labels of both splits."""
    with _preserve_random_states():
        data = extra("mnist1d.data", "data").make_dataset()

    def part(suffix: str) -> tuple[Tensor, Tensor]:
        values = torch.tensor(data["x" + suffix], dtype=torch.float32)
        return values.unsqueeze(-1), torch.tensor(data["y" + suffix])

    return part(""), part("_test")


@functools.cache
def raw_mnist1d() -> tuple[Tensor, Tensor]:
    """All 5,000 signals (signals, 40) of the data set in the generator's own units, and labels, in its own order.

    The package gives them less their mean and over their deviation, which it does not return; so they are drawn again
    from the same seed, by the same calls in the same order.
    """
    package: Any = extra("mnist1d.data", "data")
    arguments, templates = package.get_dataset_args(), package.get_templates()
    with _preserve_random_states():
        extra("mnist1d.utils", "data").set_seed(arguments.seed)
        each = arguments.num_samples // 10
        signals = [package.transform(row, templates["t"], arguments)[0] for row in templates["x"] for _ in range(each)]
        order = np.random.permutation(len(signals))
    return torch.tensor(np.stack(signals)[order]), torch.tensor(order // each)
