"""The lab at a glance: every verdict, and the experiments that were begun and have none yet."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from continua.lab import AbstractExperiment, CellStore
from continua.runs import Run, Section, Table

_LINE = 100
"""Longer lines are hard to read, however wide the terminal is."""
FOLDER = Path("runs/lab")
"""Where results are kept, unless told otherwise."""


@final
@dataclasses.dataclass(frozen=True)
class Unfinished:
    """An experiment that was begun at some size and has no verdict since."""

    experiment: str
    quick: bool
    done: int
    cells: int
    folder: Path

    @property
    def command(self) -> str:
        """What to type to go on."""
        return run_command(self.experiment, self.quick, self.folder)

    def __str__(self) -> str:
        return f"{self.experiment}, {self.done} of {self.cells} cells are done; go on with `{self.command}`"


def run_command(experiment: str, quick: bool, folder: Path) -> str:
    """What to type to measure an experiment."""
    return f"continua lab run {experiment}{' --quick' if quick else ''}{elsewhere(folder)}"


def elsewhere(folder: Path) -> str:
    """The option that names a folder, where it is not the usual one."""
    return "" if folder == FOLDER else f" --output {shlex.quote(str(folder))}"


@contextmanager
def note_measuring(run: Run, chosen: Sequence[AbstractExperiment], quick: bool) -> Iterator[None]:
    """Notes what is about to be measured, and how that ended.

    What is killed before its verdict is then known to be missing, though the run says that it is running.
    """
    for experiment in chosen:
        run.record("begun", experiment=experiment.name, quick=quick)
    try:
        yield
    except KeyboardInterrupt:
        run.end("interrupted")
        raise
    except Exception:
        with suppress(OSError):
            run.end("failed")
        raise
    run.end("finished")


def find_unfinished(run: Run, experiments: Mapping[str, AbstractExperiment]) -> list[Unfinished]:
    """What was begun after its last verdict, in the order of the experiments; cells of other code do not count.

    A verdict at full size says more than a quick one, and closes both.
    """
    open_ones: set[tuple[str, bool]] = set()
    for row in run.records():
        if row["kind"] == "begun":
            open_ones.add((row["experiment"], row["quick"]))
        elif row["kind"] == "experiment":
            open_ones -= {(row["experiment"], row["quick"]), (row["experiment"], True)}
    store = CellStore(run.folder / "cells")
    found = []
    for name, experiment in experiments.items():
        for quick in (True, False):
            if (name, quick) in open_ones:
                cells = (experiment.quick() if quick else experiment).cells()
                found.append(Unfinished(name, quick, store.count(cells), len(cells), run.folder))
    return found


def overview(records: Sequence[Mapping[str, Any]], left: Sequence[Unfinished]) -> Section:
    """The first part of the page: every verdict, and what has none."""
    held = sum(record["verdict"] == "holds" for record in records)
    verdicts = Table(
        title="verdicts",
        columns=("experiment", "verdict", "size", "seconds"),
        rows=tuple((r["experiment"], r["verdict"], _size(r["quick"]), f"{r['seconds']:.1f}") for r in records),
    )
    prose = (
        f"{len(records)} claims about the continuous Transformer, measured; {held} of them hold at these sizes. Every "
        "part below states a claim and its source, shows what was measured against what bounds it, and says how to "
        "measure it again.",
    )
    if not left:
        return Section("Results", prose, figures=(verdicts,))
    warning = (
        f"Incomplete: {', '.join(one.experiment for one in left)}. Begun and stopped, or still running: verdicts are "
        "missing or older. Cells that are done are kept, and the commands below go on from them."
    )
    missing = Table(
        title="incomplete",
        caption="Cells count if they were measured by the code that is installed now.",
        columns=("experiment", "size", "cells done", "of", "go on with"),
        rows=tuple((one.experiment, _size(one.quick), one.done, one.cells, one.command) for one in left),
    )
    return Section("Results", (warning, *prose), figures=(missing, verdicts))


def _size(quick: bool) -> str:
    return "quick" if quick else "full"


def list_experiments(console: Console, experiments: Mapping[str, AbstractExperiment], as_json: bool) -> None:
    """Prints name, claim and source of each experiment.

    On a terminal each is a paragraph that fits it. In a pipe each is one line of three cells parted by tabs, so that
    `continua lab list | grep optimis` finds whole experiments; as JSON each is one object.
    """
    for name, experiment in experiments.items():
        if as_json:
            print(json.dumps({"experiment": name, "claim": experiment.claim, "source": experiment.source}))
        elif not console.is_terminal:
            print(name, experiment.claim, experiment.source, sep="\t")
        else:
            console.print(Text(name, "bold"))
            for text in (Text(experiment.claim), Text(experiment.source, "dim")):
                console.print(Padding(text, (0, 0, 0, 4)), width=min(console.width, _LINE))
    if console.is_terminal and not as_json:
        console.print(Text("\nMeasure one with `continua lab run NAME`; --quick takes seconds."))
