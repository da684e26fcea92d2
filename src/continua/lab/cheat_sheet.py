"""`cheat-sheet`: seven tips for training a continuous Transformer, each switched on by itself, and all of them."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from continua.cli.options import OPTIMISERS
from continua.data import Form, Mnist1d, Split
from continua.lab.experiment import AbstractExperiment, Findings, curves
from continua.lab.intervals import mean_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most, stays_below
from continua.optim import CosineDecay, Schedule, by_seconds
from continua.runs import Curve, Table
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

_MEMORY = "checkpoints of 0.1"
"""The tip that changes no number of a training, and is meant for memory."""
TIPS: Mapping[str, Mapping[str, Any]] = {
    "RK45 at 1e-4": {"rtol": 1e-4, "jitter": 0.0, "refined": 0.0},
    "Jacobian penalty": {"jacobian_cost": 1e-3},
    "head nodes with entropy": {"head_nodes": 6, "head_modes": 3, "head_negentropy_cost": 1e-2},
    "unitary FFT kernels": {"axis_kernel": "unitary", "optimizer": "recipe"},
    _MEMORY: {"gradient": "checkpointed"},
    "Shampoo for kernels": {"optimizer": "shampoo"},
    "K-FAC for kernels": {"optimizer": "kfac"},
    "hypernetwork": {"field": "hypernetwork"},
    "schedule in seconds": {},
}
"""What each tip changes of our default."""
_ALONE = ("K-FAC for kernels", "hypernetwork")
"""Not in the whole sheet: one optimiser serves spectral kernels, and what a network makes has no unitary kernels."""
_SHEET = "the whole sheet"
_LAYERS = "layers"
_DEFAULT = "our default"
_TIMED = 3
"""Updates by whose time a schedule in seconds is laid out."""


@final
class TrainedWay(AbstractCell):
    """Trains one way on MNIST-1D with one seed: losses along training, and what an update costs."""

    way: str
    seed: int
    updates: int
    width: int
    batch_size: int
    signals: int
    tips: tuple[str, ...]
    """Those of the whole sheet."""

    def measure(self) -> Row:
        task = Mnist1d()
        preset = self._match_size(task.form)
        torch.manual_seed(self.seed)
        model = build_continuous(task.form, preset)
        if self.way == _LAYERS:
            torch.manual_seed(self.seed)
            model = build_baseline(task.form, preset, count_parameters(model))
        if self.way in (_MEMORY, _SHEET):
            model = model.at(gradient=Checkpointed(segment=0.1))
        objective = objective_of(task.form) if self.way == _LAYERS else objective_of(task.form, model, preset)
        grids = TrainingGrids() if self.way == _LAYERS else TrainingGrids.of(preset.depth)
        learner = Learner(self.way, model, objective, OPTIMISERS[preset.training.optimizer](model, preset), grids=grids)
        plan = Plan(self.updates, self.batch_size, self.seed, preset.training.warmup_ratio)
        memory = update_memory(model, objective, task.training_batch(self.batch_size, 0, self.seed))
        spent, evaluations, losses = list[float](), list[int](), list[float]()
        if self.way in ("schedule in seconds", _SHEET):  # laid out by the time of a few updates, which are undone
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            began = time.perf_counter()
            for number in range(_TIMED):
                learner.update(task.training_batch(self.batch_size, number, self.seed), number, plan)
            total = (time.perf_counter() - began) / _TIMED * self.updates
            model.load_state_dict(kept)
            optimiser = OPTIMISERS[preset.training.optimizer](model, preset)
            schedule = Schedule(optimiser, CosineDecay(plan.warmup_ratio * total, total, 0.0), by_seconds)
            learner = Learner(self.way, model, objective, optimiser, schedule, grids)
        for number in range(self.updates):
            batch, began = task.training_batch(self.batch_size, number, self.seed), time.process_time()
            row = learner.update(batch, number, plan)
            spent.append(time.process_time() - began)
            evaluations.append(row.evaluations)
            losses.append(row.loss)
        batch = task.batch(Split.TEST, torch.arange(self.signals))
        with torch.no_grad():
            terms = objective_of(task.form)(model.in_eval_mode(), batch)
        accuracy = float((terms.output.argmax(-1) == batch.targets).double().mean())
        return {"way": self.way, "seed": self.seed, "test": float(terms.terminal), "accuracy": accuracy,
                "memory": memory, "milliseconds": 1000.0 * statistics.median(spent), "evaluations": evaluations,
                "losses": losses, "parameters": count_parameters(model)}  # fmt: skip

    def _match_size(self, form: Form) -> Preset:
        """The way in the width in which it has about as many parameters as our default."""

        def size(width: int, way: str = self.way) -> int:
            return count_parameters(build_continuous(form, self._preset(width, way)))

        aim = size(self.width, _DEFAULT)
        if abs(size(self.width) / aim - 1.0) < 0.05:
            return self._preset(self.width)
        return self._preset(min(range(8, 81, 8), key=lambda width: abs(math.log(size(width) / aim))))

    def _preset(self, width: int, way: str | None = None) -> Preset:
        way = way or self.way
        ours = Preset().replace(
            width=width, hidden=2 * width, axis_nodes=4, head_nodes=4, head_modes=3, stem_radius=5.5, stem_modes=11,
            head_negentropy_cost=0.0, updates=self.updates, batch_size=self.batch_size, learning_rate=5e-3,
        )  # fmt: skip
        if way == _SHEET:
            sheet: dict[str, Any] = {}
            for tip in self.tips:
                sheet |= {} if tip in _ALONE else TIPS[tip]
            return ours.replace(**sheet | {"optimizer": "shampoo"})
        return ours.replace(**TIPS.get(way, {}))


@final
class CheatSheet(AbstractExperiment):
    """Every tip by itself on top of our default, all of them together, and a network of layers of the same size."""

    name = "cheat-sheet"
    claim = (
        "a continuous Transformer that follows the cheat-sheet (RK45 at 1e-4 with a Jacobian penalty, 4 to 8 head "
        "nodes with entropy, unitary FFT kernels, checkpoints of 0.1, AdamW for a hypernetwork and Shampoo or K-FAC "
        "for spectral weights, a schedule in time) trains with similar wall-time and memory to a deep discretised "
        "model, and each tip pays"
    )
    formula = "loss(default + tip) < loss(default) ,   cost(sheet) ≈ cost(layers)"
    source = "the cheat-sheet of the project's first design; similar is taken as at most 1.5 times"

    seeds: int = 3
    updates: int = 120
    width: int = 24
    batch_size: int = 16
    signals: int = 1000
    tips: tuple[str, ...] = tuple(TIPS)

    def quick(self) -> "CheatSheet":
        return CheatSheet(seeds=2, updates=12, width=16, batch_size=8, signals=100)

    def cells(self) -> Sequence[AbstractCell]:
        ways = (_DEFAULT, _LAYERS, *self.tips, _SHEET)
        sizes = (self.updates, self.width, self.batch_size, self.signals, self.tips)
        return [TrainedWay(way, seed, *sizes) for way in ways for seed in range(self.seeds)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        by = {way: [row for row in rows if row["way"] == way] for way in dict.fromkeys(row["way"] for row in rows)}

        def mean(way: str, what: str) -> float:
            return float(np.mean([row[what] for row in by[way]]))

        gains = {
            tip: mean_interval([a["test"] - b["test"] for a, b in zip(by[tip], by[_DEFAULT], strict=True)])
            for tip in (*self.tips, _SHEET)
            if tip != _MEMORY
        }
        cost = {what: {way: mean(way, what) / mean(_LAYERS, what) for way in by} for what in ("milliseconds", "memory")}
        judgement = all_of(
            at_most("time of an update, the whole sheet over layers", cost["milliseconds"][_SHEET], 1.5),
            at_most("memory of an update, the whole sheet over layers", cost["memory"][_SHEET], 1.5),
            at_most(f"{_MEMORY}: memory with it over without", mean(_MEMORY, "memory") / mean(_DEFAULT, "memory"), 1.0),
            *(stays_below(f"{tip}: test loss with it minus without", gain, 0.0) for tip, gain in gains.items()),
        )
        table = Table(
            title="each way, means over seeds; time and memory of an update over those of layers",
            columns=("way", "parameters", "test loss", "accuracy", "time", "memory", "evaluations per solve"),
            rows=tuple(
                (way, f"{mean(way, 'parameters'):,.0f}", f"{mean(way, 'test'):.4f}", f"{mean(way, 'accuracy'):.1%}",
                 f"{cost['milliseconds'][way]:.2f}", f"{cost['memory'][way]:.2f}", f"{mean(way, 'evaluations'):.1f}")
                for way in by
            ),
        )  # fmt: skip
        at = np.arange(1, len(rows[0]["losses"]) + 1)
        smooth = max(1, len(at) // 30)
        drawn = {way: np.mean([row["losses"] for row in by[way]], 0) for way in by}
        steps = {way: np.mean([row["evaluations"] for row in by[way]], 0) for way in by}
        figures = (
            curves("loss along training", "updates", "training loss", _lines(at, drawn, smooth), "y"),
            curves("evaluations along training", "updates", "evaluations of a solve", _lines(at, steps, smooth), "y"),
            table,
        )
        measured = {f"{tip}, gain": gain for tip, gain in gains.items()}
        measured |= {f"{way}, time": ratio for way, ratio in cost["milliseconds"].items()}
        measured |= {f"{way}, memory": ratio for way, ratio in cost["memory"].items()}
        return Findings(figures, measured, {f"{tip}, gain": 0.0 for tip in gains}, judgement)


def _lines(at: np.ndarray, values: Mapping[str, np.ndarray], smooth: int) -> list[Curve]:
    """Means of `smooth` updates each."""

    def means(numbers: np.ndarray) -> np.ndarray:
        return numbers[: len(numbers) // smooth * smooth].reshape(-1, smooth).mean(1)

    return [
        Curve.of(way, means(at), means(found), mark="line" if place < 8 else "dashed")  # there are eight colours
        for place, (way, found) in enumerate(values.items())
    ]
