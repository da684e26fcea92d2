"""`trained-networks`: what training makes of layers - smooth in depth or not, and what a price of motion gains."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.intervals import Interval, bootstrap_slopes, mean_interval
from continua.lab.stacks.cells import DEPTH, WAYS, TrainedStack
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import Judgement, all_of, equals, stays_below
from continua.runs import AbstractFigure, Curve, Table

_INDEPENDENT = ("layers", "regularised", "scaled", "scaled, regularised")
_EQUAL = "scaled, equal start"
_BASELINES = tuple(name for name in WAYS if name not in (*_INDEPENDENT, _EQUAL))
_PAIRS = {"layers": "regularised", "scaled": "scaled, regularised"}


@final
class TrainedNetworks(AbstractExperiment):
    """The same task at several depths, with and without 1/L scaling and a price of kinetic energy, and fair baselines.

    `few` are the depths at which the price is compared with baselines: outputs that begin small, more weight decay,
    half and twice the rate. Seeds are paired: every way has the same draws and the same batches.
    """

    name = "trained-networks"
    claim = (
        "training leaves layers as smooth in depth as they began: independent ones stay as rough as permuted ones, "
        "with 1/L scaling, a running cost on kinetic energy or both, while scaled ones that begin equal stay a smooth "
        "field; the cost makes paths shorter and lowers the loss"
    )
    formula = 'frac{"mean"_l |W_{l+1} - W_l|^2}{"mean"_{k,l} |W_k - W_l|^2} = 1 " (independent), " ≤ C / L " (equal)"'
    source = (
        "arXiv 2605.11059, section 3.2 (independent layers have no continuous limit, their law has one); P. Marion et "
        "al., ICLR 2024 (layers that begin smooth stay so); docs/mathematics.md, section 4 (the price)"
    )

    layers: tuple[int, ...] = (4, 16, 64)
    few: tuple[int, ...] = (4, 16)
    seeds: int = 3
    updates: int = 120
    width: int = 32
    context_length: int = 32
    batch_size: int = 8
    windows: int = 256
    text: str = ""

    def quick(self) -> "TrainedNetworks":
        return dataclasses.replace(self, layers=(4, 16), few=(4,), updates=50, windows=64)

    def cells(self) -> Sequence[AbstractCell]:
        sizes = (self.updates, self.width, self.context_length, self.batch_size, self.windows, self.text)
        return [TrainedStack(way, L, seed, *sizes) for way, L in self._grid() for seed in range(self.seeds)]

    def _grid(self) -> list[tuple[str, int]]:
        """Ways and depths; four layers are the same network with and without scaling."""
        depths = dict.fromkeys((*_INDEPENDENT, _EQUAL), self.layers) | dict.fromkeys(_BASELINES, self.few)
        same = {("scaled", int(DEPTH)), ("scaled, regularised", int(DEPTH))}
        return [(way, L) for way, own in depths.items() for L in own if (way, L) not in same]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        by = {pair: [row for row in rows if (row["way"], row["layers"]) == pair] for pair in self._grid()}
        by |= {("scaled", int(DEPTH)): by.get(("layers", int(DEPTH)), [])}
        by |= {("scaled, regularised", int(DEPTH)): by.get(("regularised", int(DEPTH)), [])}
        by = {pair: own for pair, own in by.items() if own}
        rough, judged = self._smoothness(by)
        price, more = self._price(by)
        measured = {**rough, **price, **self._baselines(by), **self._paths(by)}
        bound = {name: 1.0 for name in rough if name.startswith("roughness")}
        bound |= {name: AtMost(0.0) for name in price} | {_SLOPE: AtMost(-1.0)}
        return Findings(self._figures(by), measured, bound, all_of(*judged, *more))

    def _smoothness(self, by: "_Table") -> tuple[dict[str, Interval], list[Judgement]]:
        """Independent layers against permuted ones at the deepest, and layers that begin equal over depth."""
        found: dict[str, Interval] = {}
        for way in _INDEPENDENT:
            for what, word in (("weights", "weights"), ("changes", "their change in training"), ("fields", "velocity")):
                own = [row[what] for row in by[way, self.layers[-1]]]
                found[f"roughness of {word}, {way}, {self.layers[-1]} layers"] = mean_interval(own)
        judged = [equals(name, value, 1.0, 0.2 if "velocity" in name else 0.1) for name, value in found.items()]
        squares = np.array([[row["weights"] ** 2 for row in by[_EQUAL, L]] for L in self.layers])
        (slope,) = bootstrap_slopes(np.array(self.layers, float)[:, None], squares, paired=True)
        return {**found, _SLOPE: slope}, [*judged, stays_below(_SLOPE, slope, -1.0)]

    def _price(self, by: "_Table") -> tuple[dict[str, Interval], list[Judgement]]:
        """What the price does to energy and loss, each depth by itself and, for the loss, all of them together."""
        found: dict[str, Interval] = {}
        judged: list[Judgement] = []
        for plain, regularised in _PAIRS.items():
            for L in self.layers:
                name = f"log energy, {regularised} over {plain}, {L} layers"
                found[name] = _difference(by[regularised, L], by[plain, L], lambda row: math.log(row["energy"]))
                judged.append(stays_below(name, found[name], 0.0))
                found[f"loss, {regularised} minus {plain}, {L} layers"] = _difference(
                    by[regularised, L], by[plain, L], _loss
                )
            own = [L for L in self.layers if plain == "layers" or L != DEPTH]
            pair = [[row for L in own for row in by[way, L]] for way in (regularised, plain)]
            name = f"loss, {regularised} minus {plain}, all depths"
            found[name] = _difference(pair[0], pair[1], _loss)
            # the claim is about layers as they are; scaled ones move little anyway, and must not be worse for it
            judged.append(stays_below(name, found[name], 0.0, 0.0 if plain == "layers" else 0.02))
        return found, judged

    def _baselines(self, by: "_Table") -> dict[str, Interval]:
        """Losses of baselines minus those of plain layers, and what the price gains where outputs begin small."""
        found = {
            f"loss, {way} minus layers, {L} layers": _difference(by[way, L], by["layers", L], _loss)
            for L in self.few
            for way in _BASELINES
        }
        for way in ("small outputs", "twice the rate"):
            for L in self.few:
                own = _difference(by[f"{way}, regularised", L], by[way, L], _loss)
                found[f"loss, {way}, regularised minus without, {L} layers"] = own
        return found

    def _paths(self, by: "_Table") -> dict[str, list[float]]:
        """Means over seeds at the deepest: loss, energy, turning, Euler-Lagrange residual, distances, clusters."""
        words = {"loss": "loss", "energy": "energy", "turning": "turning of paths from layer to layer",
                 "extremality": "Euler-Lagrange residual of the kinetic one", "distance": "distance to a smooth field",
                 "permuted": "the same, layers permuted", "gains": "gains of norms, distance from 1"}  # fmt: skip
        ways = (*_INDEPENDENT, _EQUAL)
        found = {
            f"{word}, {way}, over depths": [_mean(by[way, L], what) for L in self.layers]
            for what, word in words.items()
            for way in ways
        }
        ends = {way: np.mean([row["clusters"] for row in by[way, self.layers[-1]]], 0) for way in ways}
        places = np.linspace(0, self.layers[-1], 5).astype(int)
        return found | {f"clusters along depth, {way}": own[places].tolist() for way, own in ends.items()}

    def _figures(self, by: "_Table") -> tuple[AbstractFigure, ...]:
        ways, deepest = (*_INDEPENDENT, _EQUAL), self.layers[-1]

        def over(what: str) -> list[Curve]:
            return [Curve.of(way, self.layers, [_mean(by[way, L], what) for L in self.layers], mark="both")
                    for way in ways]  # fmt: skip

        def along(what: str) -> list[Curve]:
            means = {way: np.mean([row[what] for row in by[way, deepest]], 0) for way in ways}
            return [Curve.of(way, np.linspace(0, 1, len(own)), own) for way, own in means.items()]

        names = ("way", "layers", "loss", "energy", "roughness", "turning")
        cells = tuple(
            (way, str(L), str(mean_interval([row["loss"] for row in own])), f"{_mean(own, 'energy'):.3g}",
             f"{_mean(own, 'weights'):.3f}", f"{_mean(own, 'turning'):.3f}")
            for (way, L), own in by.items()
        )  # fmt: skip
        return (
            curves("roughness of weights in depth", "layers L", "neighbours over all pairs", over("weights"), "xy"),
            curves("validation loss", "layers L", "nats per character", over("loss"), "x"),
            curves("kinetic energy", "layers L", "int |f|^2 over depth 4", over("energy"), "xy"),
            curves(f"squared speed along depth, {deepest} layers", "depth", "|dx/dz|^2", along("speed"), "y"),
            curves(f"clusters along depth, {deepest} layers", "depth", "groups of tokens", along("clusters")),
            Table(title="every way, means over seeds", columns=names, rows=cells),
        )


_SLOPE = f"slope in L: roughness, {_EQUAL}"
_Table = dict[tuple[str, int], list[Row]]


def _difference(these: Sequence[Row], those: Sequence[Row], read: Callable[[Row], float]) -> Interval:
    """The mean difference of the same seeds."""
    return mean_interval([read(a) - read(b) for a, b in zip(these, those, strict=True)])


def _loss(row: Row) -> float:
    return row["loss"]


def _mean(rows: Sequence[Row], what: str) -> float:
    return float(np.mean([row[what] for row in rows]))
