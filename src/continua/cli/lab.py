"""`continua lab`: experiments that measure what theory claims."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, final

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from continua.cli.lab_overview import (
    FOLDER,
    elsewhere,
    find_unfinished,
    list_experiments,
    note_measuring,
    overview,
    run_command,
)
from continua.cli.parsing import Count, Flag, Folder, Measure, choose, flag, more
from continua.core.errors import reject
from continua.lab import (
    AbstractEngine,
    AbstractExperiment,
    AdamWCompactness,
    AdamWLimit,
    AttentionLipschitz,
    CellStore,
    Clusters,
    DepthLimit,
    DimensionFree,
    ExperimentResult,
    FastestMode,
    LionsDerivative,
    LocalProcesses,
    MeanField,
    Mnist1dCeiling,
    Overlap,
    PostNormLimit,
    Progress,
    Ray,
    RMSScaling,
    SDEScaling,
    check_question,
)
from continua.report import write_report
from continua.runs import Run

EXPERIMENTS: dict[str, AbstractExperiment] = {
    experiment.name: experiment
    for experiment in (
        DepthLimit(),
        AdamWLimit(),
        AdamWCompactness(),
        DimensionFree(),
        LionsDerivative(),
        AttentionLipschitz(),
        MeanField(),
        Clusters(),
        RMSScaling(),
        PostNormLimit(),
        SDEScaling(),
        Mnist1dCeiling(),
    )
}
"""The one table from words to experiments."""

_COLOURS = {"holds": "green", "fails": "bold red", "inconclusive": "yellow"}


@final
@dataclasses.dataclass(frozen=True)
class Lab:
    """Measure what theory claims: list, run NAME, run all, report.

    Each experiment states its claim and its source, measures in float64 with fixed seeds, and ends with a verdict:
    holds, fails or inconclusive. Results are kept cell by cell, so that a killed sweep goes on where it stopped. Exit
    code 1: a verdict is `fails`.
    """

    action: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="list|run|report")] = "list"
    """what to do"""
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """which experiment, or all"""
    quick: Flag = False
    """sizes of seconds"""
    json: Flag = False
    """print one JSON object a line, and nothing else"""
    tokens: Count = None
    """clusters: ask for the overlap of so many tokens that start orthonormal (with --beta and --time)"""
    beta: Measure = None
    """clusters: the inverse temperature of a single question"""
    time: Measure = None
    """clusters: the time of a single question"""
    circle: Flag = False
    """clusters: ask for the fastest mode of uniform tokens on the circle (with --beta)"""
    engine: str = "local"
    """where cells run: local (processes on this machine) or ray (a cluster; needs the extra `scale`)"""
    processes: Count = None
    """how many processes (default: one with --quick, else one a core)"""
    output: Folder = FOLDER
    """where results are kept"""

    def execute(self, console: Console) -> int:
        """Runs the command; 1 where a verdict is `fails`."""
        choose("ACTION", self.action, ("list", "run", "report"), "action", "lab")
        if self.action != "run" and self.name != "":
            reject("NAME", self.name, f"`lab {self.action}` tells of all experiments", "Leave the name out.")
        self._check_read()
        if self.action == "list":
            list_experiments(console, EXPERIMENTS, self.json)
            return 0
        return self._measure(console) if self.action == "run" else self._report(console)

    def _check_read(self) -> None:
        """Refuses options that an action does not read: they would be passed over in silence."""
        read = {"list": ("json",), "report": ("output",)}.get(self.action)
        for field in dataclasses.fields(self) if read is not None else ():
            value = getattr(self, field.name)
            if value != field.default and field.name not in ("action", "name", *(read or ())):
                shown = str(value) if isinstance(value, Path) else value
                cure = "Leave it out, or use `continua lab run NAME`."
                reject(flag(field.name), shown, f"`lab {self.action}` does not read it", cure)

    def _measure(self, console: Console) -> int:
        chosen, engine = self._choose(), self._engine()
        asked = self._asks()
        run = None if asked else _open_or_begin(self.output)
        noted = nullcontext() if run is None else note_measuring(run, chosen, self.quick)
        store = CellStore() if asked else CellStore(self.output / "cells")
        failed = False
        with noted, _bar(shown=not asked) as progress:
            for experiment in chosen:
                result = ExperimentResult.measure(experiment, progress, engine, store)
                record = result.record()
                failed = failed or record["verdict"] == "fails"
                if run is not None:
                    command = run_command(experiment.name, self.quick, self.output)
                    run.record("experiment", quick=self.quick, **record)
                    run.keep_section(experiment.name, result.section(command))
                if self.json:
                    print(json.dumps(record), flush=True)
                else:
                    _show(console, record)
        if not self.json and run is not None:
            report = f"continua lab report{elsewhere(self.output)}"
            _tell(console, f"kept in {self.output}; `{report}` tells all of it")
        return 1 if failed else 0

    def _asks(self) -> bool:
        """Whether this is a single question about clusters."""
        return self.circle or any(value is not None for value in (self.tokens, self.beta, self.time))

    def _choose(self) -> list[AbstractExperiment]:
        if self._asks():
            return [self._question()]
        if self.name == "":
            names = f"Choose from {', '.join(EXPERIMENTS)}, all."
            reject("NAME", self.name, "the lab needs to know what to run", f"{names} {more('lab')}")
        choose("NAME", self.name, (*EXPERIMENTS, "all"), "experiment", "lab")
        chosen = list(EXPERIMENTS.values()) if self.name == "all" else [EXPERIMENTS[self.name]]
        return [experiment.quick() if self.quick else experiment for experiment in chosen]

    def _question(self) -> AbstractExperiment:
        example = "Try `continua lab run clusters --tokens 8 --beta 4 --time 2` or `... --circle --beta 9`."
        if self.name != "clusters":
            reject("NAME", self.name, "only clusters answers single questions", example)
        if self.circle and (self.tokens is not None or self.time is not None):
            reject("circle", True, "the ring is a continuum without time", "Leave out --tokens and --time.")
        check_question(self.tokens, self.beta, self.time)
        asked = {"beta": self.beta} if self.circle else {"tokens": self.tokens, "beta": self.beta, "time": self.time}
        for name, value in asked.items():
            if value is None:
                reject(name, value, f"the question needs --{', --'.join(asked)}", example)
        assert self.beta is not None
        if self.circle:
            return FastestMode(self.beta)
        assert self.tokens is not None and self.time is not None
        return Overlap(self.tokens, self.beta, self.time)

    def _engine(self) -> AbstractEngine:
        if choose("--engine", self.engine, ("local", "ray"), "engine", "lab") == "ray":
            return Ray()
        return LocalProcesses(1 if self.processes is None and self.quick else self.processes)

    def _report(self, console: Console) -> int:
        if not (self.output / "manifest.json").is_file():
            cure = f"Begin with `{run_command('clusters', True, self.output)}`."
            reject("--output", str(self.output), "nothing was measured there yet", cure)
        run = Run.open(self.output)
        latest = {record["experiment"]: record for record in run.records("experiment")}
        for record in latest.values():
            _show(console, record)
        left = find_unfinished(run, EXPERIMENTS)
        for one in left:
            console.print(f"[yellow]incomplete[/]: {escape(str(one))}", highlight=False, soft_wrap=True)
        run.keep_section("verdicts", overview(list(latest.values()), left))
        _tell(console, f"report: {write_report([self.output])}")
        return 0


def _open_or_begin(folder: Path) -> Run:
    """The lab's run folder, begun if there is none."""
    if not (folder / "manifest.json").is_file():
        return Run.begin(folder, "lab", {"task": "the lab"})
    run = Run.open(folder)
    run.go_on()
    return run


