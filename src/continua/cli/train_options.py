"""Options of `continua train` that can be refused by themselves, before there is a task."""

import dataclasses
import math
from typing import TYPE_CHECKING

from continua.cli.config import flag
from continua.core.errors import reject

if TYPE_CHECKING:
    from continua.cli.train import Train

_SEEDS = 2**63
BESIDE = ("quiet", "json", "tensorboard", "threads", "resume")
"""What may be said anew of a run that goes on."""


def check_options(options: "Train") -> None:
    """Refuses numbers that no training can take, whatever its task and its preset."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            reject(flag(field.name), value, "this is no finite number", "Pass a finite number.")
    if options.threads < 0:
        reject("--threads", options.threads, "threads are counted", "Pass 0 for torch's own choice, or more.")
    if not -_SEEDS <= options.seed < _SEEDS:
        reject("--seed", options.seed, "a seed has 63 bits and a sign", "Pass a smaller number.")
    for name, why in (("energy", "motion is paid for, not rewarded"), ("decay", "weights would grow")):
        value = getattr(options, name)
        if value is not None and value < 0.0:
            reject(flag(name), value, why, f"Pass {flag(name)} >= 0.")
    for name in ("lr", "soap_lr", "depth"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            reject(flag(name), value, "it must be positive", f"Pass {flag(name)} > 0.")
    if options.b2 is not None and not 0.0 <= options.b2 < 1.0:
        reject("--b2", options.b2, "some of a moment is kept, not all", "Pass 0 <= --b2 < 1.")
    if options.baseline_optimiser != "adamw" and not options.compare:
        cure = "Pass --compare as well, or leave it out."
        reject("--baseline-optimiser", options.baseline_optimiser, "there is no baseline without --compare", cure)


def check_resumed(options: "Train") -> None:
    """A run that goes on does so with its own options: another one beside --resume would be lost."""
    for field in dataclasses.fields(options):
        if getattr(options, field.name) != field.default and field.name not in BESIDE:
            name = "TASK" if field.name == "task" else flag(field.name)
            why = f"a run goes on with the options it began with, and --resume {options.resume} is given"
            reject(name, getattr(options, field.name), why, "Leave it out, or train a new run.")
