"""`dimension-free`: the error constant against the embedding dimension, for AdamW and Blockwise AdamW."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np

from continua.core.intervals import bootstrap_slopes
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.series import rms_series
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.problem import Problem, Training
from continua.lab.verdicts import all_of, no_slower
from continua.runs import Lines, Scale, Series


@final
@dataclasses.dataclass(frozen=True)
class DimensionFree(AbstractExperiment):
    """Errors after some updates at fixed L and H, over the width d, for two families of problems.

    `same`: one problem in four dimensions, written in the coordinates of R^d in general position. Blockwise AdamW does
    not see coordinates, so its error must not change at all; an update of AdamW moves every entry by about the rate,
    hence a matrix by the root of its size. `full`: tokens, targets and heads of fixed norms that fill R^d, where the
    problem itself changes with d.
    """

    name: ClassVar[str] = "dimension-free"
    claim: ClassVar[str] = (
        "with one second moment for each matrix (Blockwise AdamW) the error does not grow with the embedding "
        "dimension; with one for each entry (AdamW) the bound does"
    )
    formula: ClassVar[str] = (
        'E[ "sup" |x_r - x(t_r)|^2 ]^{1/2} ≤ C ( L^{-1} + L^{-1/3} H^{-1/2} ) , C " independent of " d'
    )
    source: ClassVar[str] = "arXiv 2605.11059, Lemma 6, Theorem 7 and Appendix B"

    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    layers: int = 16
    heads: int = 4
    seeds: int = 16
    updates: int = 5

    def quick(self) -> "DimensionFree":
        return DimensionFree(widths=(4, 8, 16, 32), seeds=8, updates=3)

    def cells(self) -> Sequence[AbstractCell]:
        rules = (Training(eps=0.01), Training(eps=0.01, rate=0.2, blockwise=True))
        return [
            AgainstLimit(self.layers, self.heads, self.seeds, (self.updates,), Problem(width=d, inner=inner), rule)
            for inner in (4, None)
            for rule in rules
            for d in self.widths
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        sizes = np.array([[d] for d in self.widths], dtype=float)
        left = iter(rows)
        families = {
            (problem, rule): [next(left) for _ in self.widths]
            for problem in ("same", "full")
            for rule in ("AdamW", "Blockwise AdamW")
        }
        slopes = {}
        for (problem, rule), own in families.items():
            for kind in ("states", "adjoints", "parameters"):
                squares = np.array([row[kind][0] for row in own])
                (slope,) = bootstrap_slopes(sizes, squares, paired=problem == "same")
                slopes[f"{rule}, {problem} problem: slope of {kind} in d"] = slope
        judged = [no_slower(name, slope, 0.0, 0.1) for name, slope in slopes.items() if name.startswith("Blockwise")]
        bound = {name: 0.0 for name in slopes if name.startswith("Blockwise")}
        figures = tuple(
            self._figure(kind, problem, families[problem, "AdamW"], families[problem, "Blockwise AdamW"])
            for problem in ("same", "full")
            for kind in ("states", "parameters")
        )
        return Findings(rows, figures, slopes, bound, all_of(*judged))

    def _figure(self, kind: str, problem: str, entry: Sequence[Row], block: Sequence[Row]) -> Lines:
        def series(name: str, rows: Sequence[Row]) -> Series:
            return rms_series(name, self.widths, np.array([row[kind][0] for row in rows]))

        return Lines(
            title=f"error of {kind} against the dimension, {problem} problem",
            measured=f"L = {self.layers}, H = {self.heads}, {self.seeds} seeds, {self.updates} updates",
            x=Scale("width d", log=True),
            y=Scale("error", log=True),
            series=(series("AdamW", entry), series("Blockwise AdamW", block)),
        )