@contextmanager
def _bar(shown: bool) -> Iterator[Progress]:
    """A progress bar on standard error; results go to standard output."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        tasks: dict[str, int] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = int(bar.add_task(name, total=total))
            bar.update(tasks[name], completed=done)  # type: ignore[arg-type]

        yield progress


def _tell(console: Console, line: str) -> None:
    """A line with a path in it, whose brackets are no markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show(console: Console, record: dict) -> None:
    word = record["verdict"]
    console.print(f"[bold]{record['experiment']}[/bold]: {record['claim']}", highlight=False)
    console.print(f"  source: {record['source']}", highlight=False)
    for name, value in record["measured"].items():
        if name != "reason":
            against = record["bound"].get(name)
            beside = "" if against is None else f"   (claimed: {_number(against)})"
            console.print(f"  {name}: {_number(value)}{beside}", highlight=False)
    console.print(f"  [{_COLOURS[word]}]{word}[/]: {record['measured']['reason']}", highlight=False)
    console.print(f"  {record['seconds']:.1f} s\n", highlight=False)


def _number(value: object) -> str:
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return f"{value['value']:.3f} in ({value['low']:.3f}, {value['high']:.3f})"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_number(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_number(v) for v in value)
    return f"{value:.8g}" if isinstance(value, float) else str(value)
