"""Classification of multivariate time series from files of the UEA archive, ragged ones included."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch.nn.utils.rnn import pad_sequence

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.core.shapes import Int, Tensor
from continua.data.files import cache_by_file, read_text, refuse_row
from continua.data.task import AbstractTask, Form, Question, Split, Wording

_FIFTH = 5
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
    """

    file: Path

    name = "uea"

    @property
    def form(self) -> Form:
        train = self._part(Split.TRAIN)
        spacing = 1.0 / max(1, max(len(series) for series in train.series) - 1)
        return Form(len(train.classes), Question.LABEL, features=train.series[0].shape[1], spacing=spacing)

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

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

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

    def _part(self, split: Split) -> "LabelledSeries":
        return _read(self.file)[split]


class LabelledSeries(NamedTuple):
    """Series (tokens, features), the number of each one's class, and the classes in the order of their numbers."""

    series: list[Tensor]
    labels: list[int]
    classes: tuple[str, ...]

    def select(self, index: Sequence[int]) -> "LabelledSeries":
        """Some of the series."""
        return LabelledSeries([self.series[i] for i in index], [self.labels[i] for i in index], self.classes)


@cache_by_file
def _read(file: Path) -> Mapping[Split, LabelledSeries]:
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
    held = {i for own in by_class.values() for i in own[: len(own) // _FIFTH]}
    return held if len(held) >= _ENOUGH else set()


def read_ts(file: Path, classes: tuple[str, ...] | None = None) -> LabelledSeries:
    """A `.ts` file: a header of `@` lines, `@data`, then a row for each series, dimensions and class parted by colons.

    Values are parted by commas; `?` or `NaN` is a missing value and refused, as a class that the header does not name.
    Without classes in the header those of the rows are taken, or `classes`, such as a training file's. Format of
    A. Bagnall et al., The UEA multivariate time series classification archive (2018).
    """
    # lenient: the archive's own files have names of authors in several encodings, in comments that nobody reads
    content = read_text(file, ".ts file", lenient=True)
    known, rows = classes, list[_TsRow]()
    inside = False
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith(("#", "%")):
            continue
        if inside:
            rows.append(_parse_row(file, number, text))
            continue
        word, *rest = text.split()
        if word.lower() == "@data":
            inside = True
        elif word.lower() == "@classlabel" and rest and rest[0].lower() == "true":
            known = known or tuple(rest[1:]) or None
        elif word.lower() == "@timestamps" and rest and rest[0].lower() == "true":
            refuse_row(file, number, "series with time stamps of their own", "Save the values on a regular grid.")
        elif not word.startswith("@"):
            refuse_row(file, number, "a row of data before @data", "Write the header first, then a line @data.")
    if not rows:
        why = "there is no row behind @data" if inside else "there is no line @data, so no series"
        reject("file", str(file), why, "Pass a file with a row for each series behind the line @data.")
    known = known or tuple(sorted({row.label for row in rows}))
    if len(known) < 2:
        what = f"all series are of one class, {', '.join(known)}"
        refuse_row(file, rows[0].number, what, "Pass a file of two classes or more.")
    _check_rows(file, rows, known)
    series = [torch.tensor(row.values, dtype=torch.float32).T.contiguous() for row in rows]
    return LabelledSeries(series, [known.index(row.label) for row in rows], known)


class _TsRow(NamedTuple):
    number: int
    values: list[list[float]]
    label: str


def _parse_row(file: Path, number: int, text: str) -> _TsRow:
    *dimensions, label = text.split(":")
    if not dimensions:
        refuse_row(file, number, "no class behind a colon", "Write value,value,...:class.")
    values = [[_value(file, number, word) for word in dimension.split(",")] for dimension in dimensions]
    if len({len(dimension) for dimension in values}) > 1:
        lengths = sorted({len(dimension) for dimension in values})
        refuse_row(file, number, f"dimensions of different lengths {lengths}", "Give every dimension all samples.")
    return _TsRow(number, values, label.strip())


def _value(file: Path, number: int, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if value - value != 0.0:  # nan or inf
        refuse_row(file, number, f"a value {word.strip()!r}", "Remove the series, or fill the gap.")
    return value


def _check_rows(file: Path, rows: list[_TsRow], known: tuple[str, ...]) -> None:
    features = len(rows[0].values)
    for number, values, label in rows:
        if len(values) != features:
            refuse_row(file, number, f"{len(values)} dimensions, where the first row has {features}", "Mend the row.")
        if label not in known:
            refuse_row(file, number, f"a class {label!r}, not one of {list(known)}", "Mend the row or the header.")
