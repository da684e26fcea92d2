"""Classification of multivariate time series from files of the UEA archive, ragged ones included."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import safetensors.numpy
import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.checks import fraction
from continua.core.errors import reject
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Float, Int, Tensor
from continua.data.files import read_number, read_text, refuse_row, version_of
from continua.data.kernel_ridge import Clocked, KernelRidgeReference, nearest_answers, ridge_answers, view
from continua.data.sampling import Samples, fill_samples, keep_samples
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_ELSEWHERE = "read the file yourself: docs/how-to.md, missing values"
"""What to do with series that this format holds and this task does not."""
_READINGS = 8
"""Samplings in which reference and network are weighed where samples are missing."""
_MOST = 500
"""Series that are read so, at most."""
_FEWEST = 3
"""Classes with fewer series than this spare none for validation."""


@final
@dataclasses.dataclass(frozen=True)
class Uea(AbstractTask):
    """Series of a `..._TRAIN.ts` file for training and of `..._TEST.ts`, beside it, for the test.

    For validation a fifth of each class of the training file is held out, one series at least, drawn once for all;
    classes of fewer than three series spare none. Where nothing can be spared, and if training has the `whole` file,
    validation reads the test file. A `KernelRidgeReference` gives logits to which those of the network are
    added. It is fitted to the whole training file; each series of that file has the logits of the reference without
    it. Each feature is centred and scaled by what is trained on; a constant one is refused. Token time is the index of
    a sample in units of the longest training series, which spans [0, 1]; shorter ones end earlier.

    Of every training batch a random fraction of the samples, from 0 to `missing`, is left out, and the reference reads
    what is left, too; of validation half of `missing`, the mean of training. The network then learns to answer without
    the reference as well. `test_missing`: validation and test without this fraction, each series without samples of
    its own. `interpolated`: what was left out is filled in on straight lines, as for models that want a regular grid.
    """

    file: Path
    missing: float = 0.0
    test_missing: float = 0.0
    interpolated: bool = False
    whole: bool = False

    name = "uea"

    def __post_init__(self) -> None:
        fraction(0.9, missing=self.missing, test_missing=self.test_missing)

    @property
    def form(self) -> Form:
        train, spacing = self._part(Split.TRAIN), self.transform.spacing
        features, wording = train.series[0].shape[1], Wording(names=train.classes)
        alone = self.missing > 0.0
        return Form(len(train.classes) + alone, Question.LABEL, features=features, spacing=spacing, wording=wording,
                    gaps=alone and not self.interpolated, added=True, alone=alone)  # fmt: skip

    def count(self, split: Split) -> int:
        return len(self._part(split).labels)

    def batch(self, split: Split, index: Int[Tensor, " size"]) -> Batch:
        return self._batch(split, index, self._missing_in(split), index.tolist())

    def readings(self, split: Split) -> Iterator[Batch]:
        """A part as it is, in one batch; if samples are `missing`, in eight samplings, from few gaps to many.

        Of very many series these are as many as are affordable. `test_missing` is for batches alone.
        """
        count = self.count(split)
        if self.missing == 0.0:
            yield self.batch(split, torch.arange(count))
            return
        index = torch.linspace(0, count - 1, min(count, _MOST)).round().long()
        for k in range(_READINGS):
            seeds = [branch_seed(i, k) for i in index.tolist()]
            yield self._batch(split, index, self.missing * (k + 0.5) / _READINGS, seeds)

    def _batch(self, split: Split, index: Int[Tensor, " size"], missing: float, seeds: Sequence[int]) -> Batch:
        part, spacing = self._part(split), self.form.spacing
        chosen = [part.series[i] for i in index.tolist()]
        labels = torch.tensor([part.labels[i] for i in index.tolist()])
        samples, own = _pad(chosen, spacing), self._places_in_fit(split, index)
        if missing > 0.0:
            order = [  # whatever the batch that a series stands in
                torch.rand(len(series), generator=generator_of(seed))
                for seed, series in zip(seeds, chosen, strict=True)
            ]
            samples = self._drop(samples, missing, pad_sequence(order, batch_first=True))
        whole = own is not None and missing == 0.0
        offset = self.transform.left_out_logits[own] if whole else self.transform.logits(samples, own)
        return Batch(tuple(samples), labels, offset=offset, index=index)

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self.missing == 0.0:
            return batch
        missing = self.missing * float(torch.rand((), generator=generator))
        samples = Samples(*batch.inputs)
        samples = self._drop(samples, missing, torch.rand(samples.present.shape, generator=generator))
        # the reference reads what the network reads, so that the network learns what it leaves then
        offset = self.transform.logits(samples, batch.index)
        return Batch(tuple(samples), batch.targets, offset=offset, index=batch.index)

    def details(self) -> dict[str, Any]:
        validation, train = self._part(Split.VALIDATION), self._part(Split.TRAIN)
        found = {"validation examples": len(validation.labels), "classes": list(train.classes)}
        if self.missing:
            filled = ", and filled in on straight lines" if self.interpolated else ""
            found["augmentation"] = f"0 to {self.missing:.0%} of the samples missing at random{filled}"
        return {**found, "validation": "the test examples"} if validation is self._part(Split.TEST) else found

    def variants(self) -> Mapping[str, AbstractTask]:
        shares = (0.3, 0.5, 0.7)
        return {f"{part:.0%} of the samples missing": dataclasses.replace(self, test_missing=part) for part in shares}

    def _drop(self, samples: Samples, missing: float, order: Tensor) -> Samples:
        kept = keep_samples(samples, missing, order)
        return fill_samples(kept, self.form.spacing) if self.interpolated else kept

    def references(self) -> dict[str, float]:
        """The fraction of the test series that reference methods tell right: kernel, plain ridge, nearest neighbour.

        The last two read the values of series stretched to one length.
        """
        test, train, reference = self._part(Split.TEST), self._part(Split.TRAIN), self.transform.reference
        held, marks = self._held_out()
        series, labels = [*train.series, *held], [*train.labels, *marks]
        known, asked = (
            view(_clock(each, self.transform.spacing), reference.points)[0] for each in (series, test.series)
        )
        answers = {
            "nearest neighbour": nearest_answers(known, labels, asked),
            "ridge": ridge_answers(known, labels, len(train.classes), asked),
            "kernel-ridge reference, network off": self.transform.logits(self._samples(test)).argmax(-1).numpy(),
        }
        truth = np.array(test.labels)
        return {name: float((found == truth).mean()) for name, found in answers.items()}

    def _missing_in(self, split: Split) -> float:
        """The fraction that is left out of every series: in validation as much as training leaves out in the mean."""
        if split is Split.VALIDATION and self._held_out()[0]:
            return self.test_missing or 0.5 * self.missing
        return 0.0 if split is Split.TRAIN else self.test_missing

    def _places_in_fit(self, split: Split, index: Int[Tensor, " size"]) -> Int[Tensor, " size"] | None:
        """Which of the series that the reference was fitted to these are, training first; nothing for other series."""
        if split is Split.TRAIN:
            return index
        return self.count(Split.TRAIN) + index if split is Split.VALIDATION and self._held_out()[0] else None

    def _held_out(self) -> tuple[list[Tensor], list[int]]:
        held, test = self._part(Split.VALIDATION), self._part(Split.TEST)
        return ([], []) if held is test else (held.series, held.labels)

    def _samples(self, part: "LabelledSeries") -> Samples:
        return _pad(part.series, self.transform.spacing)

    @property
    def transform(self) -> "LabelTransform":
        """What was learnt of the units and of the kernel-ridge reference from the training series."""
        return _read(self.file, version_of(self.file), self.whole)[1]

    def _part(self, split: Split) -> "LabelledSeries":
        return _read(self.file, version_of(self.file), self.whole)[0][split]


class LabelledSeries(NamedTuple):
    """Series (tokens, features), the number of each one's class, and the classes in the order of their numbers."""

    series: list[Tensor]
    labels: list[int]
    classes: tuple[str, ...]

    def select(self, index: Sequence[int]) -> "LabelledSeries":
        """Some of the series."""
        return LabelledSeries([self.series[i] for i in index], [self.labels[i] for i in index], self.classes)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LabelTransform:
    """Features in units of `scale` about `mean`, samples `spacing` apart, the reference for the `classes`."""

    classes: tuple[str, ...]
    mean: Tensor
    scale: Tensor
    spacing: float
    reference: KernelRidgeReference

    @property
    def left_out_logits(self) -> Float[Tensor, "series classes"]:
        """Logits of the training series, and behind them of those held out, each by the reference without it."""
        return torch.from_numpy(self.reference.held).float()

    def prepare(self, series: Sequence[Float[Tensor, "tokens features"]]) -> Batch:
        """Series in the units of their file, as a model reads them."""
        samples = _pad([(each - self.mean) / self.scale for each in series], self.spacing)
        return Batch(tuple(samples), None, offset=self.logits(samples))

    def logits(self, samples: Samples, own: Int[Tensor, " series"] | None = None) -> Float[Tensor, "series classes"]:
        """What the kernel-ridge reference says of series in the model's units, each without its `own` in the fit."""
        counts = samples.present.sum(1).tolist()
        pairs = zip(samples.positions.double().numpy(), samples.values.double().numpy(), counts, strict=True)
        series = [(t[:count], x[:count]) for t, x, count in pairs]
        found = self.reference.logits(series) if own is None else self.reference.logits_without(series, own.tolist())
        return torch.from_numpy(found).float()

    def files(self) -> dict[str, bytes]:
        """As a run keeps it; the logits of the training series are not."""
        views = {f"view{i}": each for i, each in enumerate(self.reference.views)}
        arrays = {"mean": self.mean.numpy(), "scale": self.scale.numpy(), "weights": self.reference.weights,
                  "widths": self.reference.widths, **views}  # fmt: skip
        plain = {"classes": self.classes, "spacing": self.spacing, "points": self.reference.points}
        content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        return {"labels.json": json.dumps(plain).encode(), "labels.safetensors": content}

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> "LabelTransform":
        """What `files` gave."""
        try:
            plain, held = json.loads(files["labels.json"]), safetensors.numpy.load(files["labels.safetensors"])
            views = tuple(held[f"view{i}"] for i in range(len(held["widths"])))
            reference = KernelRidgeReference(plain["points"], views, held["widths"], held["weights"])
            mean, scale = (torch.from_numpy(held[name]) for name in ("mean", "scale"))
            return cls(tuple(plain["classes"]), mean, scale, plain["spacing"], reference)
        except (KeyError, TypeError, ValueError) as error:
            cure = "Copy the run again, or train it with this version."
            reject("run", "models/transform", f"the transform of its series cannot be read ({error})", cure)


