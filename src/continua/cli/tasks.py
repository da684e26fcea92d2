"""The one table from words to tasks, steppings, presets and optimisers."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from continua.cli.choices import choose
from continua.cli.config import flag
from continua.core.errors import reject
from continua.core.extras import extra
from continua.data import AbstractTask, Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.optim import SOAP, Recipe, adamw
from continua.train import PRESETS, Preset, Stepping, presets_of

if TYPE_CHECKING:
    from continua.cli.train import Train

TASKS: Mapping[str, Callable[["Train"], AbstractTask]] = {
    "mnist1d": lambda options: Mnist1d(**_given(dropped=options.dropped)),
    "text": lambda options: Text(options.text, **_given(context=options.context)),
    "digits": lambda options: Digits(**_given(dropped=options.dropped)),
    "spirals": lambda options: Spirals(),
    "burgers": lambda options: Burgers(**_given(points=options.points)),
    "darcy": lambda options: Darcy(**_given(points=options.points)),
    "uea": lambda options: Uea(_needed(options, "NAME_TRAIN.ts, with NAME_TEST.ts beside it")),
    "csv": lambda options: Csv(
        _needed(options, "FILE.csv"),
        time=options.time,
        id=options.id,
        columns=_names(options.columns),
        **_given(window=options.context),
    ),
}

_STEPPINGS = {stepping.value: stepping for stepping in Stepping}

_OWN: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "context": ("text", "csv"),
    "series": ("uea", "csv"),
    "time": ("csv",),
    "id": ("csv",),
    "columns": ("csv",),
    "points": ("burgers", "darcy"),
    "dropped": ("mnist1d", "digits"),
}
"""Options that only some tasks read; with another one they would be passed over in silence."""


def reads(task: str | None, option: str) -> bool:
    """Whether a task reads an option; one that is not of some tasks alone is read by all."""
    return option not in _OWN or task in _OWN[option]


def task_of(options: "Train") -> AbstractTask:
    """The task that the options name."""
    check_task(options)
    return TASKS[options.task](options)


def check_task(options: "Train") -> None:
    """Refuses a word that names no task or no preset, and options that the task does not read."""
    choose("TASK", options.task, TASKS, "task", "train")
    choose("--preset", options.preset, PRESETS[options.task], "preset", "train")
    if options.stepping is not None:
        choose("--stepping", options.stepping, _STEPPINGS, "stepping", "train")
    for name, tasks in _OWN.items():
        if getattr(options, name) is not None and not reads(options.task, name):
            value = getattr(options, name)
            cure = f"Leave it out, or use {' or '.join(f'`continua train {task}`' for task in tasks)}."
            shown = str(value) if isinstance(value, Path) else value
            reject(flag(name), shown, f"the task {options.task} does not read it", cure)


OPTIMISERS: Mapping[str, Callable[[nn.Module, Preset], torch.optim.Optimizer]] = {
    "adamw": lambda model, preset: adamw(model, preset.lr, preset.decay, (0.9, preset.b2)),
    "recipe": lambda model, preset: Recipe.with_lr(preset.lr, preset.decay, (0.9, preset.b2)).build(model),
    # the same shrinkage in an update, rate times decay, as of adamw
    "soap": lambda model, preset: Recipe.with_lr(
        preset.soap_lr, preset.decay * preset.lr / preset.soap_lr, (0.9, preset.b2), SOAP
    ).build(model),
}


def optimiser_of(option: str, word: str, model: nn.Module, preset: Preset) -> torch.optim.Optimizer:
    """The optimiser that an option names, for a model at the rates of a preset."""
    check_optimiser(option, word)
    return OPTIMISERS[word](model, preset)


def check_optimiser(option: str, word: str) -> None:
    """Refuses a word that names no optimiser, and one whose library is not installed."""
    choose(option, word, OPTIMISERS, "optimiser", "train")
    if word == "soap":
        extra("pytorch_optimizer", "optim", f"`{option} soap`")


def _needed(options: "Train", what: str) -> Path:
    if options.series is None:
        reject("--series", None, f"the task {options.task} reads files", f"Pass --series {what}.")
    return options.series


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _names(words: str | None) -> tuple[str, ...] | None:
    """The names between the commas, or nothing where the option is not given."""
    if words is None:
        return None
    names = tuple(word.strip() for word in words.split(",") if word.strip())
    if not names:
        reject("--columns", words, "it names no column", "Write names parted by commas, or leave it out.")
    return names


def preset_of(options: "Train", task: AbstractTask) -> Preset:
    """The named preset of the task, with the sizes that the options change."""
    named = [field.name for field in dataclasses.fields(Preset) if field.name != "stepping"]
    given: dict[str, Any] = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.stepping is not None:
        given["stepping"] = _STEPPINGS[options.stepping]
    presets = presets_of(task)
    return dataclasses.replace(presets[choose("--preset", options.preset, presets, "preset", "train")], **given)


def free_folder(task: str) -> Path:
    """The first of runs/TASK-001, runs/TASK-002, ... that is not there yet."""
    number = 1
    while (folder := Path("runs") / f"{task}-{number:03d}").exists():
        number += 1
    return folder
