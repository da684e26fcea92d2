"""Classification of multivariate time series from files of the UEA archive, ragged ones included."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.files import remembered
from continua.data.measures import label_hits
from continua.data.task import AbstractTask, Form, Preset, Question, Split, Wording
from continua.data.ts_file import LabelledSeries, read_ts

_FIFTH = 5
_ENOUGH = 10
"""So many series, at least, are held out for validation."""


@final
@dataclasses.dataclass(frozen=True)
class Uea(AbstractTask):
    """Series of a `..._TRAIN.ts` file for training and of `..._TEST.ts`, beside it, for the test.

    For validation a fifth of each class of the training file is held out, drawn once for all, where that makes ten
    series or more; of a smaller file nothing can be spared, and validation reads the test file. Each feature is centred
    and scaled by what is trained on; a constant one is refused. The longest series in training spans token time [0, 1],
    shorter ones end earlier.
    """

    file: Path

    @property
    def name(self) -> str:
        return "uea"

    @property
    def form(self) -> Form:
        train = self._part(Split.TRAIN)
        spacing = 1.0 / max(1, max(len(series) for series in train.series) - 1)
        return Form(len(train.classes), Question.LABEL, features=train.series[0].shape[1], spacing=spacing)

    @property
    def augmentation(self) -> str:
        return ""

    def presets(self) -> Mapping[str, Preset]:
        demo = Preset(48, 3, 96, energy=0.01, stem_radius=5.0, stem_modes=9, updates=500, batch=16)
        return {"demo": demo, "full": dataclasses.replace(demo, updates=5000)}

    def count(self, split: Split) -> int:
        return len(self._part(split).labels)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        part, spacing = self._part(split), self.form.spacing
        chosen = [part.series[i] for i in index.tolist()]
        lengths = torch.tensor([len(series) for series in chosen])
        values = pad_sequence(chosen, batch_first=True)
        place = torch.arange(values.shape[1]).expand(len(chosen), -1)
        present = place < lengths[:, None]
        labels = torch.tensor([part.labels[i] for i in index.tolist()])
        return Batch((values, torch.where(present, place * spacing, 0.0), present), labels)

    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def measures(self, output: Tensor, targets: Tensor) -> dict[str, Float[Tensor, " size"]]:
        return {"accuracy": label_hits(output, targets)}

    @property
    def better(self) -> int:
        return 1

    @property
    def wording(self) -> Wording:
        return Wording(names=self._part(Split.TRAIN).classes)

    def facts(self) -> dict[str, Any]:
        counts = {
            "training samples": self.count(Split.TRAIN),
            "validation samples": self.count(Split.VALIDATION),
            "test samples": self.count(Split.TEST),
            "classes": list(self._part(Split.TRAIN).classes),
        }
        borrowed = self._part(Split.VALIDATION) is self._part(Split.TEST)
        return {**counts, "validation": "the test samples"} if borrowed else counts

    def variants(self) -> Mapping[str, AbstractTask]:
        return {}

    def _part(self, split: Split) -> LabelledSeries:
        return _read(self.file)[split]


@remembered
def _read(file: Path) -> Mapping[Split, LabelledSeries]:
    """The parts of both files, centred and scaled."""
    if not file.name.endswith("_TRAIN.ts"):
        cure = "Pass NAME_TRAIN.ts, with NAME_TEST.ts beside it."
        reject("file", str(file), "the test file is found by the name of the training file", cure)
    whole = read_ts(file)
    test = read_ts(file.with_name(file.name.replace("_TRAIN.ts", "_TEST.ts")), whole.classes)
    if test.series[0].shape[1] != whole.series[0].shape[1]:
        reject("file", str(file), "training and test have different dimensions", "Pass files of one data set.")
    held = _held(whole.labels)
    train = _chosen(whole, [i for i in range(len(whole.labels)) if i not in held])
    every = torch.cat(train.series)
    mean, scale = every.mean(0), every.std(0)
    if not bool((scale > 0).all()):
        dimension = int((~(scale > 0)).nonzero()[0]) + 1
        reject("file", str(file), f"dimension {dimension} is constant in all rows", "Leave it out.")

    def scaled(part: LabelledSeries) -> LabelledSeries:
        return part._replace(series=[(series - mean) / scale for series in part.series])

    tested = scaled(test)
    validated = scaled(_chosen(whole, sorted(held))) if held else tested
    return {Split.TRAIN: scaled(train), Split.VALIDATION: validated, Split.TEST: tested}


def _held(labels: Sequence[int]) -> set[int]:
    """A fifth of the series of each class, drawn at random but always the same; none where that makes too few."""
    order = torch.randperm(len(labels), generator=generator_of(0)).tolist()
    by_class = {label: [i for i in order if labels[i] == label] for label in set(labels)}
    held = {i for own in by_class.values() for i in own[: len(own) // _FIFTH]}
    return held if len(held) >= _ENOUGH else set()


def _chosen(whole: LabelledSeries, index: Sequence[int]) -> LabelledSeries:
    return LabelledSeries([whole.series[i] for i in index], [whole.labels[i] for i in index], whole.classes)