def _pad(series: Sequence[Tensor], spacing: float) -> Samples:
    lengths = torch.tensor([len(each) for each in series])
    values = pad_sequence(list(series), batch_first=True)
    place = torch.arange(values.shape[1]).expand(len(series), -1)
    present = place < lengths[:, None]
    return Samples(values, torch.where(present, place * spacing, 0.0), present)


def _clock(series: Sequence[Tensor], spacing: float) -> list[Clocked]:
    return [(spacing * np.arange(len(each)), each.double().numpy()) for each in series]


@functools.lru_cache(maxsize=2)
def _read(
    file: Path, version: tuple[int, ...], keep_all: bool
) -> tuple[Mapping[Split, LabelledSeries], LabelTransform]:
    """The parts of both files, centred and scaled, and how that was done."""
    if not file.name.endswith("_TRAIN.ts"):
        cure = "Pass NAME_TRAIN.ts, with NAME_TEST.ts beside it."
        reject("file", str(file), "the test file is found by the name of the training file", cure)
    whole = read_ts(file)
    test = read_ts(file.with_name(file.name.replace("_TRAIN.ts", "_TEST.ts")), whole.classes)
    if test.series[0].shape[1] != whole.series[0].shape[1]:
        reject("file", str(file), "training and test have different dimensions", "Pass files of one data set.")
    held = set[int]() if keep_all else _hold_out(whole.labels)
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
    spacing = 1.0 / max(1, max(len(series) for series in train.series) - 1)
    train = standardise(train)
    fitted = [train] if validation is test else [train, validation]
    series, labels = ([x for part in fitted for x in part.series], [n for part in fitted for n in part.labels])
    reference = KernelRidgeReference.fit(_clock(series, spacing), labels, len(train.classes))
    transform = LabelTransform(train.classes, mean, scale, spacing, reference)
    return {Split.TRAIN: train, Split.VALIDATION: validation, Split.TEST: test}, transform


