"""What a folder of lab results holds: what was begun, what has a verdict, what is missing and how to go on."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from continua.lab.experiment import AbstractExperiment
from continua.lab.stacks.experiment import TrainedNetworks
from continua.lab.sweep import CellStore
from continua.runs import Run, Section, Table

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
    text: str = ""

    @property
    def command(self) -> str:
        """What to type to go on."""
        return run_command(self.experiment, self.quick, self.folder, self.text)

    def __str__(self) -> str:
        return f"{self.experiment}, {self.done} of {self.cells} cells are done; go on with `{self.command}`"


def run_command(experiment: str, quick: bool, folder: Path, text: str = "") -> str:
    """What to type to measure an experiment."""
    reading = f" --text {shlex.quote(text)}" if text else ""
    return f"continua lab run {experiment}{' --quick' if quick else ''}{reading}{elsewhere(folder)}"


def text_of(experiment: AbstractExperiment) -> str:
    """The file that it reads, if any."""
    return experiment.text if isinstance(experiment, TrainedNetworks) else ""


def elsewhere(folder: Path) -> str:
    """The option that names a folder, where it is not the usual one."""
    return "" if folder == FOLDER else f" --output {shlex.quote(str(folder))}"


@contextmanager
def note_measuring(run: Run, chosen: Sequence[AbstractExperiment], quick: bool) -> Iterator[None]:
    """Notes what is about to be measured, and how that ended.

    What is killed before its verdict is then known to be missing, though the run says that it is running.
    """
    for experiment in chosen:
        run.record("begun", experiment=experiment.name, quick=quick, text=text_of(experiment))
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
    open_ones: dict[tuple[str, bool], str] = {}
    for row in run.records():
        if row["kind"] == "begun":
            open_ones[row["experiment"], row["quick"]] = row.get("text", "")
        elif row["kind"] == "experiment":
            for quick in {row["quick"], True}:
                open_ones.pop((row["experiment"], quick), None)
    store = CellStore(run.folder / "cells")
    found = []
    for name, experiment in experiments.items():
        for quick in (True, False):
            if (text := open_ones.get((name, quick))) is not None:
                own = dataclasses.replace(experiment, text=text) if text else experiment  # pyright: ignore
                cells = (own.quick() if quick else own).cells()
                found.append(Unfinished(name, quick, store.count(cells), len(cells), run.folder, text))
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
        f"Claims about the continuous Transformer, measured: {held} of {len(records)} hold at these sizes. Every "
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
