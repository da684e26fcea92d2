"""Classification of multivariate time series from files of the UEA archive, ragged ones included."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.checks import share
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.files import read_number, read_text, refuse_row, version_of
from continua.data.sampling import Samples, fill_samples, keep_samples
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_ENOUGH = 10
"""So many series, at least, are held out for validation."""


@final
@dataclasses.dataclass(frozen=True)
class Uea(AbstractTask):
    """Series of a `..._TRAIN.ts` file for training and of `..._TEST.ts`, beside it, for the test.

    For validation a fifth of each class of the training file is held out, drawn once for all, where that makes ten
    series or more; of a smaller file nothing can be spared, and validation reads the test file. Each feature is centred
    and scaled by what is trained on; a constant one is refused. Token time is the index of a sample in units of the
    longest training series, which spans [0, 1]; shorter ones end earlier.

    Of every training batch a random share of the samples, from 0 to `dropped`, is dropped; `test_dropped`: validation
    and test without this share, each series without samples of its own. `interpolated`: what was dropped is filled
    in on straight lines, as for models that want a regular grid.
    """

    file: Path
    dropped: float = 0.0
    test_dropped: float = 0.0
    interpolated: bool = False

    name = "uea"

    def __post_init__(self) -> None:
        share(0.9, dropped=self.dropped, test_dropped=self.test_dropped)

    @property
    def form(self) -> Form:
        train = self._part(Split.TRAIN)
        spacing = 1.0 / max(1, max(len(series) for series in train.series) - 1)
        features, wording = train.series[0].shape[1], Wording(names=train.classes)
        gaps = self.dropped > 0.0 and not self.interpolated
        return Form(len(train.classes), Question.LABEL, features=features, spacing=spacing, wording=wording, gaps=gaps)

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
        samples = Samples(values, torch.where(present, place * spacing, 0.0), present)
        if split is not Split.TRAIN and self.test_dropped > 0.0:  # whatever the batch that a series stands in
            order = [
                torch.rand(len(series), generator=generator_of(i))
                for i, series in zip(index.tolist(), chosen, strict=True)
            ]
            samples = self._drop(samples, self.test_dropped, pad_sequence(order, batch_first=True))
        return Batch(tuple(samples), labels)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self.dropped == 0.0:
            return batch
        dropped = self.dropped * float(torch.rand((), generator=generator))
        samples = Samples(*batch.inputs)
        order = torch.rand(samples.present.shape, generator=generator)
        return Batch(tuple(self._drop(samples, dropped, order)), batch.targets)

    def details(self) -> dict[str, Any]:
        validation, train = self._part(Split.VALIDATION), self._part(Split.TRAIN)
        found = {"validation samples": len(validation.labels), "classes": list(train.classes)}
        if self.dropped:
            filled = ", and filled in on straight lines" if self.interpolated else ""
            found["augmentation"] = f"0 to {self.dropped:.0%} of the samples dropped at random{filled}"
        return {**found, "validation": "the test samples"} if validation is self._part(Split.TEST) else found

    def variants(self) -> Mapping[str, AbstractTask]:
        shares = (0.3, 0.5, 0.7)
        return {f"{part:.0%} of the samples dropped": dataclasses.replace(self, test_dropped=part) for part in shares}

    def _drop(self, samples: Samples, dropped: float, order: Tensor) -> Samples:
        kept = keep_samples(samples, dropped, order)
        return fill_samples(kept, self.form.spacing) if self.interpolated else kept

    def _part(self, split: Split) -> "LabelledSeries":
        return _read(self.file, version_of(self.file))[split]


class LabelledSeries(NamedTuple):
    """Series (tokens, features), the number of each one's class, and the classes in the order of their numbers."""

    series: list[Tensor]
    labels: list[int]
    classes: tuple[str, ...]

    def select(self, index: Sequence[int]) -> "LabelledSeries":
        """Some of the series."""
        return LabelledSeries([self.series[i] for i in index], [self.labels[i] for i in index], self.classes)


