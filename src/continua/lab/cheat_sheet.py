"""`cheat-sheet`: tips for training a continuous Transformer, each by itself, and the whole sheet."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from continua.lab.experiment import AbstractExperiment, Findings, curves
from continua.lab.intervals import Interval, mean_interval
from continua.lab.sheet_ways import DEFAULT, LAYERS, MEMORY, SECONDS, SHEETS, TIPS, TrainedWay
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import Judgement, all_of, at_most, stays_below
from continua.runs import AbstractFigure, Curve, Table

_GROUPS = 30
"""Curves along training have at most about so many points, each the mean of the updates around it."""
_COLOURS = 8


@final
class CheatSheet(AbstractExperiment):
    """Every tip by itself on top of our default, the whole sheet, and a network of layers of the same size."""

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
    moments: int = 6
    depth: float = 4.0
    tips: tuple[str, ...] = tuple(TIPS)
    sheets: tuple[str, ...] = tuple(SHEETS)

    def quick(self) -> "CheatSheet":
        return CheatSheet(seeds=2, updates=4, width=8, batch_size=4, signals=100, moments=2, depth=1.0)

    def cells(self) -> Sequence[AbstractCell]:
        sizes = (self.updates, self.width, self.batch_size, self.signals, self.moments, self.depth)
        ways = (DEFAULT, LAYERS, *self.tips, *self.sheets)
        return [TrainedWay(way, seed, *sizes) for way in ways for seed in range(self.seeds)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        by = {way: [row for row in rows if row["way"] == way] for way in dict.fromkeys(row["way"] for row in rows)}
        cost = {what: {way: _mean(by, way, what) / _mean(by, LAYERS, what) for way in by}
                for what in ("milliseconds", "memory")}  # fmt: skip
        gains = {
            way: mean_interval([a["test"] - b["test"] for a, b in zip(by[way], by[DEFAULT], strict=True)])
            for way in (*self.tips, *self.sheets)
            if way != MEMORY
        }
        measured = {f"{way}, gain": gain for way, gain in gains.items()}
        measured |= {f"{way}, time": ratio for way, ratio in cost["milliseconds"].items()}
        measured |= {f"{way}, memory": ratio for way, ratio in cost["memory"].items()}
        return Findings(
            self._figures(by, cost), measured, {f"{way}, gain": 0.0 for way in gains}, self._judge(by, cost, gains)
        )

    def _judge(self, by: "_Rows", cost: "_Costs", gains: Mapping[str, Interval]) -> Judgement:
        saved = _mean(by, MEMORY, "memory") / _mean(by, DEFAULT, "memory")
        return all_of(
            *(at_most(f"time of an update, {way} over layers", cost["milliseconds"][way], 1.5) for way in self.sheets),
            *(at_most(f"memory of an update, {way} over layers", cost["memory"][way], 1.5) for way in self.sheets),
            at_most(f"{MEMORY}: memory with it over without", saved, 1.0),
            *(stays_below(f"{way}: test loss with it minus without", gain, 0.0) for way, gain in gains.items()),
        )

    def _figures(self, by: "_Rows", cost: "_Costs") -> tuple[AbstractFigure, ...]:
        """The whole sheets beside our default and layers, and each tip apart: so many curves can be told apart."""
        sheets = _courses(by, (DEFAULT, LAYERS, *self.sheets), "the whole sheet")
        tips = _courses(by, (DEFAULT, *self.tips), "each tip")
        timed = [way for way in (DEFAULT, SECONDS, *self.sheets) if way in by]
        rates = curves("learning rate along training", "updates", "learning rate", _lines(by, timed, "rates", 1.0))
        return (*sheets, *tips, rates, *_tables(by, cost, self.sheets))


_Rows = Mapping[str, Sequence[Row]]
"""The rows of each way, one per seed."""
_Costs = Mapping[str, Mapping[str, float]]
"""Time and memory of each way over those of layers."""


def _mean(by: _Rows, way: str, what: str) -> float:
    return float(np.mean([row[what] for row in by[way]]))


def _courses(by: _Rows, ways: Sequence[str], whose: str) -> tuple[AbstractFigure, ...]:
    """Loss, evaluations, time and memory along training."""
    time, memory = (_mean(by, LAYERS, what) for what in ("milliseconds", "memory"))
    return (
        curves(f"loss along training, {whose}", "updates", "training loss", _lines(by, ways, "losses", 1.0), "y"),
        curves(f"evaluations along training, {whose}", "updates", "evaluations of a solve",
               _lines(by, ways, "evaluations", 1.0), "y"),
        curves(f"time along training, {whose}", "updates", "time of an update / layers",
               _lines(by, ways, "times", time), "y"),
        curves(f"memory along training, {whose}", "updates", "memory of an update / layers",
               _marks(by, ways, memory), "y"),
    )  # fmt: skip


def _lines(by: _Rows, ways: Sequence[str], what: str, unit: float) -> list[Curve]:
    """Means over seeds and over a few updates each, in multiples of `unit`."""
    count = len(by[DEFAULT][0][what])
    smooth = max(1, count // _GROUPS)

    def means(numbers: np.ndarray) -> np.ndarray:
        return numbers[: len(numbers) // smooth * smooth].reshape(-1, smooth).mean(1)

    at = means(np.arange(1, count + 1))
    drawn = {way: means(np.mean([row[what] for row in by[way]], 0)) / unit for way in ways}
    return [
        Curve.of(way, at, found, mark="line" if place < _COLOURS else "dashed")
        for place, (way, found) in enumerate(drawn.items())
    ]


def _marks(by: _Rows, ways: Sequence[str], unit: float) -> list[Curve]:
    """Memory at the moments at which it was measured."""
    return [
        Curve.of(way, 1 + np.array(by[way][0]["moments"]), np.mean([row["memories"] for row in by[way]], 0) / unit,
                 mark="both" if place < _COLOURS else "dashed")
        for place, way in enumerate(ways)
    ]  # fmt: skip


def _tables(by: _Rows, cost: _Costs, sheets: Sequence[str]) -> tuple[Table, ...]:
    """Each way at the end, at the first and the last moments of training, and what whole sheets leave out."""
    unit = {"times": _mean(by, LAYERS, "milliseconds"), "memories": _mean(by, LAYERS, "memory"), "evaluations": 1.0}

    def ends(way: str, what: str) -> str:
        """The means of the first and the last tenth."""
        course = np.mean([row[what] for row in by[way]], 0) / unit[what]
        tenth = max(1, len(course) // 10)
        return f"{course[:tenth].mean():.2f} → {course[-tenth:].mean():.2f}"

    each = Table(
        title="each way, means over seeds; time (median) and memory (largest) of an update over those of layers",
        columns=("way", "parameters", "test loss", "accuracy", "time", "memory"),
        rows=tuple(
            (way, f"{_mean(by, way, 'parameters'):,.0f}", f"{_mean(by, way, 'test'):.4f}",
             f"{_mean(by, way, 'accuracy'):.1%}", f"{cost['milliseconds'][way]:.2f}", f"{cost['memory'][way]:.2f}")
            for way in by
        ),
    )  # fmt: skip
    along = Table(
        title="from the first tenth of the updates to the last; time and memory over those of layers",
        columns=("way", "time", "memory", "evaluations"),
        rows=tuple((way, *(ends(way, what) for what in unit)) for way in by),
    )
    left = Table(
        title="what each whole sheet leaves out",
        columns=("way", "leaves out", "because"),
        rows=tuple((way, tip, why) for way in sheets for tip, why in SHEETS[way].left_out.items()),
    )
    return each, along, left
