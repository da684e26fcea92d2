"""`adamw-limit`: networks trained by AdamW against their infinitely deep and wide limit."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np

from continua.core.intervals import Interval, bootstrap_slopes, slope_interval
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.training.cells import AgainstLimit, ClosedForm
from continua.lab.training.problem import Problem, Training
from continua.lab.verdicts import Judgement, all_of, at_most, equals, no_slower
from continua.runs.figures import Lines, Scale, Series

_MARGIN = 0.1


@final
@dataclasses.dataclass(frozen=True)
class AdamWLimit(AbstractExperiment):
    """Errors of states, adjoints and parameters over L and H, before and after updates."""

    name: ClassVar[str] = "adamw-limit"
    claim: ClassVar[str] = (
        "hidden states, adjoints and parameters of a network of L layers and H heads, trained by AdamW, converge to "
        "the forward-backward mean-field limit at least as fast as L^-1 + L^-1/3 H^-1/2, uniformly over initial "
        "conditions"
    )
    formula: ClassVar[str] = 'E[ "sup" |x_r - x(t_r)|^2 ]^{1/2} ≤ C ( L^{-1} + L^{-1/3} H^{-1/2} )'
    source: ClassVar[str] = "arXiv 2605.11059, Lemma 6 and Theorem 7"

    layers: tuple[int, ...] = (16, 32, 64, 128, 256)
    heads: tuple[int, ...] = (1, 4, 16)
    seeds: int = 32
    asked: tuple[int, ...] = (0, 5, 10)
    problem: Problem = Problem()

    def quick(self) -> "AdamWLimit":
        return AdamWLimit(
            layers=(16, 32, 64, 128),
            heads=(2, 8),
            seeds=48,
            asked=(0, 3),
            problem=Problem(tokens=4, sequences=2, trained=1, width=4),
        )

    def cells(self) -> Sequence[AbstractCell]:
        training = Training()
        return [
            ClosedForm(6, 5, 3, self.problem),
            *(AgainstLimit(L, 1, 1, self.asked, self.problem, training, sampled=False) for L in self.layers),
            *(
                AgainstLimit(L, H, self.seeds, self.asked, self.problem, training)
                for L in self.layers
                for H in self.heads
            ),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        closed, every, drawn = rows[0], rows[1 : 1 + len(self.layers)], rows[1 + len(self.layers) :]
        slopes: dict[str, Interval] = {}
        judgements: list[Judgement] = [
            at_most("adjoint recursion against autograd", closed["adjoint"], 1e-12),
            at_most("gradient map against autograd", closed["gradient"], 1e-12),
        ]
        for place, update in enumerate(self.asked):
            for kind in ("states", "adjoints", "parameters"):
                if kind == "parameters" and update == 0:
                    continue
                squares = np.array([row[kind][place] for row in drawn])
                slopes |= self._slopes(f"{kind}, {update} updates", drawn, squares)
        judgements += [
            no_slower(f"error/bound: {name}", slope, 0.0, _MARGIN)
            for name, slope in slopes.items()
            if name.startswith("excess")
        ]
        unsampled = slope_interval(self.layers, [row["states"][-1][0] ** 0.5 for row in every])
        judgements.append(equals("slope in L without sampling", unsampled, -1.0, 0.1))
        measured = {
            "adjoint_gap": closed["adjoint"],
            "gradient_gap": closed["gradient"],
            "slope_without_sampling": unsampled,
            **slopes,
        }
        bound = {"adjoint_gap": 1e-12, "gradient_gap": 1e-12, "slope_without_sampling": -1.0}
        bound |= {name: 0.0 for name in slopes if name.startswith("excess")}
        figures = tuple(self._figure(kind, drawn, every) for kind in ("states", "adjoints", "parameters"))
        return Findings(rows, figures, measured, bound, all_of(*judgements))

    def _slopes(self, name: str, rows: Sequence[Row], squares: np.ndarray) -> dict[str, Interval]:
        """Slopes in L and H of the error, and of the error divided by the bound (its excess)."""
        sizes = np.array([[row["layers"], row["heads"]] for row in rows], dtype=float)
        bound = 1.0 / sizes[:, 0] + sizes[:, 0] ** (-1 / 3) * sizes[:, 1] ** (-1 / 2)
        plain, excess = bootstrap_slopes(sizes, squares), bootstrap_slopes(sizes, squares / bound[:, None] ** 2)
        found = {f"slope in {axis}: {name}": slope for axis, slope in zip("LH", plain, strict=True)}
        return found | {f"excess in {axis}: {name}": slope for axis, slope in zip("LH", excess, strict=True)}

    def _figure(self, kind: str, drawn: Sequence[Row], every: Sequence[Row]) -> Lines:
        series: list[Series] = []
        for colour, H in enumerate(self.heads):
            own = [row for row in drawn if row["heads"] == H]
            L = np.array([row["layers"] for row in own], dtype=float)
            squares = np.array([row[kind][-1] for row in own])
            low, high = np.sqrt(np.quantile(squares, [0.1, 0.9], axis=1))
            series.append(Series.of(f"H = {H}", L, np.sqrt(squares.mean(-1)), low, high, mark="both", colour=colour))
            limit = 1.0 / L + L ** (-1 / 3) * H**-0.5
            scaled = limit * float(np.sqrt(squares[0].mean()) / limit[0])
            series.append(Series.of(f"bound, H = {H}", L, scaled, mark="dashed", colour=colour))
        L = [row["layers"] for row in every]
        series.append(
            Series.of("every atom in every layer", L, [row[kind][-1][0] ** 0.5 for row in every], mark="both")
        )
        return Lines(
            title=f"errors of {kind} after {self.asked[-1]} updates",
            caption="Root mean square over seeds, band from 10% to 90%. Dashed: the bound, through the first point.",
            measured=f"{self.seeds} seeds, {self.problem.atoms} atoms, AdamW, float64; limit by collocation over depth",
            x=Scale("layers L", log=True),
            y=Scale("error", log=True),
            series=tuple(series),
        )
