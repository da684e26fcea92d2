"""`continua lab`: experiments that measure what theory claims."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal, final

import tyro
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from continua.cli.parsing import Count, Flag, Folder, Measure, SomeFile, SomeFolder, choose, flag, more
from continua.core.errors import reject
from continua.lab.ceiling import Mnist1dCeiling
from continua.lab.cheat_sheet import CheatSheet
from continua.lab.clusters.experiment import Clusters, FastestMode, Overlap
from continua.lab.clusters.particles import check_question
from continua.lab.depth_limit import DepthLimit, PostNormLimit
from continua.lab.estimator_bias import EstimatorBias
from continua.lab.experiment import AbstractExperiment, ExperimentResult
from continua.lab.gradient_accuracy import GradientAccuracy
from continua.lab.intervals import Interval
from continua.lab.lions import LionsDerivative
from continua.lab.lipschitz import AttentionLipschitz
from continua.lab.mean_field import MeanField
from continua.lab.risk.optimal_values import OptimalValues
from continua.lab.risk.pathwise import Pathwise
from continua.lab.risk.sampling import RiskSampling
from continua.lab.risk.softmax_residual import SoftmaxResidual
from continua.lab.risk.transport import Transport
from continua.lab.sde_scaling import SDEScaling
from continua.lab.stacks.experiment import TrainedNetworks
from continua.lab.standing import FOLDER, elsewhere, find_unfinished, note_measuring, overview, run_command, text_of
from continua.lab.sweep import AbstractEngine, CellStore, LocalProcesses, Progress, Ray
from continua.lab.training.adamw_limit import AdamWLimit
from continua.lab.training.compactness import AdamWCompactness
from continua.lab.training.width import DimensionFree, RMSScaling
from continua.lab.variations.experiment import EulerLagrange
from continua.lab.variations.trajectory import TrajectoryQuestion
from continua.report import write_report
from continua.runs import Run

_KINDS = (DepthLimit, AdamWLimit, AdamWCompactness, DimensionFree, LionsDerivative, AttentionLipschitz,
          MeanField, Clusters, RMSScaling, PostNormLimit, SDEScaling, Mnist1dCeiling, EulerLagrange, Pathwise,
          Transport, SoftmaxResidual, RiskSampling, OptimalValues, GradientAccuracy, EstimatorBias,
          TrainedNetworks, CheatSheet)  # fmt: skip
EXPERIMENTS: dict[str, AbstractExperiment] = {each.name: each for each in (kind() for kind in _KINDS)}
"""The one table from words to experiments."""

_LINE = 100
"""Longer lines are hard to read, however wide the terminal is."""
_COLOURS = {"holds": "green", "fails": "bold red", "inconclusive": "yellow"}


@final
@dataclasses.dataclass(frozen=True)
class Lab:
    """Measure what theory claims: list, run NAME, run all, report.

    Each experiment states its claim and its source, measures with fixed seeds, and ends with a verdict:
    holds, fails or inconclusive. Results are kept for each setting of a sweep, so that a killed sweep goes on where it
    stopped. Exit code 1: a verdict is `fails`.
    """

    action: Annotated[Literal["list", "run", "report"], tyro.conf.Positional, tyro.conf.arg(metavar="ACTION")] = "list"
    """list, run or report"""
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """which experiment, or all"""
    quick: Flag = False
    """small sizes, which take seconds"""
    json: Flag = False
    """print one JSON object per line, and nothing else"""
    tokens: Count = None
    """clusters: ask for the overlap of so many tokens that start orthonormal (with --beta and --depth)"""
    beta: Measure = None
    """one evaluation of clusters at this inverse temperature, not the experiment; or that of the attention to hold a
    trajectory against"""
    depth: Measure = None
    """clusters: the depth at which the overlap is asked for (the time t of the paper)"""
    circle: Flag = False
    """clusters: ask for the fastest-growing perturbation of tokens equispaced on the circle (with --beta)"""
    trajectory: SomeFile = None
    """euler-lagrange: an .npz file with `states` (layers + 1, tokens, width) and `mask` (tokens): is it an extremal?"""
    model: SomeFolder = None
    """euler-lagrange: the saved model whose flow the trajectory is held against (otherwise a fitted attention)"""
    text: SomeFile = None
    """trained-networks: a text file to learn, character by character (otherwise a language that is drawn)"""
    engine: Annotated[Literal["local", "ray"], tyro.conf.arg(metavar="local|ray")] = "local"
    """where a sweep runs: local (processes on this machine) or ray (a cluster; needs the extra `scale`)"""
    processes: Count = None
    """how many processes (default: one with --quick, else one per core)"""
    output: Folder = FOLDER
    """where results are kept"""

    def execute(self, console: Console) -> int:
        """Runs the command; 1 where a verdict is `fails`."""
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
                    command = run_command(experiment.name, self.quick, self.output, text_of(experiment))
                    run.record("experiment", quick=self.quick, **record)
                    run.keep_section(experiment.name, result.section(command))
                if self.json:
                    print(json.dumps(record), flush=True)
                else:
                    show_record(console, record)
        if not self.json and run is not None:
            report = f"continua lab report{elsewhere(self.output)}"
            _tell(console, f"kept in {self.output}; `{report}` tells all of it")
        return 1 if failed else 0

    def _asks(self) -> bool:
        """Whether this is a single question."""
        asked = (self.tokens, self.beta, self.depth, self.trajectory, self.model)
        return self.circle or any(value is not None for value in asked)

    def _choose(self) -> list[AbstractExperiment]:
        if self._asks():
            return [self._question()]
        if self.name == "":
            names = f"Choose from {', '.join(EXPERIMENTS)}, all."
            reject("NAME", self.name, "the lab needs to know what to run", f"{names} {more('lab')}")
        choose("NAME", self.name, (*EXPERIMENTS, "all"), "experiment", "lab")
        chosen = list(EXPERIMENTS.values()) if self.name == "all" else [EXPERIMENTS[self.name]]
        if self.text is not None:
            chosen = [reads_text(experiment, self.text) for experiment in chosen]
        return [experiment.quick() if self.quick else experiment for experiment in chosen]

    def _question(self) -> AbstractExperiment:
        if self.name == "euler-lagrange" or self.trajectory is not None or self.model is not None:
            return self._trajectory_question()
        example = "Try `continua lab run clusters --tokens 8 --beta 4 --depth 2` or `... --circle --beta 9`."
        if self.name != "clusters":
            reject("NAME", self.name, "only clusters and euler-lagrange answer single questions", example)
        if self.circle and (self.tokens is not None or self.depth is not None):
            reject("circle", True, "the ring is a continuum without depth", "Leave out --tokens and --depth.")
        check_question(self.tokens, self.beta, self.depth)
        asked = {"beta": self.beta} if self.circle else {"tokens": self.tokens, "beta": self.beta, "depth": self.depth}
        for name, value in asked.items():
            if value is None:
                reject(name, value, f"the question needs --{', --'.join(asked)}", example)
        assert self.beta is not None
        if self.circle:
            return FastestMode(self.beta)
        assert self.tokens is not None and self.depth is not None
        return Overlap(self.tokens, self.beta, self.depth)

    def _trajectory_question(self) -> AbstractExperiment:
        example = "Try `continua lab run euler-lagrange --trajectory FILE.npz`, with --model FOLDER or --beta 4."
        if self.name != "euler-lagrange":
            reject("NAME", self.name, "only euler-lagrange reads trajectories", example)
        if self.circle or self.tokens is not None or self.depth is not None:
            reject("NAME", self.name, "--circle, --tokens and --depth are questions about clusters", example)
        if self.trajectory is None:
            reject("--trajectory", None, "the question is about a path", example)
        if self.model is not None and self.beta is not None:
            reject("--beta", self.beta, "the model has its own", "Pass --model or --beta.")
        check_question(None, self.beta, None)
        model = "" if self.model is None else str(self.model)
        return TrajectoryQuestion(str(self.trajectory), model, self.beta)

    def _engine(self) -> AbstractEngine:
        if self.engine == "ray":
            return Ray()
        return LocalProcesses(1 if self.processes is None and self.quick else self.processes)

    def _report(self, console: Console) -> int:
        if not (self.output / "manifest.json").is_file():
            cure = f"Begin with `{run_command('clusters', True, self.output)}`."
            reject("--output", str(self.output), "nothing was measured there yet", cure)
        run = Run.open(self.output)
        latest = {record["experiment"]: record for record in run.records("experiment")}
        for record in latest.values():
            show_record(console, record)
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


def show_record(console: Console, record: dict) -> None:
    """Prints what was measured beside what is claimed, and the verdict."""
    word = record["verdict"]
    console.print(f"[bold]{record['experiment']}[/bold]: {record['claim']}", highlight=False)
    console.print(f"  source: {record['source']}", highlight=False)
    for name, value in record["measured"].items():
        if name != "reason":
            against = record["bound"].get(name)
            beside = "" if against is None else f"   (claimed {_number(against)})"
            console.print(f"  {name}: {_number(value)}{beside}", highlight=False)
    console.print(f"  [{_COLOURS[word]}]{word}[/]: {record['measured']['reason']}", highlight=False)
    console.print(f"  {record['seconds']:.1f} s\n", highlight=False)


def _number(value: object) -> str:
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return str(Interval(value["value"], value["low"], value["high"]))
    if isinstance(value, dict) and "at_most" in value:
        return f"at most {_number(value['at_most'])}"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_number(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_number(v) for v in value)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def reads_text(experiment: AbstractExperiment, file: Path) -> AbstractExperiment:
    """The experiment on the text of a file."""
    if not isinstance(experiment, TrainedNetworks):
        reject("--text", str(file), f"{experiment.name} reads no text", "Leave it out, or run trained-networks.")
    if not file.is_file():
        reject("--text", str(file), "there is no such file", "Pass a text file, or leave it out.")
    return dataclasses.replace(experiment, text=str(file))


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
