"""`adamw-limit`: networks trained by AdamW against their infinitely deep and wide limit."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

import numpy as np

from continua.lab.experiment import AbstractExperiment, AtMost, Findings, rms_series
from continua.lab.intervals import Interval, bootstrap_slopes, slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.training.cells import Adversarial, AgainstFine, AgainstLimit, ClosedForm
from continua.lab.training.problem import Problem, UpdateRule
from continua.lab.verdicts import Judgement, all_of, at_most, equals, stays_below
from continua.runs import Curve, Lines, Scale

_MARGIN = 0.1


@final
class AdamWLimit(AbstractExperiment):
    """Errors of states, adjoints and parameters over L and H, before and after updates.

    Beside these, after the last update: initial conditions in the ball that climb the error of the states, terminal
    values that climb that of the adjoints, and the same number of tokens in more and fewer sequences, over N. `wide`: a
    continuous law of heads, fresh data in every update, and more of them. `practical`: eps = 1e-8, where gradients
    become signs and no rate is claimed.
    """

    name = "adamw-limit"
    claim = (
        "hidden states, adjoints and parameters of a network of L layers and H heads, trained by AdamW, converge to "
        "the forward-backward mean-field limit at least as fast as L^-1 + L^-1/3 H^-1/2, uniformly over initial "
        "conditions in a ball and over the number of tokens"
    )
    formula = 'E[ "sup" |x_r - x(t_r)|^2 ]^{1/2} ≤ C ( L^{-1} + L^{-1/3} H^{-1/2} )'
    source = "arXiv 2605.11059, Lemma 6 and Theorem 7"

    layers: tuple[int, ...] = (16, 32, 64, 128, 256)
    heads: tuple[int, ...] = (1, 4, 16)
    seeds: int = 32
    milestones: tuple[int, ...] = (0, 5, 10)
    problem: Problem = Problem()
    tokens: tuple[int, ...] = (4, 16, 64)
    climbers: int = 64
    ascent: int = 12
    wide: int = 20
    """updates of the continuous law on fresh data"""
    nodes: int = 128
    """of the continuous law, in its limit: updates bend where a gradient changes its sign, and nodes must resolve it"""
    practical: int = 5
    """updates with eps = 1e-8"""
    fine: int = 2048
    """layers of their limit"""

    def quick(self) -> "AdamWLimit":
        return AdamWLimit(
            layers=(8, 16, 32, 64),
            heads=(2, 8),
            seeds=48,
            milestones=(0, 3),
            problem=Problem(tokens=4, sequences=2, trained=1, width=4),
            tokens=(4, 8, 16),
            climbers=12,
            ascent=5,
            wide=5,
            nodes=64,
            practical=3,
            fine=256,
        )

    def cells(self) -> Sequence[AbstractCell]:
        rule, last = UpdateRule(), self.milestones[-1]
        return [
            ClosedForm(6, 5, 3, self.problem),
            *(AgainstLimit(L, 1, 1, self.milestones, self.problem, rule, sampled=False) for L in self.layers),
            *(
                AgainstLimit(L, H, self.seeds, self.milestones, self.problem, rule)
                for L in self.layers
                for H in self.heads
            ),
            *(
                Adversarial(L, self.heads[-1], self.climbers, last, self.problem, rule, ascent=self.ascent)
                for L in self.layers
            ),
            *(AgainstLimit(16, 4, self.seeds, (last,), self._in_sequences_of(n), rule) for n in self.tokens),
            *(AgainstLimit(L, self.heads[-1], self.seeds, (self.wide,), self._wide(), rule) for L in self.layers),
            *(self._against_fine(L, H) for L in self.layers[:4] for H in self.heads[-1:]),
        ]

    def _wide(self) -> Problem:
        return dataclasses.replace(self.problem, fresh=True, curve=True, atoms=self.nodes)

    def _against_fine(self, layers: int, heads: int) -> AgainstFine:
        sizes = (layers, heads, self.seeds // 2, self.practical, self.problem)
        return AgainstFine(*sizes, UpdateRule(eps=1e-8), self.fine)

    def _in_sequences_of(self, tokens: int) -> Problem:
        """The same problem with as many tokens as there are in the longest sequence, in sequences of another length.

        The largest error over more tokens is larger by chance alone; over the same number of them it need not be.
        """
        count = max(self.tokens) // tokens
        return dataclasses.replace(self.problem, tokens=tokens, sequences=count, trained=(count + 1) // 2)

    def conclude(self, rows: Sequence[Row]) -> Findings:
        left = iter(rows)
        closed, depths = next(left), len(self.layers)
        parts = (depths, depths * len(self.heads), depths, len(self.tokens), depths, len(self.layers[:4]))
        every, drawn, climbed, counts, wide, small = (list(itertools.islice(left, size)) for size in parts)
        slopes: dict[str, Interval] = {}
        judgements: list[Judgement] = [
            at_most("adjoint recursion against autograd", closed["adjoint"], 1e-12),
            at_most("gradient map against autograd", closed["gradient"], 1e-12),
        ]
        for place, update in enumerate(self.milestones):
            for kind in ("states", "adjoints", "parameters"):
                if kind == "parameters" and update == 0:
                    continue
                squares = np.array([row[kind][place] for row in drawn])
                slopes |= self._slopes(f"{kind}, {update} updates", drawn, squares)
        found = np.array([row["found"] for row in climbed])
        slopes |= self._slopes(f"adversarial states, {self.milestones[-1]} updates", climbed, found, axes="L")
        turned = np.array([row["adjoints"] for row in climbed])
        slopes |= self._slopes(f"adversarial adjoints, {self.milestones[-1]} updates", climbed, turned, axes="L")
        for kind in ("states", "adjoints", "parameters"):
            squares = np.array([row[kind][0] for row in wide])
            slopes |= self._slopes(f"{kind}, continuous law, fresh data, {self.wide} updates", wide, squares, axes="L")
        tokens = np.array([[n] for n in self.tokens], dtype=float)
        for kind in ("states", "adjoints", "parameters"):
            (slope,) = bootstrap_slopes(tokens, np.array([row[kind][-1] for row in counts]))
            slopes[f"slope in N: {kind}, {self.milestones[-1]} updates"] = slope
        # Slopes in L and H say how errors fall. The claim is an upper bound: what must not grow is their quotient.
        for start, label in (("excess", "error/bound: "), ("slope in N", "")):
            own = {name: slope for name, slope in slopes.items() if name.startswith(start)}
            judgements += [stays_below(f"{label}{name}", slope, 0.0, _MARGIN) for name, slope in own.items()]
        unsampled = slope_interval(self.layers, [row["states"][-1][0] ** 0.5 for row in every])
        judgements.append(equals("slope in L without sampling", unsampled, -1.0, 0.1))
        measured = {
            "adjoint_gap": closed["adjoint"],
            "gradient_gap": closed["gradient"],
            "slope_without_sampling": unsampled,
            **slopes,
            **self._practical_slopes(small),
            "adversarial gain": [(np.mean(row["found"]) / np.mean(row["drawn"])) ** 0.5 for row in climbed],
        }
        bound = {"adjoint_gap": AtMost(1e-12), "gradient_gap": AtMost(1e-12), "slope_without_sampling": -1.0}
        bound |= {name: AtMost(0.0) for name in slopes if name.startswith(("excess", "slope in N"))}
        figures = (
            *(self._figure(kind, drawn, every) for kind in ("states", "adjoints", "parameters")),
            self._ascent_figure(climbed),
            self._tokens_figure(counts),
        )
        return Findings(figures, measured, bound, all_of(*judgements))

    def _slopes(self, name: str, rows: Sequence[Row], squares: np.ndarray, axes: str = "LH") -> dict[str, Interval]:
        """Slopes in L and H of the error, and of the error divided by the bound (its excess)."""
        sizes = np.array([[row["layers"], row["heads"]][: len(axes)] for row in rows], dtype=float)
        plain, excess = (bootstrap_slopes(sizes, s) for s in (squares, squares / _bounds(rows)[:, None] ** 2))
        found = {f"slope in {axis}: {name}": slope for axis, slope in zip(axes, plain, strict=True)}
        return found | {f"excess in {axis}: {name}": slope for axis, slope in zip(axes, excess, strict=True)}

    def _practical_slopes(self, rows: Sequence[Row]) -> dict[str, Interval | float]:
        """What is seen at eps = 1e-8, with the error of the limit itself beside it; nothing is required of it."""
        sizes = np.array([[row["layers"]] for row in rows], dtype=float)
        found: dict[str, Interval | float] = {}
        for kind in ("states", "adjoints", "parameters"):
            (slope,) = bootstrap_slopes(sizes, np.array([row[kind][0] for row in rows]))
            found[f"at eps 1e-8: slope of {kind} in L"] = slope
        least = min(np.mean(row["states"][0]) ** 0.5 for row in rows)
        return found | {"at eps 1e-8: error of the limit, of the least error": rows[0]["resolution"] / float(least)}

    def _ascent_figure(self, rows: Sequence[Row]) -> Lines:
        L = [row["layers"] for row in rows]

        def series(name: str, kind: str) -> Curve:
            return rms_series(name, L, np.array([row[kind] for row in rows]))

        found, bound = series("after gradient ascent", "found"), _bounds(rows)
        scaled = bound * float(found.y[0] / bound[0])
        return Lines(
            title="initial conditions that climb the error",
            caption="Largest error of the states over layers and tokens, before and after ascent within the ball.",
            measured=f"H = {self.heads[-1]}, {self.milestones[-1]} updates, {self.ascent} steps of projected ascent",
            x=Scale("layers L", log=True),
            y=Scale("error", log=True),
            curves=(series("drawn", "drawn"), found, Curve.of("bound", L, scaled, mark="dashed", colour=1)),
        )

    def _tokens_figure(self, rows: Sequence[Row]) -> Lines:
        def series(kind: str) -> Curve:
            return rms_series(kind, self.tokens, np.array([row[kind][-1] for row in rows]))

        return Lines(
            title="errors against the number of tokens",
            caption="The same number of tokens in all, in sequences of N.",
            measured=f"L = 16, H = 4, {self.seeds} seeds, {self.milestones[-1]} updates",
            x=Scale("tokens N", log=True),
            y=Scale("error", log=True),
            curves=tuple(series(kind) for kind in ("states", "adjoints", "parameters")),
        )

    def _figure(self, kind: str, drawn: Sequence[Row], every: Sequence[Row]) -> Lines:
        series: list[Curve] = []
        for colour, H in enumerate(self.heads):
            own = [row for row in drawn if row["heads"] == H]
            L = np.array([row["layers"] for row in own], dtype=float)
            squares = np.array([row[kind][-1] for row in own])
            series.append(rms_series(f"H = {H}", L, squares, colour))
            limit = _bounds(own)
            scaled = limit * float(np.sqrt(squares[0].mean()) / limit[0])
            series.append(Curve.of(f"bound, H = {H}", L, scaled, mark="dashed", colour=colour))
        L = [row["layers"] for row in every]
        errors = [row[kind][-1][0] ** 0.5 for row in every]
        series.append(Curve.of("every atom in every layer", L, errors, mark="both"))
        return Lines(
            title=f"errors of {kind} after {self.milestones[-1]} updates",
            caption="Root mean square over seeds, band from 10% to 90%. Dashed: the bound, through the first point.",
            measured=f"{self.seeds} seeds, {self.problem.atoms} atoms, AdamW, float64; limit by collocation over depth",
            x=Scale("layers L", log=True),
            y=Scale("error", log=True),
            curves=tuple(series),
        )


def _bounds(rows: Sequence[Row]) -> np.ndarray:
    """L^-1 + L^-1/3 H^-1/2 of every row."""
    L, H = (np.array([row[name] for row in rows], dtype=float) for name in ("layers", "heads"))
    return 1.0 / L + L ** (-1 / 3) * H ** (-1 / 2)
