"""`continua plan`: what a training needs, before anybody pays for it."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from rich.console import Console

from continua.cli.measuring import show_table
from continua.cli.options import OPTIMISERS, task_of
from continua.cli.parsing import Amount, Count, File, Flag, SomeAmount, read_command
from continua.cli.train import Train
from continua.core.batch import Batch
from continua.core.checks import at_least
from continua.core.counts import say_count
from continua.core.errors import reject
from continua.data import Form
from continua.runs import Table
from continua.train import Learner, Plan, Preset, build_continuous, objective_of
from continua.train.counting import CountModel, Counts, Machine, count_update, example_batch, text_form

_NUMBER = 4
"""Bytes of a number."""
_MOMENTS = 2
"""Numbers that AdamW remembers of each parameter."""
_SHORT = (64, 128)
"""Tokens of the sequences on which small copies are counted, where they can be chosen."""
_LATENCY, _LAUNCH = 2e-5, 5e-6
"""Seconds that a collective takes to begin, and an operation of an accelerator: usual orders, not measured here."""


Case = tuple[Form, Preset, Batch]
"""An update that is timed: of the model of a preset, on a batch."""


class Needs(NamedTuple):
    """What an update needs on each of several devices, and all of them together."""

    parameters: float
    parameters_at_one_depth: float
    memory: dict[str, float]
    """bytes on a device, by what they hold"""
    most: int
    """sequences of the largest batch that fits, over all devices"""
    compute: float
    """seconds"""
    communication: float
    """seconds"""
    sent: float
    """bytes that a device sends"""
    checkpoint: float
    """bytes on disk"""


@final
@dataclasses.dataclass(frozen=True)
class Forecast:
    """Predict what a training needs: memory, time, communication, largest batch.

    CONFIG is a file of options as `continua train --config` takes it. Small copies of its model are counted, tensor by
    tensor, and scaled up by polynomials in the sizes (docs/runs.md, "Planning"). How fast a device is is measured here
    on a few models, unless --flops says so. Nothing is trained, and nothing is written.
    """

    settings: File
    """a TOML file of options of `continua train`"""
    devices: int = 1
    """devices that each batch is split over"""
    memory: Amount = 80 * 2.0**30
    """bytes of each, such as 80GiB"""
    flops: SomeAmount = None
    """floating-point operations per second that each reaches, such as 200T (default: measured on this machine)"""
    bandwidth: SomeAmount = None
    """bytes of its memory that each reads and writes per second, such as 2TB (beside --flops)"""
    link: Amount = 25e9
    """bytes per second between devices"""
    vocabulary: Count = None
    """plan for a text with a vocabulary of so many entries, instead of the data of the task (with --context-length)"""
    context_length: Count = None
    """tokens of a sequence of that text"""
    check: Flag = False
    """also count and time the updates of one device here, and compare"""
    json: Flag = False
    """print one JSON object instead of a table"""

    def execute(self, console: Console) -> int:
        at_least(1, devices=self.devices)
        if (self.vocabulary is None) != (self.context_length is None):
            cure = "Pass both --vocabulary and --context-length, or neither."
            reject("--vocabulary", self.vocabulary, "a text has a vocabulary and a length", cure)
        if self.flops is None and self.bandwidth is not None:
            reject("--bandwidth", self.bandwidth, "the machine is measured as a whole", "Pass --flops too.")
        asked: Train = read_command(Train, "train", ["--config", str(self.settings)])
        preset = Preset(asked.model, asked.depth, asked.costs, asked.training)
        model, form, batch, tokens = self._count(asked, preset)
        size = max(1, preset.training.batch_size // self.devices)
        here = [(form, preset, batch(form, size, tokens))] if self.check else []
        if self.flops is None:
            machine, seconds = measure_machine(here)
        else:
            machine, seconds = Machine(self.flops, self.bandwidth or 2e12, _LAUNCH), []
        sharded = asked.run.sharding == "fsdp2"
        needs = self._needs(model, preset, machine, tokens, sharded)
        found: dict[str, Any] = {"needs": needs._asdict(), "machine": dataclasses.asdict(machine)}
        for case in here:
            foreseen = model.at(preset.model.width, tokens, size)
            counted = count_update(*case, OPTIMISERS[preset.training.optimizer])
            check = {"parameters": (foreseen.parameters, counted.parameters), "bytes": (foreseen.peak, counted.peak)}
            found["check"] = check | ({"seconds": (machine.seconds(foreseen), *seconds)} if seconds else {})
        if self.json:
            print(json.dumps(found))
        else:
            console.print(show_table(self._table(needs, preset)))
            for line in _lines(found):
                console.print(line, highlight=False)
        return 0

    def _count(self, asked: Train, preset: Preset) -> tuple[CountModel, Form, Callable[[Form, int, int], Batch], int]:
        """The counts of the configuration, the form of its data, how a batch is made, and the tokens of a sequence."""
        build = OPTIMISERS[asked.training.optimizer]
        if self.vocabulary is not None and self.context_length is not None:
            vocabulary, form = self.vocabulary, text_form(self.vocabulary, self.context_length)
            model = CountModel(lambda n: text_form(vocabulary, n), preset, example_batch, _SHORT, build)
            return model, form, example_batch, self.context_length
        task = task_of(asked.task, asked.data)
        tokens = task.training_batch(1, 0, 0).inputs[0].shape[1]

        def batch(form: Form, size: int, n: int) -> Batch:
            return task.training_batch(size, 0, 0)

        return CountModel(lambda n: task.form, preset, batch, (tokens,), build), task.form, batch, tokens

    def _needs(self, model: CountModel, preset: Preset, machine: Machine, tokens: int, sharded: bool) -> Needs:
        devices, own = self.devices, preset.training.batch_size / self.devices
        fixed, slope = model.split(preset.model.width, tokens)
        parts = devices if sharded else 1  # what does not hang on the batch is split where parameters are
        held = _NUMBER * fixed.parameters / parts
        gathered = 1.5 * _NUMBER * fixed.weights if sharded and devices > 1 else 0.0
        stepping = held + fixed.step / parts  # the optimiser's step, in which nothing else is held but gradients
        passing = fixed.peak / parts + own * slope.peak
        memory = {"parameters": held, "optimiser": _MOMENTS * held, "parameters at one depth, gathered": gathered,
                  "gradients and activations": max(stepping, passing)}  # fmt: skip
        room = self.memory - (1 + _MOMENTS) * held - gathered - fixed.peak / parts
        most = max(0, int(room / slope.peak)) * devices if stepping < self.memory - (1 + _MOMENTS) * held else 0
        counts = Counts(*(p / parts + own * s for p, s in zip(fixed, slope, strict=True)))
        moved = (devices - 1) / devices * _NUMBER
        passes = (
            2 if preset.depth.gradient == "direct" else 1.5
        )  # per evaluation: gathered, and scattered on the way back
        sent = moved * (passes * fixed.evaluations * fixed.weights if sharded else 2 * fixed.parameters)
        calls = passes * fixed.evaluations * 12 if sharded else 10
        waiting = 0.0 if devices == 1 else sent / self.link + calls * _LATENCY
        checkpoint = (1 + _MOMENTS) * _NUMBER * fixed.parameters
        return Needs(fixed.parameters, fixed.weights, memory, most, machine.seconds(counts), waiting, sent, checkpoint)

    def _table(self, needs: Needs, preset: Preset) -> Table:
        total = sum(needs.memory.values())
        seconds = needs.compute + needs.communication
        rows = [
            ("parameters", f"{needs.parameters:.4g}"),
            ("parameters at one depth", f"{needs.parameters_at_one_depth:.4g}"),
            *((f"memory of a device: {name}", _bytes(size)) for name, size in needs.memory.items() if size),
            ("memory of a device", f"{_bytes(total)} of {_bytes(self.memory)}"),
            ("largest batch that fits", f"{say_count(needs.most, 'sequence')}, asked for {preset.training.batch_size}"),
            ("an update, computing", f"{needs.compute:.3g} s"),
            ("an update, communicating", f"{needs.communication:.3g} s, {_bytes(needs.sent)} sent by each device"),
            (say_count(preset.training.updates, "update"), f"{seconds * preset.training.updates / 3600:.3g} h"),
            ("a checkpoint on disk", _bytes(needs.checkpoint)),
        ]
        return Table(
            title=f"plan for {say_count(self.devices, 'device')}", columns=("what", "how much"), rows=tuple(rows)
        )


def _lines(found: dict[str, Any]) -> list[str]:
    machine = found["machine"]
    speeds = f"{machine['flops']:.3g} flops and {_bytes(machine['bandwidth'])} per second"
    lines = [f"each device: {speeds}, {machine['overhead']:.2g} s per operation"]
    for name, (foreseen, counted) in found.get("check", {}).items():
        lines.append(f"check of {name}: predicted {foreseen:.4g}, found {counted:.4g}, {foreseen / counted - 1:+.1%}")
    return lines


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024.0 or unit == "TiB":
            break
        size /= 1024.0
    return f"{size:.3g} {unit}"


def time_updates(cases: Sequence[Case], rounds: int = 10) -> list[float]:
    """Processor seconds of an update of each: the least over rounds in which each has its turn.

    On a busy machine the clock on the wall tells of others; caches that others fill add to processor time too, never
    take from it, and not to all cases alike where one is timed after the other.
    """
    learners = []
    for form, preset, _ in cases:
        model = build_continuous(form, preset)
        build = OPTIMISERS[preset.training.optimizer]
        learners.append(Learner("timed", model, objective_of(form, model, preset), build(model, preset)))
    taken: list[list[float]] = [[] for _ in cases]
    for number in range(rounds + 1):
        for place in range(len(cases))[:: 1 if number % 2 else -1]:  # none always follows the same one
            batch, start = cases[place][2], time.process_time()
            learners[place].update(batch, number, Plan(100, len(batch.inputs[0])))
            taken[place].append(time.process_time() - start)
    return [min(each[1:]) for each in taken]  # the first warms up


CALIBRATION: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"width": 16, "hidden": 32, "axis_nodes": 4, "depth_steps": 2}, 16, 2),
    ({"width": 32, "hidden": 64, "axis_nodes": 4, "depth_steps": 4, "gradient": "checkpointed"}, 32, 4),
    ({"width": 64, "hidden": 256, "axis_nodes": 1, "head_modes": 0, "depth_steps": 2}, 64, 8),
    ({"width": 96, "hidden": 192, "axis_nodes": 6, "depth_steps": 3}, 64, 16),
    ({"width": 128, "hidden": 512, "axis_nodes": 8, "depth_steps": 2}, 48, 4),
    (
        {"width": 64, "hidden": 64, "axis_nodes": 4, "depth_steps": 8, "stepper": "rk4", "gradient": "checkpointed"},
        32,
        8,
    ),
    ({"width": 16, "hidden": 32, "axis_nodes": 2, "depth_steps": 4}, 192, 8),
    ({"width": 256, "hidden": 1024, "axis_nodes": 1, "head_modes": 0, "depth_steps": 1}, 64, 8),
    ({"width": 128, "hidden": 512, "axis_nodes": 1, "head_modes": 0, "depth_steps": 2}, 96, 8),
    ({"width": 192, "hidden": 768, "axis_nodes": 1, "head_modes": 0, "depth_steps": 2}, 64, 4),
    # narrow, with many short sequences: in the others bytes go with flops or scores, and their price would be lost
    ({"width": 32, "hidden": 64, "axis_nodes": 4, "depth_steps": 3}, 32, 48),
)
"""Options, tokens and batches of the models on which a machine is measured."""


def measure_machine(beside: Sequence[Case] = ()) -> tuple[Machine, list[float]]:
    """How fast this machine is, from updates of a few small models; and the seconds of others, timed among them."""
    cases: list[Case] = []
    for options, tokens, size in CALIBRATION:
        form = text_form(64, tokens)
        cases.append((form, Preset().replace(**options), example_batch(form, size, tokens)))
    counts, seconds = [count_update(*case, OPTIMISERS["adamw"]) for case in cases], time_updates([*cases, *beside])
    return Machine.fit(counts, seconds[: len(cases)]), seconds[len(cases) :]