@functools.lru_cache(maxsize=2)
def _read(file: Path, version: tuple[int, ...]) -> Mapping[Split, LabelledSeries]:
    """The parts of both files, centred and scaled."""
    if not file.name.endswith("_TRAIN.ts"):
        cure = "Pass NAME_TRAIN.ts, with NAME_TEST.ts beside it."
        reject("file", str(file), "the test file is found by the name of the training file", cure)
    whole = read_ts(file)
    test = read_ts(file.with_name(file.name.replace("_TRAIN.ts", "_TEST.ts")), whole.classes)
    if test.series[0].shape[1] != whole.series[0].shape[1]:
        reject("file", str(file), "training and test have different dimensions", "Pass files of one data set.")
    held = _hold_out(whole.labels)
    train = whole.select([i for i in range(len(whole.labels)) if i not in held])
    every = torch.cat(train.series)
    mean, scale = every.mean(0), every.std(0)
    if not bool((scale > 0).all()):
        dimension = int((~(scale > 0)).nonzero()[0]) + 1
        reject("file", str(file), f"dimension {dimension} is constant in all rows", "Leave it out.")

    def standardise(part: LabelledSeries) -> LabelledSeries:
        return part._replace(series=[(series - mean) / scale for series in part.series])

    test = standardise(test)
    validation = standardise(whole.select(sorted(held))) if held else test
    return {Split.TRAIN: standardise(train), Split.VALIDATION: validation, Split.TEST: test}


def _hold_out(labels: Sequence[int]) -> set[int]:
    """A fifth of the series of each class, drawn at random but always the same; none where that makes too few."""
    order = torch.randperm(len(labels), generator=generator_of(0)).tolist()
    by_class = {label: [i for i in order if labels[i] == label] for label in set(labels)}
    held = {i for own in by_class.values() for i in own[: len(own) // 5]}
    return held if len(held) >= _ENOUGH else set()


def read_ts(file: Path, classes: tuple[str, ...] | None = None) -> LabelledSeries:
    """A `.ts` file: a header of `@` lines, `@data`, then a row for each series, dimensions and class parted by colons.

    Values are parted by commas; `?` or `NaN` is a missing value and refused, as a class that the header does not name.
    Without classes in the header those of the rows are taken, or `classes`, such as a training file's. Format of
    A. Bagnall et al., The UEA multivariate time series classification archive (2018).
    """
    # lenient: the archive's own files have names of authors in several encodings, in comments that nobody reads
    content = read_text(file, ".ts file", lenient=True)
    series, labels, lines = list[Tensor](), list[str](), list[int]()
    inside = False
    for number, text in enumerate(map(str.strip, content.splitlines()), start=1):
        if not text or text.startswith(("#", "%")):
            continue
        word, *rest = text.lower().split()
        if inside:
            *dimensions, label = text.split(":")
            series.append(_read_values(file, number, dimensions))
            labels.append(label.strip())
            lines.append(number)
        elif word == "@classlabel" and rest[:1] == ["true"]:
            classes = classes or tuple(text.split()[2:]) or None
        elif word == "@timestamps" and rest[:1] == ["true"]:
            refuse_row(file, number, "series with time stamps of their own", "Save the values on a regular grid.")
        elif not word.startswith("@"):
            refuse_row(file, number, "a row of data before @data", "Write the header first, then a line @data.")
        inside = inside or word == "@data"
    if not series:
        why = "there is no row behind @data" if inside else "there is no line @data, so no series"
        reject("file", str(file), why, "Pass a file with a row for each series behind the line @data.")
    known = classes or tuple(sorted(set(labels)))
    if len(known) < 2:
        what = f"all series are of one class, {', '.join(known)}"
        refuse_row(file, lines[0], what, "Pass a file of two classes or more.")
    features = series[0].shape[1]
    for number, values, label in zip(lines, series, labels, strict=True):
        if values.shape[1] != features:
            what = f"{values.shape[1]} dimensions, where the first row has {features}"
            refuse_row(file, number, what, "Mend the row.")
        if label not in known:
            refuse_row(file, number, f"a class {label!r}, not one of {list(known)}", "Mend the row or the header.")
    return LabelledSeries(series, [known.index(label) for label in labels], known)


def _read_values(file: Path, number: int, dimensions: Sequence[str]) -> Float[Tensor, "tokens features"]:
    """The values of a row, of which each dimension is a text with commas."""
    if not dimensions:
        refuse_row(file, number, "no class behind a colon", "Write value,value,...:class.")
    words = [dimension.split(",") for dimension in dimensions]
    if len(lengths := sorted({len(own) for own in words})) > 1:
        refuse_row(file, number, f"dimensions of different lengths {lengths}", "Give every dimension all samples.")
    for word in (word for own in words for word in own):
        if not math.isfinite(read_number(word)):
            refuse_row(file, number, f"a value {word.strip()!r}", "Remove the series, or fill the gap.")
    return torch.tensor([[float(word) for word in own] for own in words], dtype=torch.float32).T.contiguous()
