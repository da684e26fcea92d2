"""`continua train`: a task, a model, a run folder."""

import dataclasses
import itertools
import math
import shlex
import statistics
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, final

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from continua.cli import options
from continua.cli.measuring import end_run, print_results, show_results
from continua.cli.parsing import flag, read_values, values_of
from continua.cli.resuming import Resumed, check_same, data_digest, note_failure, open_training, read_overrides
from continua.core.batch import Batch
from continua.core.counts import say_count
from continua.core.errors import reject
from continua.core.extras import extra
from continua.data import AbstractTask, Split
from continua.model import ContinuousTransformer
from continua.optim import optimiser_name
from continua.runs import Run, check_writable, present_versions
from continua.train import (
    PRESETS,
    STEPPERS,
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
    Ranks,
    StopRequest,
    Training,
    TrainingGrids,
    TrainingOptions,
    build_baseline,
    build_continuous,
    check_sizes,
    count_parameters,
    count_tokens,
    name_lost,
    objective_of,
    place,
    stepper_of,
    update_memory,
)

_BESIDE = ("measure", "quiet", "json", "tensorboard", "resume", "override")
"""What may be said anew of a run that goes on."""
_TRIED = 8
"""Places in the training at which updates are timed, where it is as long as so many seconds."""
_LOWER = 0.5
"""By how much the rates of a run that diverged are multiplied when it goes on."""


