"""`continua train`: a task, a model, a run folder."""

import dataclasses
import itertools
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, final

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from continua.cli import options
from continua.cli.measuring import BEGUN, keep_results, measure_models, results_tables
from continua.cli.parsing import flag, read_values, values_of
from continua.core.errors import SolveError, reject
from continua.data import AbstractTask, Split
from continua.model import ContinuousTransformer
from continua.optim import optimiser_name
from continua.report import write_report
from continua.runs import Run, finite
from continua.train import (
    PRESETS,
    AbstractReporter,
    Bar,
    CostOptions,
    DepthOptions,
    Events,
    Interrupted,
    JsonLines,
    Learner,
    ModelOptions,
    Plan,
    Preset,
    RandomGrids,
    Training,
    TrainingError,
    TrainingOptions,
    build_continuous,
    build_layers,
    check_sizes,
    count_parameters,
    objective_of,
    place,
    update_memory,
)

_BESIDE = ("quiet", "json", "tensorboard", "threads", "resume")
"""What may be said anew of a run that goes on."""


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

    task: Annotated[options.TaskName, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")] = "mnist1d"
    """mnist1d, text, digits, spirals, burgers, darcy, uea or csv"""
    run: options.RunOptions = options.RunOptions()
    data: options.DataOptions = options.DataOptions()
    model: ModelOptions = ModelOptions()
    depth: DepthOptions = DepthOptions()
    costs: CostOptions = CostOptions()
    training: TrainingOptions = TrainingOptions()
    output: options.OutputOptions = options.OutputOptions()

    def defaults(self) -> "Train":
        """The options of this task and preset where nothing else is said."""
        preset = PRESETS[self.task][self.run.preset]
        return Train(model=preset.model, depth=preset.depth, costs=preset.costs, training=preset.training)

    def execute(self, console: Console) -> int:
        if self.run.resume is None:
            self._train(console, None)
            return 0
        self._check_resumed(self.run.resume)
        run = open_training(self.run.resume)
        if run.manifest["state"] == "finished":
            cure = f"Train a new one, or look at it: `continua report {shlex.quote(str(run.folder))}`."
            reject("run", str(run.folder), "this run is finished", cure)
        before = options_of(run)
        output = dataclasses.replace(self.output, output=run.folder,
                                     tensorboard=self.output.tensorboard or before.output.tensorboard)  # fmt: skip
        threads = dataclasses.replace(before.run, threads=self.run.threads or before.run.threads)
        dataclasses.replace(before, run=threads, output=output)._train(console, run)
        return 0

    def _check_resumed(self, folder: Path) -> None:
        """A run that goes on does so with its own options: another one beside --resume would be lost."""
        defaults = values_of(Train().defaults())
        for name, value in values_of(self).items():
            if value != defaults[name] and name not in _BESIDE:
                why = f"a run goes on with the options it began with, and --resume {folder} is given"
                reject("TASK" if name == "task" else flag(name), value, why, "Leave it out, or train a new run.")

    def _train(self, console: Console, run: Run | None) -> None:
        options.check_options(self.run, self.model, self.training)
        task = options.task_of(self.task, self.data)  # reads nothing: what can be refused without data comes first
        folder = self.output.output or free_folder(self.task) if run is None else run.folder
        if run is None:
            Run.check_free(folder)
        if self.run.threads:
            torch.set_num_threads(self.run.threads)
        console.quiet = self.output.quiet or self.output.json
        reporters: list[AbstractReporter] = [JsonLines()] if self.output.json else []
        if not console.quiet:
            reporters.append(Bar(console))
        if self.output.tensorboard:
            reporters.append(Events(folder / "tensorboard"))
        preset, how = Preset(self.model, self.depth, self.costs, self.training), self.training
        check_sizes(preset)
        plan = Plan(how.updates, how.batch_size, self.run.seed, how.warmup_ratio, how.clip, how.validations,
                    floor=how.floor)  # fmt: skip
        learners = self._learners(task, preset)
        for split in Split:  # data that do not fit are refused before a folder is made
            task.count(split)
        if self.task == "csv":  # a file of the user's may have fewer windows than the batch
            plan = dataclasses.replace(plan, batch_size=min(plan.batch_size, task.count(Split.TRAIN)))
        first = task.training_batch(plan.batch_size, 0, self.run.seed)
        again = run is not None
        if run is None:
            run = Run.begin(folder, "train", values_of(self), {"task": task.facts()})
            sizes = {learner.name: count_parameters(learner.model) for learner in learners}
            optimisers = {learner.name: optimiser_name(learner.optimiser) for learner in learners}
            memory = dict[str, int]()
            for one in () if self.run.compile else learners:
                memory[one.name] = update_memory(one.model, one.objective, place(first, one.model))
            described = {one.name: repr(one.model) for one in learners}
            run.note(models=described, parameters=sizes, optimisers=optimisers, memory=memory,
                     preset=values_of(preset), threads=torch.get_num_threads())  # fmt: skip
        self._introduce(console, run, task, learners)
        training = Training(run, task, learners, plan, reporters)
        with note_failure(run):
            training.go(training.resume() if again else 0)
            console.print(BEGUN, highlight=False, soft_wrap=True)
            results = measure_models(run, task, {learner.name: learner.model for learner in learners})
            keep_results(run, task, learners)
            run.end("finished")
            page = write_report([run.folder])
        if self.output.json:
            found = {"kind": "test", "run": str(run.folder), "results": results, "report": str(page)}
            print(json.dumps(finite(found), allow_nan=False))
        else:
            where = f"report: [bold]{escape(str(page))}[/bold]"
            console.print(*results_tables(task, results), where, sep="\n", soft_wrap=True)

    def _learners(self, task: AbstractTask, preset: Preset) -> list[Learner]:
        torch.manual_seed(self.run.seed)
        build, grids = options.OPTIMISERS[self.training.optimizer], RandomGrids(self.depth.jitter, self.depth.refined)
        model = self._place(build_continuous(task.form, preset))
        objective = objective_of(task.form, model, preset)
        learners = [Learner("continuous", model, objective, build(model, preset), grids=grids)]
        for name in self.run.compare:
            torch.manual_seed(self.run.seed)
            rival = self._place(build_layers(task.form, preset, count_parameters(model), usual=name == "usual"))
            paid = objective_of(task.form, rival, preset) if name == "priced" else objective_of(task.form)
            learners.append(Learner(name, rival, paid, build(rival, preset)))
        for learner in learners:
            if self.run.compile:
                learner.model.flow.compile()
            learner.objective.check(learner.optimiser, learner.model)
        return learners

    def _place(self, model: ContinuousTransformer) -> ContinuousTransformer:
        return model.to(self.run.device, getattr(torch, self.run.dtype))

    def _introduce(self, console: Console, run: Run, task: AbstractTask, learners: list[Learner]) -> None:
        sizes = "; ".join(
            f"{learner.name} with {count_parameters(learner.model):,} parameters, {optimiser_name(learner.optimiser)}"
            for learner in learners
        )
        facts = task.facts()
        augmented = f"; augmentation: {facts['augmentation']}" if facts.get("augmentation") else ""
        notes = "".join(f"\n{note}" for note in facts.get("notes", ()))
        console.print(f"[bold]{task.name}[/bold]: {sizes}{augmented}{escape(notes)}", highlight=False)
        console.print(f"run: {run.folder}", highlight=False, markup=False, soft_wrap=True)


def open_training(folder: Path) -> Run:
    """The run in a folder, which `continua train` has left there."""
    run = Run.open(folder)
    if (kind := run.manifest["kind"]) != "train":
        reject("run", str(folder), f"this is a run of kind {kind!r}", "Pass one of `continua train`.")
    return run


def options_of(run: Run) -> Train:
    """The options that a run began with, without those that only said how to begin."""
    values = {name: value for name, value in run.manifest["config"].items() if value is not None}
    own = {name: value for name, value in values.items() if name not in ("config", "resume")}
    return read_values(Train, "train", own, str(run.folder / "manifest.json"))


def free_folder(task: str) -> Path:
    """The first of runs/TASK-001, runs/TASK-002, ... that is not there yet."""
    folders = (Path("runs") / f"{task}-{number:03d}" for number in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())


@contextmanager
def note_failure(run: Run) -> Iterator[None]:
    """Notes in the run that what happens inside failed, and adds to the message how to go on."""
    resume = f"continua train --resume {shlex.quote(str(run.folder))}"
    again = f"Go on with: {resume}"
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}. {again}") from None
    except KeyboardInterrupt:
        run.end("interrupted")
        kept = (run.last_checkpoint() or {"update": 0})["update"]
        why = f"stopped at once; updates since the last checkpoint are lost. {again}"
        if kept == run.manifest["facts"].get("preset", {}).get("updates"):
            why = f"stopped after the last update; nothing is lost. Measure the test with: {resume}"
        raise Interrupted(why) from None
    except SolveError as error:
        run.end("failed")
        advice = "In training, lower --learning-rate, pay for motion with --energy, or take more --steps."
        raise TrainingError(f"{error} {advice}") from error
    except OSError as error:
        with suppress(OSError):
            run.end("failed")
        why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        what = f"the run could not be written ({why})"
        raise TrainingError(f"{what}. Mend this; nothing is half written. {again}") from error
    except Exception:
        run.end("failed")
        raise
