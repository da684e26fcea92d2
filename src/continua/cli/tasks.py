"""The one table from words to tasks, steppings, presets and optimisers."""

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from continua.cli.config import flag
from continua.core.errors import reject
from continua.data import AbstractTask, Burgers, Csv, Darcy, Digits, Mnist1d, Preset, Spirals, Stepping, Text, Uea
from continua.train import by_space, decayed

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
    if options.task not in TASKS:
        reject("task", options.task, "there is no such task", f"Choose from {', '.join(TASKS)}.")
    for name, tasks in _OWN.items():
        if getattr(options, name) is not None and not reads(options.task, name):
            value = getattr(options, name)
            cure = f"Leave it out, or use {' or '.join(f'`continua train {task}`' for task in tasks)}."
            shown = str(value) if isinstance(value, Path) else value
            reject(flag(name), shown, f"the task {options.task} does not read it", cure)
    return TASKS[options.task](options)


OPTIMISERS: Mapping[str, Callable[[nn.Module, Preset], torch.optim.Optimizer]] = {
    "adamw": lambda model, preset: decayed(model, preset.lr, preset.decay, (0.9, preset.b2)),
    # the same shrinkage in an update, rate times decay, as of adamw
    "recipe": lambda model, preset: by_space(
        model, preset.recipe_lr, preset.decay * preset.lr / preset.recipe_lr, (0.9, preset.b2)
    ),
}


def optimiser_of(option: str, word: str, model: nn.Module, preset: Preset) -> torch.optim.Optimizer:
    """The optimiser that an option names, for a model at the rates of a preset."""
    if word not in OPTIMISERS:
        reject(option, word, "there is no such optimiser", f"Choose from {', '.join(OPTIMISERS)}.")
    if word == "recipe" and importlib.util.find_spec("pytorch_optimizer") is None:
        cure = f"Install it with pip install 'continua[optim]', or pass {option} adamw."
        reject(option, word, "its SOAP comes from pytorch-optimizer, which is not installed", cure)
    return OPTIMISERS[word](model, preset)


def _needed(options: "Train", what: str) -> Path:
    if options.series is None:
        reject("--series", None, f"the task {options.task} reads files", f"Pass --series {what}.")
    return options.series


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _names(words: str | None) -> tuple[str, ...] | None:
    return None if words is None else tuple(word.strip() for word in words.split(","))


def preset_of(options: "Train", task: AbstractTask) -> Preset:
    """The named preset of the task, with the sizes that the options change."""
    presets = task.presets()
    if options.preset not in presets:
        reject("--preset", options.preset, f"{task.name} has no such preset", f"Choose from {', '.join(presets)}.")
    named = [field.name for field in dataclasses.fields(Preset) if field.name != "stepping"]
    given: dict[str, Any] = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.stepping is not None:
        steppings = {stepping.value: stepping for stepping in Stepping}
        if options.stepping not in steppings:
            reject("--stepping", options.stepping, "there is no such stepping", f"Choose from {', '.join(steppings)}.")
        given["stepping"] = steppings[options.stepping]
    return dataclasses.replace(presets[options.preset], **given)


def free_folder(task: str) -> Path:
    """The first of runs/TASK-001, runs/TASK-002, ... that is not there yet."""
    number = 1
    while (folder := Path("runs") / f"{task}-{number:03d}").exists():
        number += 1
    return folder
