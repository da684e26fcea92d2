"""The ways of `cheat-sheet`: what each tip and each whole sheet changes of our default, and one training of a way."""

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import torch

from continua.cli.options import OPTIMISERS
from continua.data import AbstractTask, Form, Mnist1d, Split
from continua.lab.sweep import AbstractCell, Row
from continua.optim import CosineDecay, Recipe, Schedule, Shampoo, by_seconds
from continua.solve import Checkpointed
from continua.train import (
    Learner,
    Plan,
    Preset,
    TrainingGrids,
    build_baseline,
    build_continuous,
    count_parameters,
    objective_of,
    update_memory,
)

LAYERS = "layers"
DEFAULT = "our default"
MEMORY = "checkpoints of 0.1"
"""The tip that changes no number of a training, and is meant for memory."""
SECONDS = "schedule in seconds"
TIPS: Mapping[str, Mapping[str, Any]] = {
    "RK45 at 1e-4": {"rtol": 1e-4, "jitter": 0.0, "refined": 0.0},
    "Jacobian penalty": {"jacobian_cost": 1e-3},
    "head nodes with entropy": {"head_nodes": 6, "head_modes": 3, "head_negentropy_cost": 1e-2},
    "unitary FFT kernels": {"axis_kernel": "unitary", "optimizer": "recipe"},
    MEMORY: {"gradient": "checkpointed"},
    "Shampoo for kernels": {"optimizer": "shampoo"},
    "K-FAC for kernels": {"optimizer": "kfac"},
    "hypernetwork": {"field": "hypernetwork"},
    SECONDS: {},
}
"""What each tip changes of our default."""


class WholeSheet(NamedTuple):
    """All tips but some, each of which has its reason, and what is chosen in their place."""

    left_out: Mapping[str, str]
    instead: Mapping[str, Any]


SHEETS: Mapping[str, WholeSheet] = {
    # frames of unitary kernels stay with RiemannianAdam, Shampoo has the coefficients that turn them along depth
    "the whole sheet, Shampoo": WholeSheet(
        {
            "K-FAC for kernels": "the sheet asks for Shampoo or K-FAC, and Shampoo has the kernels",
            "hypernetwork": "refused with unitary kernels: what a network makes has no orthonormal columns",
        },
        {},
    ),
    # the network by AdamW, and by Shampoo the spectral kernels theta_0 that it adds to
    "the whole sheet, hypernetwork": WholeSheet(
        {
            "unitary FFT kernels": "refused with a hypernetwork, whose FFT kernels are free here",
            "K-FAC for kernels": "refused for kernels by FFT; Shampoo has those that the network adds to",
        },
        {"axis_kernel": "fft"},
    ),
    # kernels in cosine modes, of which K-FAC has a factor for each mode of depth
    "the whole sheet, K-FAC": WholeSheet(
        {
            "unitary FFT kernels": "refused: K-FAC reads linear maps, and serves no multipliers of an FFT",
            MEMORY: "refused: K-FAC reads the graph of a solve, and checkpoints keep none",
            "Shampoo for kernels": "the sheet asks for Shampoo or K-FAC, and K-FAC has the kernels",
            "hypernetwork": "kernels would be made by the network, which is AdamW's, and K-FAC would have few",
        },
        {},
    ),
}
"""The sheet as a whole, three times, since no network can follow all of it; every tip is in one of them."""
_KERNELS_ADDED_TO = "flow.*.base.inner_[qkvow]*"
"""The names of theta_0 where theta(z) = theta_0 + G(z), without biases and masses of heads."""
_TIMED = 3
"""Updates, spread over the training, by whose time a schedule in seconds is laid out."""


def tips_of(way: str) -> tuple[str, ...]:
    """The tips that a way follows."""
    if way in SHEETS:
        return tuple(tip for tip in TIPS if tip not in SHEETS[way].left_out)
    return (way,) if way in TIPS else ()


