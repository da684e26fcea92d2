"""Classification of multivariate time series from files of the UEA archive, ragged ones included."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Float, Int, Tensor
from continua.data.measures import label_hits
from continua.data.task import AbstractTask, Form, Preset, Question, Split
from continua.data.ts_file import LabelledSeries, read_ts


@final
@dataclasses.dataclass(frozen=True)
class Uea(AbstractTask):
    """Series of a `..._TRAIN.ts` file for training and of `..._TEST.ts`, beside it, for validation and test.

    Each feature is centred and scaled by the training file; a constant one is refused. The longest training series
    spans token time [0, 1], shorter ones end earlier.
    """

    file: Path

    @property
    def name(self) -> str:
        return "uea"

    @property
    def form(self) -> Form:
        train, _ = _read(self.file)
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

    def facts(self) -> dict[str, Any]:
        sizes = {"training samples": self.count(Split.TRAIN), "test samples": self.count(Split.TEST)}
        return {**sizes, "classes": list(_read(self.file)[0].classes), "validation": "the test samples"}

    def variants(self) -> Mapping[str, AbstractTask]:
        return {}

    def _part(self, split: Split) -> LabelledSeries:
        return _read(self.file)[0 if split is Split.TRAIN else 1]


@functools.lru_cache(maxsize=2)
def _read(file: Path) -> tuple[LabelledSeries, LabelledSeries]:
    """Both files, centred and scaled."""
    if not file.name.endswith("_TRAIN.ts"):
        cure = "Pass NAME_TRAIN.ts, with NAME_TEST.ts beside it."
        reject("file", str(file), "the test file is found by the name of the training file", cure)
    train = read_ts(file)
    test = read_ts(file.with_name(file.name.replace("_TRAIN.ts", "_TEST.ts")), train.classes)
    if test.series[0].shape[1] != train.series[0].shape[1]:
        reject("file", str(file), "training and test have different dimensions", "Pass files of one data set.")
    every = torch.cat(train.series)
    mean, scale = every.mean(0), every.std(0)
    if not bool((scale > 0).all()):
        dimension = int((~(scale > 0)).nonzero()[0]) + 1
        reject("file", str(file), f"dimension {dimension} is constant in all rows", "Leave it out.")
    parts = [part._replace(series=[(s - mean) / scale for s in part.series]) for part in (train, test)]
    return parts[0], parts[1]
