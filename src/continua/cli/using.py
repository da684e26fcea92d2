"""What a trained run is for: `continua predict` fills files, `continua runs` lists what there is."""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import tyro
from rich.console import Console

from continua.cli.parsing import RunFolder, SomeFile
from continua.cli.train import open_training
from continua.core.errors import reject
from continua.data import read_cells, read_ts
from continua.data.files import read_text
from continua.runs import Run, check_writable, write_whole
from continua.train import FilledSeries, TrainedLabels, TrainedSeries, TrainedText, load


@final
@dataclasses.dataclass(frozen=True)
class Predict:
    """Use a trained run on a file: fill empty cells, predict classes, continue a text.

    Of `train csv`: a CSV file with the columns that were learnt, observed rows and rows whose value cells are empty. It
    comes back with every empty cell filled, in the file's own units, and columns NAME_low and NAME_high that eight of
    ten values lie between. Of `train uea`: a .ts file; one row per series with its class and the probability of each.
    Of `train text`: a text file, which is continued.
    """

    folder: RunFolder
    """the folder of a run"""
    input: SomeFile = None
    """the file to read"""
    output: SomeFile = None
    """the file to write; an existing one is replaced"""
    model: str = "continuous"
    """which model of the run"""
    max_new_tokens: int = 500
    """text: characters to write"""
    temperature: float = 0.8
    """text: 0 takes the likeliest character, higher values dare more"""
    seed: int = 0
    """text: seed of the draws"""

    def execute(self, console: Console) -> int:
        for name, file in (("--input", self.input), ("--output", self.output)):
            if file is None:
                reject(name, None, "a file is read and another one is written", "Pass --input FILE --output FILE.")
        assert self.input is not None and self.output is not None
        if self.output.is_dir():
            reject("--output", str(self.output), "this is a folder", "Name a file in it.")
        check_writable("--output", self.output.parent, self.output)
        open_training(self.folder)
        content, told = self._answer(load(self.folder, self.model), self.input)
        write_whole(self.output, content.encode())
        console.print(f"{told}: {self.output}", highlight=False, markup=False, soft_wrap=True)
        return 0

    def _answer(self, trained: Any, file: Path) -> tuple[str, str]:
        """What is written, and what is said of it."""
        if isinstance(trained, TrainedSeries):
            table = trained.read(file)
            filled = trained.predict(table)
            cells = sum(int(np.isfinite(each.low).sum()) for each in filled)
            return write_filled(file, table.columns, filled), f"{cells} empty cells filled"
        if isinstance(trained, TrainedLabels):
            series = read_ts(file, trained.classes, labelled=False).series
            found = trained.predict(series).tolist()
            rows = [(number, trained.classes[int(np.argmax(row))], *(f"{p:.4f}" for p in row))
                    for number, row in enumerate(found, start=1)]  # fmt: skip
            header = ("series", "label", *(f"probability_{name}" for name in trained.classes))
            return _as_csv([header, *rows]), f"{len(rows)} series told"
        if isinstance(trained, TrainedText):
            given = read_text(file, "text file", "--input").rstrip("\n") or "\n"
            more = trained.predict(given, self.max_new_tokens, self.temperature, self.seed)
            return given + more + "\n", f"{len(more)} characters written"
        why = "only runs on csv, uea and text read files of their own"
        reject("run", str(self.folder), why, "Use `continua.load(run)` in Python for the model itself.")


def write_filled(file: Path, columns: tuple[str, ...], filled: list[FilledSeries]) -> str:
    """The table of a file with its empty cells filled, and the ends of the intervals in columns behind."""
    cells = read_cells(file)
    places = {line: row for row, line in enumerate(cells.lines)}
    ends = [f"{name}_{end}" for name in columns for end in ("low", "high")]
    rows = [[*row, *([""] * len(ends))] for row in cells.rows]
    comma = cells.mark == ";" and any("," in cell for row in cells.rows for cell in row)
    for each in filled:
        for line, mean, low, high in zip(each.series.rows, each.mean, each.low, each.high, strict=True):
            row = rows[places[line]]
            for place, name in enumerate(columns):
                if math.isfinite(low[place]):
                    row[cells.header.index(name)] = _number(mean[place], comma)
                    behind = len(cells.header) + 2 * place
                    row[behind], row[behind + 1] = _number(low[place], comma), _number(high[place], comma)
    header = ["" if cells.unnamed and place == 0 else name for place, name in enumerate(cells.header)]
    return _as_csv([[*header, *ends], *rows], cells.mark)


def _number(value: float, comma: bool) -> str:
    return f"{value:.7g}".replace(".", ",") if comma else f"{value:.7g}"


def _as_csv(rows: Any, mark: str = ",") -> str:
    written = io.StringIO()
    csv.writer(written, delimiter=mark, lineterminator="\n").writerows(rows)
    return written.getvalue()


@final
@dataclasses.dataclass(frozen=True)
class Runs:
    """List the runs in a folder with their results.

    A line per run with its task, its state and when it began; below it a line per model with its updates and its first
    metric on the test, and the best of the reference methods where the task has such.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """where to look"""

    def execute(self, console: Console) -> int:
        if not self.folder.is_dir():
            reject("FOLDER", str(self.folder), "there is no such folder", "Train something: `continua train`.")
        paths = sorted(self.folder.glob("*/manifest.json"))
        if not paths:
            reject("FOLDER", str(self.folder), "there is no run in it", "Pass a folder whose folders are runs.")
        for path in paths:
            console.print(*_lines_of(path.parent), sep="\n", highlight=False, markup=False, soft_wrap=True)
        return 0


def _lines_of(folder: Path) -> list[str]:
    """What is told of a run; of one that cannot be read, why not."""
    try:
        run = Run.open(folder)
        manifest, rows = run.manifest, run.records()
    except (ValueError, OSError) as error:
        return [f"{folder.name}: {str(error).split('. ')[0]}"]
    began = str(manifest.get("began", ""))[:16].replace("T", " ")
    head = f"{folder.name}: {manifest['config'].get('task', manifest['kind'])}, {manifest['state']}, began {began}"
    tests = {row["learner"]: row["samplings"]["as trained"] for row in rows if row["kind"] == "test"}
    done = {row["learner"]: row["update"] for row in rows if row["kind"] == "update"}
    references = next((row["errors"] for row in reversed(rows) if row["kind"] == "references"), {})
    names = dict.fromkeys([*done, *tests])
    width = max(map(len, names), default=0)
    models = [f"    {name:{width}}  {done.get(name, 0):6} updates  {_headline(tests.get(name, {}))}" for name in names]
    best = _best_reference(references, next(iter(tests.values()), {}))
    return [head, *(line.rstrip() for line in models), *([f"    best reference: {best}"] if best else [])]


def _measure(tested: Mapping[str, float]) -> str:
    """The first measure that is no loss."""
    return next((name for name in tested if name != "loss"), "loss")


def _headline(tested: Mapping[str, float]) -> str:
    return f"{_measure(tested)} {tested[_measure(tested)]:.4g}" if tested else ""


def _best_reference(references: Mapping[str, Mapping[str, float]], tested: Mapping[str, float]) -> str:
    found = {
        reference: errors[_measure(tested)] for reference, errors in references.items() if _measure(tested) in errors
    }
    if not found:
        return ""
    best = max if _measure(tested) == "accuracy" else min
    reference = best(found, key=lambda each: found[each])
    return f"{found[reference]:.4g} ({reference})"