@final
class TrainingClock:
    """Seconds of the processor, as of a machine with nobody else on it, but for those in which it is stopped."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self._now, self._stopped = now, 0.0

    def read(self) -> float:
        """The seconds of training so far."""
        return self._now() - self._stopped

    @contextlib.contextmanager
    def stop(self) -> Iterator[None]:
        """While something else is done, such as measuring memory."""
        began = self._now()
        yield
        self._stopped += self._now() - began


@final
class TrainedWay(AbstractCell):
    """Trains one way on MNIST-1D with one seed: loss, evaluations, time and memory of an update along training."""

    way: str
    seed: int
    updates: int
    width: int
    batch_size: int
    signals: int
    moments: int
    """How often memory is measured, spread evenly from the first update to the last: that of a forward and backward
    pass, as `continua train` does, without what K-FAC holds while it observes."""
    depth: float

    def measure(self) -> Row:
        task, clock = Mnist1d(), TrainingClock()
        learner = self._prepare(task, clock)
        course = self._train(learner, task, clock)
        batch = task.batch(Split.TEST, torch.arange(self.signals))
        with torch.no_grad():
            terms = objective_of(task.form)(learner.model.in_eval_mode(), batch)
        accuracy = float((terms.output.argmax(-1) == batch.targets).double().mean())
        return {"way": self.way, "seed": self.seed, "test": float(terms.terminal), "accuracy": accuracy,
                "parameters": count_parameters(learner.model), "memory": max(course["memories"]),
                "milliseconds": statistics.median(course["times"]), **course}  # fmt: skip

    def _train(self, learner: Learner, task: AbstractTask, clock: TrainingClock) -> dict[str, Any]:
        """All updates; memory is measured before some of them, while the clock is stopped."""
        moments = spread(self.updates, self.moments)
        course: dict[str, Any] = {"losses": [], "evaluations": [], "times": [], "rates": []}
        memories = []
        for number in range(self.updates):
            batch = task.training_batch(self.batch_size, number, self.seed)
            if number in moments:
                with clock.stop():
                    memories.append(update_memory(learner.model, learner.objective, batch))
            began = clock.read()
            row = learner.update(batch, number, self._plan)
            found = (row.loss, row.evaluations, 1000.0 * (clock.read() - began), row.lr)
            for values, value in zip(course.values(), found, strict=True):
                values.append(value)
        return {**course, "moments": moments, "memories": memories}

    def _prepare(self, task: AbstractTask, clock: TrainingClock) -> Learner:
        preset = self._match_size(task.form)
        learner = self._build(task.form, preset)
        if SECONDS not in tips_of(self.way):
            return learner
        total = self._foresee(learner, task, clock)
        curve = CosineDecay(self._plan.warmup_ratio * total, total, 0.0)
        optimiser = build_optimiser(learner.model, preset)
        schedule = Schedule(optimiser, curve, by_seconds, now=clock.read)
        return dataclasses.replace(learner, optimiser=optimiser, schedule=schedule)

    def _build(self, form: Form, preset: Preset) -> Learner:
        torch.manual_seed(self.seed)
        model = build_continuous(form, preset)
        if self.way == LAYERS:
            torch.manual_seed(self.seed)
            model = build_baseline(form, preset, count_parameters(model))
            return Learner(self.way, model, objective_of(form), build_optimiser(model, preset))
        if MEMORY in tips_of(self.way):
            model = model.at(gradient=Checkpointed(segment=0.1))
        objective, grids = objective_of(form, model, preset), TrainingGrids.of(preset.depth)
        return Learner(self.way, model, objective, build_optimiser(model, preset), grids=grids)

    def _foresee(self, learner: Learner, task: AbstractTask, clock: TrainingClock) -> float:
        """The seconds of all updates, by a few of the whole training, which are undone."""
        kept = {name: value.clone() for name, value in learner.model.state_dict().items()}
        numbers, began = spread(self.updates, _TIMED), clock.read()
        for number in numbers:
            learner.update(task.training_batch(self.batch_size, number, self.seed), number, self._plan)
        learner.model.load_state_dict(kept)
        return (clock.read() - began) / len(numbers) * self.updates

    @property
    def _plan(self) -> Plan:
        return Plan(self.updates, self.batch_size, self.seed, self._preset(self.width).training.warmup_ratio)

    def _match_size(self, form: Form) -> Preset:
        """The way in the width in which it has about as many parameters as our default."""

        def size(width: int, way: str = self.way) -> int:
            return count_parameters(build_continuous(form, self._preset(width, way)))

        aim = size(self.width, DEFAULT)
        if abs(size(self.width) / aim - 1.0) < 0.05:
            return self._preset(self.width)
        return self._preset(min(range(8, 81, 8), key=lambda width: abs(math.log(size(width) / aim))))

    def _preset(self, width: int, way: str | None = None) -> Preset:
        way = way or self.way
        ours = Preset().replace(
            width=width, hidden=2 * width, axis_nodes=4, head_nodes=4, head_modes=3, stem_radius=5.5, stem_modes=11,
            head_negentropy_cost=0.0, updates=self.updates, batch_size=self.batch_size, learning_rate=5e-3,
            depth_length=self.depth,
        )  # fmt: skip
        changed = dict(SHEETS[way].instead) if way in SHEETS else {}
        for tip in tips_of(way):  # of two optimisers the later: Shampoo moves unitary kernels along depth too
            changed |= TIPS[tip]
        return ours.replace(**changed)


def build_optimiser(model: torch.nn.Module, preset: Preset) -> torch.optim.Optimizer:
    """As the command line builds it; with a hypernetwork Shampoo has what the command line leaves to AdamW, theta_0."""
    how = preset.training
    if (preset.depth.field, how.optimizer) != ("hypernetwork", "shampoo"):
        return OPTIMISERS[how.optimizer](model, preset)
    recipe = Recipe.with_lr(how.learning_rate, how.weight_decay, (0.9, how.beta2), Shampoo, 3e-3)
    return dataclasses.replace(recipe, named=((_KERNELS_ADDED_TO, recipe.spectral),)).build(model)


def spread(updates: int, moments: int) -> list[int]:
    """So many numbers of updates, or all of them, evenly from the first to the last."""
    count = min(updates, moments)
    return [round(place * (updates - 1) / max(1, count - 1)) for place in range(count)]
