"""Files of the UEA archive: multivariate time series of different lengths with a class for each."""

from pathlib import Path
from typing import NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.data.files import text_of
from continua.data.rows import refuse_row


class LabelledSeries(NamedTuple):
    """Series (tokens, features), the number of each one's class, and the classes in the order of their numbers."""

    series: list[Tensor]
    labels: list[int]
    classes: tuple[str, ...]


def read_ts(file: Path, classes: tuple[str, ...] | None = None) -> LabelledSeries:
    """A `.ts` file: a header of `@` lines, `@data`, then a row for each series, dimensions and class parted by colons.

    Values are parted by commas; `?` or `NaN` is a missing value and refused, as a class that the header does not name.
    Without classes in the header those of the rows are taken, or `classes`, such as a training file's. Format of
    A. Bagnall et al., The UEA multivariate time series classification archive (2018).
    """
    content = text_of(file, ".ts file", lenient=True)
    known, rows = classes, list[tuple[int, list[list[float]], str]]()
    inside = False
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith(("#", "%")):
            continue
        if inside:
            rows.append((number, *_row(file, number, text)))
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
    known = known or tuple(sorted({label for *_, label in rows}))
    if len(known) < 2:
        refuse_row(
            file, rows[0][0], f"all series are of one class, {', '.join(known)}", "Pass a file of two classes or more."
        )
    return _labelled(file, rows, known)


def _row(file: Path, number: int, text: str) -> tuple[list[list[float]], str]:
    *dimensions, label = text.split(":")
    if not dimensions:
        refuse_row(file, number, "no class behind a colon", "Write value,value,...:class.")
    values = [[_value(file, number, word) for word in dimension.split(",")] for dimension in dimensions]
    if len({len(dimension) for dimension in values}) > 1:
        lengths = sorted({len(dimension) for dimension in values})
        refuse_row(file, number, f"dimensions of different lengths {lengths}", "Give every dimension all samples.")
    return values, label.strip()


def _value(file: Path, number: int, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if value - value != 0.0:  # nan or inf
        refuse_row(file, number, f"a value {word.strip()!r}", "Remove the series, or fill the gap.")
    return value


def _labelled(file: Path, rows: list[tuple[int, list[list[float]], str]], known: tuple[str, ...]) -> LabelledSeries:
    series, labels = list[Tensor](), list[int]()
    features = len(rows[0][1])
    for number, values, label in rows:
        if len(values) != features:
            refuse_row(file, number, f"{len(values)} dimensions, where the first row has {features}", "Mend the row.")
        if label not in known:
            refuse_row(file, number, f"a class {label!r}, not one of {list(known)}", "Mend the row or the header.")
        series.append(torch.tensor(values, dtype=torch.float32).T.contiguous())
        labels.append(known.index(label))
    return LabelledSeries(series, labels, known)