@final
@dataclasses.dataclass(frozen=True)
class Train:
    """Train a continuous Transformer on a task, and leave a run folder.

    Tasks: mnist1d (the default, generated here), text (any text file, by characters), digits (scikit-learn), spirals
    (irregular times, points between and ahead), burgers and darcy (differential equations, tested at other
    resolutions), uea (series of the UEA archive, by their files), csv (your own series, gaps filled and continued).
    Options that are not given are those of the preset. Stopped by Ctrl-C it writes a checkpoint and leaves with code
    75; `continua train --resume RUN` then goes on, to the same numbers as if it had not been stopped, as it does after
    a kill or a crash of the machine.
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

    def check_given(self, given: list[str]) -> None:
        """Refuses a number of updates beside a budget that would make it another."""
        for name in ("token_budget", "time_budget"):
            if (budget := getattr(self.training, name)) and "updates" in given:
                why = f"--updates {self.training.updates} says how long the training is as well"
                reject(flag(name), budget, why, f"Pass one of --updates and {flag(name)}.")

    def check_idle(self, given: list[str]) -> None:
        """Refuses options of the command line that would change nothing beside the others."""
        values = values_of(self)
        for name, why in options.idle_options(self.model, self.depth, self.training).items():
            if name in given and values[name]:
                reject(flag(name), values[name], f"it would change nothing: {why}", "Leave it out.")

    def execute(self, console: Console) -> int:
        with StopRequest() as stop:
            try:
                with Ranks.join(self._device()) as ranks, ExitStack() as held:
                    self._begin_or_go_on(console, stop, ranks, held)
                    ranks.leave()
            except Interrupted as stopped:
                if str(stopped) == stop.reason:
                    raise Interrupted(f"{stopped} before it trained. Give the same command again.") from None
                raise
        return 0

    def _device(self) -> str:
        """Where ranks compute: a run that goes on does so where it began."""
        if self.run.resume is None:
            return self.run.device
        return open_training(self.run.resume).manifest["config"].get("device", "cpu")

    def _begin_or_go_on(self, console: Console, stop: StopRequest, ranks: Ranks, held: ExitStack) -> None:
        if self.run.resume is not None:
            self._check_resumed(self.run.resume)
            run = open_training(self.run.resume)
        elif self.run.override:
            return reject("--override", self.run.override, "there is no run that it changes", "Pass --resume RUN too.")
        elif self.run.autoresume and ranks.tell(self._find_begun):
            run = self._open_begun(open_training(self.output.output or Path()))
        else:
            return self._train(console, stop, ranks, held)
        ranks.tell(lambda: held.enter_context(run.lock()) or "")
        self._go_on(console, stop, ranks, held, run)

    def _find_begun(self) -> str:
        """Whether there is a run to go on with, as a word."""
        if self.output.output is None:
            reject("--autoresume", True, "only a run whose folder is known is found again", "Pass --output RUN too.")
        return "there" if (self.output.output / "manifest.json").exists() else ""

    def _open_begun(self, run: Run) -> Run:
        """The run that this command has begun; other options than its own would be lost."""
        own, asked = values_of(options_of(run)), self._config()
        passed = (*_BESIDE, "output", "config", "autoresume", "token_budget", "time_budget")
        if self.training.token_budget or self.training.time_budget:  # the run keeps what fitted
            passed += ("updates",)
        for name, value in asked.items():
            if value != own[name] and name not in passed:
                why = f"the run in {run.folder} began with {own[name]}"
                cure = f"Leave it so, or: continua train --resume {shlex.quote(str(run.folder))} --override {name}="
                reject("TASK" if name == "task" else flag(name), value, why, f"{cure}{value}")
        return run

    def _go_on(self, console: Console, stop: StopRequest, ranks: Ranks, held: ExitStack, run: Run) -> None:
        manifest = run.manifest
        if manifest["state"] == "finished":
            if not (run.folder / "models").exists() and ranks.first:
                run.keep_models()
            if self.run.autoresume:
                return console.print(f"the run {run.folder} is finished", highlight=False, markup=False)
            cure = f"Train a new one, or look at it: `continua report {shlex.quote(str(run.folder))}`."
            reject("run", str(run.folder), "this run is finished", cure)
        before, given = options_of(run), read_overrides(self.run.override)
        accepted = {name: value for name, value in given.items() if name == "data" or name in manifest["versions"]}
        own = {name: value for name, value in given.items() if name not in accepted}
        after = read_values(Train, "train", own, "--override", before) if own else before
        if manifest["state"] == "diverged" and after.training == before.training:
            how = after.training
            rates = {name: _LOWER * getattr(how, name) for name in ("learning_rate", "kernel_learning_rate")}
            after = dataclasses.replace(after, training=dataclasses.replace(how, **rates))
        was, config = values_of(before), after._config()
        changes = {name: (was[name], value) for name, value in values_of(after).items() if value != was[name]}
        output = dataclasses.replace(after.output, output=run.folder, quiet=self.output.quiet, json=self.output.json,
                                     tensorboard=self.output.tensorboard or before.output.tensorboard)  # fmt: skip
        # other threads add up in another order: by default those that it began with
        threads = after.run.threads or int(manifest["facts"].get("threads", 0))
        begun = dataclasses.replace(after.run, threads=threads, measure=self.run.measure and before.run.measure)
        asked = dataclasses.replace(after, run=begun, output=output)
        ranks.add_up([0.0])  # all have read what rank 0 is about to change
        asked._train(console, stop, ranks, held, Resumed(run, config, changes, accepted))

    def _config(self) -> dict[str, Any]:
        """The options as a run keeps them: files are found from any folder."""
        files = {name: path.resolve() for name in ("text", "series") if (path := getattr(self.data, name)) is not None}
        return values_of(self) | files

    def _check_resumed(self, folder: Path) -> None:
        """A run that goes on does so with its own options: another one beside --resume would be lost."""
        defaults = values_of(Train().defaults())
        for name, value in values_of(self).items():
            if value != defaults[name] and name not in _BESIDE:
                why = f"a run goes on with the options it began with, and --resume {folder} is given"
                cure = f"Leave it out, change it from here on with --override {name}={value}, or train a new run."
                reject("TASK" if name == "task" else flag(name), value, why, cure)

    def _train(
        self, console: Console, stop: StopRequest, ranks: Ranks, held: ExitStack, resumed: Resumed | None = None
    ) -> None:
        options.check_options(self.run, self.model, self.costs, self.training)
        preset, how, saving = Preset(self.model, self.depth, self.costs, self.training), self.training, self.output
        options.check_sharding(self.run, preset)
        task = options.task_of(self.task, self.data)  # reads nothing: what can be refused without data comes first
        if resumed is None:
            ranks.tell(lambda: check_free(self.output.output) or "")
        if self.output.tensorboard:
            extra("tensorboard", "tensorboard")
        if self.run.threads:
            torch.set_num_threads(self.run.threads)
        console.quiet = self.output.quiet or self.output.json or not ranks.first
        check_sizes(preset)
        plan = Plan(how.updates, how.batch_size, self.run.seed, how.warmup_ratio, how.clip, how.validations,
                    how.min_lr_ratio, saving.save_seconds, saving.save_every, saving.keep, saving.max_skipped,
                    how.patience, how.best)  # fmt: skip
        learners = self._learners(task, preset)
        for split in Split:  # data that do not fit are refused before a folder is made
            task.count(split)
        if self.task == "csv":  # a file of the user's may have fewer windows than the batch
            plan = dataclasses.replace(plan, batch_size=min(plan.batch_size, task.count(Split.TRAIN)))
        first = task.training_batch(plan.batch_size, 0, self.run.seed)
        if how.token_budget or how.time_budget:
            if how.time_budget and ranks.size > 1:
                why = "one rank cannot tell how long an update of all of them takes"
                reject("--time-budget", how.time_budget, why, "Pass --updates or --token-budget.")
            updates = self._updates_that_fit(console, first, self._learners(task, preset), plan)
            asked = dataclasses.replace(how, updates=updates, token_budget=0.0, time_budget=0.0)
            return dataclasses.replace(self, training=asked)._train(console, stop, ranks, held, resumed)
        data = data_digest(task, first) if ranks.first else ""
        run = None if resumed is None else resumed.run
        if run is None:
            facts = {"data": data, "preset": values_of(preset), "ranks": ranks.size}
            run = Run(Path(ranks.tell(lambda: self._begin(task, learners, first, facts, held))))
        learners = [self._join(ranks, learner, preset) for learner in learners]
        reporters = self._reporters(console, run) if ranks.first else []
        training = Training(run, task, learners, plan, reporters, stop)
        done = 0 if resumed is None else self._restore(console, training, resumed, data)
        with note_failure(run, plan.updates) if ranks.first else nullcontext(), name_lost():
            self._introduce(console, run, task, learners, ranks)
            training.go(done)
            stop.obey()
            ranks.leave()
            if not ranks.first:
                return
            results, page = end_run(console, training, self.run.measure)
        if self.output.json:
            print_results(run, results, page)
        else:
            show_results(console, run, task, results, page)

    def _begin(
        self, task: AbstractTask, learners: list[Learner], first: Batch, facts: dict[str, Any], held: ExitStack
    ) -> str:
        """The folder of a new run, held by this process."""
        folder = claim_folder(self.task) if self.output.output is None else self.output.output
        facts = {"task": task.facts(), **facts, **self._facts(learners, first)}
        run = Run.begin(folder, "train", self._config(), facts)
        held.enter_context(run.lock())
        return str(folder)

    def _join(self, ranks: Ranks, learner: Learner, preset: Preset) -> Learner:
        """The learner as all ranks train it."""
        if ranks.size == 1:
            return learner
        ranks = dataclasses.replace(ranks, sharded=self.run.sharding == "fsdp2")
        wrapped, optimiser = ranks.wrap(learner.model), learner.optimiser
        if ranks.sharded:  # parameters are new
            optimiser = options.OPTIMISERS[self.training.optimizer](learner.model, preset)
        return dataclasses.replace(learner, wrapped=wrapped, optimiser=optimiser, ranks=ranks)

    def _updates_that_fit(self, console: Console, batch: Batch, learners: list[Learner], plan: Plan) -> int:
        """The updates that read so many tokens, or take so many seconds for all models; the run keeps their number."""
        if self.training.token_budget:
            updates = math.ceil(self.training.token_budget / count_tokens(batch))
        else:
            # spread over the training, as coarse and refined updates take other times; each twice, the faster counts,
            # since the first of a kind warms up
            spread = [(2 * k + 1) * plan.updates // (2 * _TRIED) for k in range(_TRIED)]
            tried = [[sum(one.update(batch, n, plan).seconds for one in learners) for _ in range(2)] for n in spread]
            updates = max(1, int(self.training.time_budget / statistics.mean(map(min, tried))))
        console.print(f"{say_count(updates, 'update')} fit", highlight=False)
        return updates

    def _restore(self, console: Console, training: Training, resumed: Resumed, data: str) -> int:
        """Takes up the last good checkpoint and notes what is changed from there on; says how many updates are done."""
        run, manifest, ranks = resumed.run, resumed.run.manifest, training.ranks
        changes = dict(resumed.changes)
        ranks.tell(lambda: changes.update(check_same(run, data, resumed.accepted)) or "")
        since = manifest["facts"].get("diverged") if manifest["state"] == "diverged" else None
        done = training.resume(None if since is None else since - 1)
        if not ranks.first:
            return done
        if (before := manifest["facts"].get("ranks", 1)) != ranks.size:  # sums in another order: not the same digits
            changes["ranks"] = (before, ranks.size)
        if changes:
            run.record("override", after=done, changes=changes)
            told = ", ".join(f"{name} from {was} to {now}" for name, (was, now) in changes.items())
            console.print(f"changed after update {done}: {told}", highlight=False, markup=False, soft_wrap=True)
        run.note(data=data, ranks=ranks.size)
        run.go_on(config=resumed.config, versions=present_versions())
        return done

    def _reporters(self, console: Console, run: Run) -> list[AbstractReporter]:
        reporters: list[AbstractReporter] = [JsonLines()] if self.output.json else []
        if not console.quiet:
            reporters.append(Bar(console))
        if self.output.tensorboard:
            reporters.append(Events(run.folder / "tensorboard"))
        return reporters

    def _facts(self, learners: list[Learner], first: Batch) -> dict[str, Any]:
        """What a run notes of its models."""
        memory = {
            one.name: update_memory(one.model, one.objective, place(first, one.model))
            for one in (() if self.run.compile else learners)
        }
        return {
            "models": {one.name: repr(one.model) for one in learners},
            "parameters": {one.name: count_parameters(one.model) for one in learners},
            "optimisers": {one.name: optimiser_name(one.optimiser) for one in learners},
            "memory": memory,
            "threads": torch.get_num_threads(),
        }

    def _learners(self, task: AbstractTask, preset: Preset) -> list[Learner]:
        torch.manual_seed(self.run.seed)
        build = options.OPTIMISERS[self.training.optimizer]
        grids = TrainingGrids.of(self.depth)
        model = self._place(build_continuous(task.form, preset))
        objective = objective_of(task.form, model, preset)
        learners = [Learner("continuous", model, objective, build(model, preset), grids=grids)]
        for name in self.run.compare:
            torch.manual_seed(self.run.seed)
            baseline = self._place(build_baseline(task.form, preset, count_parameters(model), name))
            objective = objective_of(task.form, baseline, preset if name.endswith("regularized") else None)
            learners.append(Learner(name, baseline, objective, build(baseline, preset)))
        for learner in learners:
            if self.run.compile:
                learner.model.flow.compile()
            learner.objective.check(learner.optimiser, learner.model)
        return learners

    def _place(self, model: ContinuousTransformer) -> ContinuousTransformer:
        return model.to(self.run.device, getattr(torch, self.run.dtype))

    def _introduce(self, console: Console, run: Run, task: AbstractTask, learners: list[Learner], ranks: Ranks) -> None:
        sizes = ", ".join(f"{learner.name} with {_size(learner.model)}" for learner in learners)
        optimisers = dict.fromkeys(optimiser_name(learner.optimiser) for learner in learners)
        facts = task.facts()
        augmented = f"; augmentation: {facts['augmentation']}" if facts.get("augmentation") else ""
        notes = "".join(f"\n{note}" for note in facts.get("notes", ()))
        console.print(
            f"[bold]{task.name}[/bold]: {sizes}; {' and '.join(optimisers)}{augmented}{escape(notes)}", highlight=False
        )
        if type(stepper_of(self.depth)) is not type(STEPPERS[self.depth.stepper]):
            asked = "--rtol" if self.depth.rtol else "--gradient backsolve"
            text = f"depth: {asked} takes Dormand-Prince steps of the summed velocity in place of {self.depth.stepper}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        console.print(f"split: {facts['split']}", highlight=False, markup=False, soft_wrap=True)
        how = f", {ranks.size} ranks" if ranks.size > 1 else ""
        console.print(f"run: {run.folder}{how}", highlight=False, markup=False, soft_wrap=True)


def _size(model: ContinuousTransformer) -> str:
    """The numbers that are trained, and the layers that they are of."""
    layers = 1 + max(len(field.breaks) for field in model.flow.fields)
    return (f"{layers} layers and " if layers > 1 else "") + f"{count_parameters(model):,} parameters"


def options_of(run: Run) -> Train:
    """The options that a run began with, without those that only said how to begin."""
    values = {name: value for name, value in run.manifest["config"].items() if value is not None}
    own = {name: value for name, value in values.items() if name not in ("config", "resume", "override")}
    return read_values(Train, "train", own, str(run.folder / "manifest.json"))


def check_free(folder: Path | None) -> None:
    """Refuses a folder in which no run can begin."""
    if folder is None:
        check_writable("folder", Path("runs"))
    else:
        Run.check_free(folder)


def claim_folder(task: str) -> Path:
    """Makes the first of runs/TASK-001, runs/TASK-002, ... that is not there yet: no other process can have it too."""
    for number in itertools.count(1):
        folder = Path("runs") / f"{task}-{number:03d}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
