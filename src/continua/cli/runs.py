"""What is done with runs that are there: `continua generate`, `report`, `predict` and `runs`."""

import csv
import dataclasses
import io
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast, final

import numpy as np
import tyro
from rich.console import Console

from continua.cli.measuring import off_lines
from continua.cli.parsing import Count, Flag, RunFolder, RunFolders, SomeFile, SomeFolder, choose, refuse_missing
from continua.cli.resuming import open_training
from continua.core.checks import at_least
from continua.core.counts import say_count
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.data import encode, read_cells
from continua.data.files import read_text
from continua.model import ContinuousTransformer, Decoding, Window, stream_tokens, why_not_cacheable
from continua.model import load as load_model
from continua.report import write_report
from continua.runs import Run, check_writable, write_whole
from continua.train import FilledSeries, SeriesFiller, TrainedLabels, TrainedSeries, TrainedText, load


@final
@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue a text with a model of a text run.

    Characters are drawn one after the other, each given those before it that the window shows; the same seed writes the
    same text.
    """

    folder: RunFolder
    """the folder of a run on text"""
    prompt: Annotated[str, tyro.conf.arg(help_behavior_hint=r"(default: '\n')")] = "\n"
    """how the text begins"""
    max_new_tokens: int = 500
    """characters to write"""
    temperature: float = 0.8
    """0 takes the likeliest character, higher values are more random"""
    top_k: Count = None
    """draw among so many likeliest characters only (default: all)"""
    stop: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    """end as soon as this was written (default: at --max-new-tokens)"""
    num_return_sequences: int = 1
    """texts to write, in one batch"""
    seed: int = 0
    """seed of the draws"""
    slide: int = 1
    """a full window moves on by so many characters at once: more is faster, but each is drawn from fewer before it"""
    model: str = "continuous"
    """which model of the run: continuous, or a baseline of --compare"""
    depth_steps: Count = None
    """solver steps along depth (default: as in training)"""
    uncached: Flag = False
    """without a KV cache: solve the whole window for every character, the same text, slower"""

    def execute(self, console: Console) -> int:
        run = Run.open(self.folder)
        facts = run.manifest["facts"].get("task", {})
        if "alphabet" not in facts:
            reject("run", str(self.folder), "it has not learnt to write", "Pass a run of `continua train text`.")
        models = load_models(run)
        choose("--model", self.model, models, "model in the run", "generate")
        at_least(1, max_new_tokens=self.max_new_tokens, num_return_sequences=self.num_return_sequences)
        if self.prompt == "":
            reject("--prompt", self.prompt, "there is nothing to go on from", "Pass at least one character.")
        if self.stop == "":
            reject("--stop", self.stop, "nothing is written before it", "Pass some text, or leave it out.")
        model, alphabet = models[self.model], facts["alphabet"]
        # the default is no letter of a text without line breaks
        start = alphabet[0] if self.prompt == "\n" and "\n" not in alphabet else self.prompt
        model = model if self.depth_steps is None else model.at(steps=self.depth_steps)
        decoding, window = Decoding(self.temperature, self.top_k), Window(facts["context_length"], self.slide)
        prompt = encode(start, alphabet, "--prompt").repeat(self.num_return_sequences, 1)
        tokens = stream_tokens(model, prompt, decoding, window, generator_of(self.seed), not self.uncached)
        why = why_not_cacheable(model)
        if why is not None and not self.uncached:
            note = "no keys and values are kept, and every character costs a solve of the whole window"
            sys.stderr.write(f"continua: {note}: {why}\n")
        if self.num_return_sequences == 1:
            self._write_one(start, (alphabet[int(drawn)] for drawn in tokens))
        else:
            self._write_all(start, ([alphabet[n] for n in drawn.tolist()] for drawn in tokens))
        return 0

    def _is_done(self, written: str) -> bool:
        return len(written) >= self.max_new_tokens or (self.stop is not None and self.stop in written)

    def _write_one(self, start: str, letters: Iterator[str]) -> None:
        """Each character as soon as it is drawn."""
        written = ""
        sys.stdout.write(start)
        for letter in letters:
            written += letter
            sys.stdout.write(letter)
            sys.stdout.flush()
            if self._is_done(written):
                break
        sys.stdout.write("\n")

    def _write_all(self, start: str, letters: Iterator[list[str]]) -> None:
        """The texts of a batch one under the other, each up to its own end."""
        texts = [""] * self.num_return_sequences
        while not all(map(self._is_done, texts)):
            drawn = next(letters)
            texts = [text if self._is_done(text) else text + one for text, one in zip(texts, drawn, strict=True)]
        for number, text in enumerate(texts, start=1):
            sys.stdout.write(f"--- text {number} of {self.num_return_sequences}\n{start}{text}\n")


@final
@dataclasses.dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about one run, or several side by side.

    Reads run folders only, never a model. The page needs no network: losses, cost, steps along depth, token
    trajectories, attention weights with a depth slider, heads, costates, resolutions and papers, as far as the
    runs have them. It goes into the run, or to --output, and its path is printed.
    """

    folders: RunFolders
    """folders of runs, as training leaves them"""
    others: Annotated[RunFolders, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")] = ()
    """more of them, behind an option"""  # tyro takes the words of one place only side by side
    output: SomeFolder = None
    """where the page goes (default: report.html in the run, comparison.html in the first of several)"""

    def execute(self, console: Console) -> int:
        if not self.folders:  # tyro takes none for many
            refuse_missing("report", "RUN [RUN ...]")
        if self.output is not None and self.output.is_dir():
            named = shlex.quote(str(self.output / "report.html"))
            reject("--output", str(self.output), "this is a folder", f"Name a file in it: --output {named}.")
        if self.output is not None:
            check_writable("--output", self.output.parent, self.output)
        page = write_report((*self.folders, *self.others), self.output)
        console.print(str(page), soft_wrap=True, highlight=False, markup=False)
        return 0


def load_models(run: Run) -> dict[str, ContinuousTransformer]:
    """The models of a run in its order: those it ended with, or as of its latest checkpoint."""
    folder = run.folder / "models"
    if run.manifest["state"] == "finished" and folder.is_dir():
        kept = {path.parent.name for path in folder.glob("*/model.json")}
    else:
        last = run.last_checkpoint()
        if last is None:
            reject("run", str(run.folder), "it has no model yet", "Let it reach its first checkpoint.")
        folder, kept = last.folder, {name.partition("/")[0] for name in last.files if name.endswith("/model.json")}
    order = [*run.manifest["facts"].get("models", {})]  # the continuous one first, then as --compare names them
    names = sorted(kept, key=lambda name: (order.index(name) if name in order else len(order), name))
    return {name: cast(ContinuousTransformer, load_model(folder / name).eval()) for name in names}


@final
@dataclasses.dataclass(frozen=True)
class Predict:
    """Use a trained run on a file: fill empty cells, predict classes, continue a text.

    A run of `train csv` reads a CSV file with the columns of its training, some of whose cells are empty: gaps, or rows
    to come with a time and no values. It writes the same table with every empty cell filled, in the file's own units,
    and columns NAME_low and NAME_high, between which eight of ten true values should lie. A run of `train uea` reads a
    .ts file and writes one row per series: its class, and the probability of each class. A run of `train text` reads a
    text file and writes it with its continuation.
    """

    folder: RunFolder
    """the folder of a run"""
    input: SomeFile = None
    """the file to read (required)"""
    output: SomeFile = None
    """the file to write (required); an existing one is replaced"""
    model: str = "continuous"
    """which model of the run: continuous, or a baseline of --compare"""
    depth_steps: Count = None
    """solver steps along depth (default: as in training)"""
    max_new_tokens: int = 500
    """text: characters to write"""
    temperature: float = 0.8
    """text: 0 takes the likeliest character, higher values are more random"""
    top_k: Count = None
    """text: draw among so many likeliest characters only (default: all)"""
    seed: int = 0
    """text: seed of the draws"""

    def execute(self, console: Console) -> int:
        open_training(self.folder)  # a run that is not there is what to mend first
        for name, file in (("--input", self.input), ("--output", self.output)):
            if file is None:
                reject(name, None, "a file is read and another one is written", "Pass --input FILE --output FILE.")
        assert self.input is not None and self.output is not None
        if self.output.is_dir():
            reject("--output", str(self.output), "this is a folder", "Name a file in it.")
        check_writable("--output", self.output.parent, self.output)
        trained = load(self.folder, self.model)
        trained = trained if self.depth_steps is None else trained.at(steps=self.depth_steps)
        content, told = self._answer(trained, self.input)
        write_whole(self.output, content.encode())
        console.print(f"{told}: {self.output}", highlight=False, markup=False, soft_wrap=True)
        return 0

    def _answer(self, trained: Any, file: Path) -> tuple[str, str]:
        """What is written, and what is said of it."""
        if isinstance(trained, TrainedSeries):
            table = trained.read(file)
            filled = SeriesFiller(trained.model, trained.transform).fill(table)
            cells = sum(int(np.isfinite(each.low).sum()) for each in filled)
            if cells == 0:
                cure = "For a forecast, append rows with a time and empty values; gaps are cells that are left empty."
                reject("--input", str(file), "no cell in it is empty, so that there is nothing to fill", cure)
            far = sum(each.continued for each in filled)
            lie, go = ("lies", "goes") if far == 1 else ("lie", "go")
            rows = f"{say_count(far, 'row')} {lie} farther ahead than a quarter of a window"
            note = f"; {rows}, and {go} on from its own answers"
            for doubt in (doubt for each in filled for doubt in each.doubts):
                sys.stderr.write(f"continua: warning: {doubt}\n")
            return write_filled(
                file, table.columns, filled
            ), f"{say_count(cells, 'empty cell')} filled{note if far else ''}"
        if isinstance(trained, TrainedLabels):
            found = trained.predict(file).tolist()
            rows = [(number, trained.classes[int(np.argmax(row))], *(f"{p:.4f}" for p in row))
                    for number, row in enumerate(found, start=1)]  # fmt: skip
            header = ("series", "label", *(f"probability_{name}" for name in trained.classes))
            return _as_csv([header, *rows]), f"{len(rows)} series classified"
        if isinstance(trained, TrainedText):
            given = read_text(file, "text file", "--input").rstrip("\n") or "\n"
            more = trained.predict(given, self.max_new_tokens, self.temperature, self.top_k, self.seed)
            return given + more + "\n", f"{say_count(len(more), 'character')} written"
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
    tests = {row["model"]: row["samplings"]["as trained"] for row in rows if row["kind"] == "test"}
    done = {row["model"]: row["update"] for row in rows if row["kind"] == "update"}
    references = next((row["errors"] for row in reversed(rows) if row["kind"] == "references"), {})
    names = dict.fromkeys([*done, *tests])
    width = max(map(len, names), default=0)
    models = [f"    {name:{width}}  {done.get(name, 0):6} updates  {_headline(tests.get(name, {}))}" for name in names]
    best = _best_reference(references, next(iter(tests.values()), {}))
    off = ["    " + line.replace("; ", ";\n        ") for line in off_lines(run)]  # lines of a terminal
    return [head, *(line.rstrip() for line in models), *off, *([f"    best reference: {best}"] if best else [])]


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