def _hold_out(labels: Sequence[int]) -> set[int]:
    """A fifth of the series of each class, one at least, drawn at random but always the same; none of very few."""
    order = torch.randperm(len(labels), generator=generator_of(0)).tolist()
    by_class = {label: [i for i in order if labels[i] == label] for label in set(labels)}
    return {i for own in by_class.values() if len(own) >= _FEWEST for i in own[: max(1, len(own) // 5)]}


def read_ts(file: Path, classes: tuple[str, ...] | None = None, labelled: bool = True) -> LabelledSeries:
    """A `.ts` file: a header of `@` lines, `@data`, then a row for each series, dimensions and class parted by colons.

    Values are parted by commas; `?` or `NaN` is a missing value and refused, as a class that the header does not name.
    Without classes in the header those of the rows are taken, or `classes`, such as a training file's. If not
    `labelled`, classes of rows are not read, and a file that says `@classLabel false` need not have any. Format of
    A. Bagnall et al., The UEA multivariate time series classification archive (2018).
    """
    # lenient: the archive's own files have names of authors in several encodings, in comments that nobody reads
    content = read_text(file, ".ts file", lenient=True)
    series, labels, lines = list[Tensor](), list[str](), list[int]()
    inside, last = False, True
    for number, text in enumerate(map(str.strip, content.splitlines()), start=1):
        if not text or text.startswith(("#", "%")):
            continue
        word, *rest = text.lower().split()
        if inside:
            *dimensions, label = text.split(":") if last else [*text.split(":"), ""]
            series.append(_read_values(file, number, dimensions))
            labels.append(label.strip() if labelled or classes is None else classes[0])
            lines.append(number)
        elif word == "@classlabel" and rest[:1] == ["true"]:
            classes = classes or tuple(text.split()[2:]) or None
        elif word == "@classlabel" and rest[:1] == ["false"]:
            last = labelled
        elif word == "@timestamps" and rest[:1] == ["true"]:
            cure = f"Save values at equispaced times, or {_ELSEWHERE}."
            refuse_row(file, number, "series with time stamps of their own", cure)
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
            refuse_row(file, number, f"a value {word.strip()!r}", f"Fill the gap, or {_ELSEWHERE}.")
    return torch.tensor([[float(word) for word in own] for own in words], dtype=torch.float32).T.contiguous()
