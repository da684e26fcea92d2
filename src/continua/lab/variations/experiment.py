"""`euler-lagrange`: the flow of attention on the sphere as an extremal, and paths that are none."""

import math
from collections.abc import Sequence
from typing import final

from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.variations.cells import ConjugatePoints, Extensions, GradientFlow, Inexact, Residuals, Scenarios
from continua.lab.verdicts import Judgement, all_of, at_least, at_most, equals
from continua.runs import Curve, Lines

_ORDER = 0.2
_KINDS = ("Q = K = V = I", "random heads", "trained layers")


@final
class EulerLagrange(AbstractExperiment):
    """Orders of residuals, five scenarios, the boundary problem by two methods, conjugate points by two methods."""

    name = "euler-lagrange"
    claim = (
        "the tangential flow of attention is an extremal of its action, which vanishes on it, and no geodesic; paths "
        "that are perturbed are no extremals; extremals between two ends, with a terminal loss or of the kinetic "
        "energy satisfy their equations and end conditions, and stop being minima at conjugate points"
    )
    formula = 'S = int frac{1}{2} sum_i |dot x_i - G_i|^2 dt , " " P_x ( dot w_i + sum_j (d_{x_i} G_j)^T w_j ) = 0'
    source = "arXiv 2507.15431; docs/mathematics.md, section 10; conjugate points beyond the source"

    layers: tuple[int, ...] = (8, 16, 32, 64)
    steps: tuple[int, ...] = (8, 16, 32)
    around: int = 24
    updates: int = 60

    def quick(self) -> "EulerLagrange":
        return EulerLagrange(steps=(4, 8, 16), around=12, updates=10)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            Residuals(0, self.layers),
            Residuals(2, self.layers),
            Residuals(2, self.layers, updates=self.updates),
            Scenarios(self.steps),
            Inexact((0.1, 0.03, 0.01, 0.003)),
            ConjugatePoints(self.around),
            GradientFlow(6, 5, 2.0),
            Extensions(4, 2),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        *residuals, scenarios, inexact, conjugate, gradient, extensions = rows
        orders = {
            **{f"residual, {kind}": (r["midpoint"], -2.0) for kind, r in zip(_KINDS[:2], residuals, strict=False)},
            f"residual, {_KINDS[2]}": (residuals[2]["midpoint"], -1.0),
            "residual with G at the start of steps": (residuals[0]["left"], -1.0),
            "kinetic residual": (residuals[0]["kinetic"], 0.0),
            "residual of the bumped path": (residuals[0]["bumped"], 0.0),
        }
        slopes = {f"slope in L: {n}": (slope_interval(self.layers, e), o) for n, (e, o) in orders.items()}
        ends = {"free": ("free end", -2.0), "pinned": ("both ends fixed, against shooting", -2.0)}
        ends |= {"natural": ("terminal loss, w(T)", -2.0), "geodesic": ("terminal loss, kinetic energy", -2.0)}
        found = {f"slope in L: {n}": (slope_interval(self.steps, scenarios[key]), o) for key, (n, o) in ends.items()}
        sizes = {"residuals": ("residual in eps", 1.0), "actions": ("action in eps", 2.0)}
        found |= {
            f"slope of the {n}": (slope_interval(inexact["sizes"], inexact[key]), o) for key, (n, o) in sizes.items()
        }
        slopes |= found
        index = conjugate["indices"][-1]
        judgements: list[Judgement] = [
            *(equals(name, slope, order, _ORDER) for name, (slope, order) in slopes.items()),
            at_most("least action with a free end", max(scenarios["zero"]), 1e-15),
            at_least("lowest eigenvalue between two ends", scenarios["lowest"][0], 0.0),
            at_least("bumped residual over the flow's", residuals[0]["bumped"][-1] / residuals[0]["midpoint"][-1], 100),
            at_most("first conjugate point of a great circle, from pi", abs(conjugate["angle"] - math.pi), 0.02),
            at_most("index of the second variation minus conjugate points", abs(index - conjugate["zeros"]), 0.0),
            at_least("conjugate points met", conjugate["zeros"], 1.0),
            at_most("P x'' against grad 1/2 |grad E|^2", gradient["gap"], 1e-12),
            at_most("one Lagrangian extended in four ways, apart", extensions["apart"], 1e-12),
            at_least("the same without projection", extensions["unprojected"], 0.1),
        ]
        measured = {
            **{name: slope for name, (slope, _) in slopes.items()},
            "longest path, of its geodesic": [r["longer"] for r in residuals],
            "kinetic residual": [r["kinetic"][-1] for r in residuals],
            "action": [r["action"][-1] for r in residuals],
            "lowest eigenvalue between two ends": scenarios["lowest"][0],
            "first conjugate point of a great circle": conjugate["angle"],
            "index at the end": index,
            "conjugate points": conjugate["zeros"],
            "gradient-flow gap": gradient["gap"],
            "extensions of one Lagrangian, apart": extensions["apart"],
            "the same without projection": extensions["unprojected"],
        }
        bound = {name: order for name, (_, order) in slopes.items()}
        bound |= {"first conjugate point of a great circle": math.pi, "gradient-flow gap": AtMost(1e-12)}
        bound |= {"extensions of one Lagrangian, apart": AtMost(1e-12)}
        return Findings(self._figures(residuals, scenarios, conjugate), measured, bound, all_of(*judgements))

    def _figures(self, residuals: Sequence[Row], scenarios: Row, conjugate: Row) -> tuple[Lines, ...]:
        along = [
            Curve.of(name, self.layers, row[key], mark="both")
            for name, row, key in (
                ("flow, G in the middle", residuals[0], "midpoint"),
                ("random heads", residuals[1], "midpoint"),
                ("flow, G at the start", residuals[0], "left"),
                ("trained layers", residuals[2], "midpoint"),
                ("kinetic action alone", residuals[0], "kinetic"),
                ("bumped path", residuals[0], "bumped"),
            )
        ]
        ends = [
            Curve.of(name, self.steps, scenarios[key], mark="both")
            for name, key in (
                ("free end, from the flow", "free"),
                ("both ends, from shooting", "pinned"),
                ("w(T) + P grad loss", "natural"),
                ("angle - sine of the rest", "geodesic"),
            )
        ]
        energy = [
            Curve.of(kind, [(k + 0.5) / len(r["energy"]) for k in range(len(r["energy"]))], r["energy"])
            for kind, r in zip(_KINDS, residuals, strict=True)
        ]
        lowest = [Curve.of("lowest eigenvalue", conjugate["places"], conjugate["lowest"], mark="both")]
        return (
            curves("Euler-Lagrange residual of paths", "layers L", "largest residual", along, "xy"),
            curves("extremals and their ends", "steps L", "error", ends, "xy"),
            curves("kinetic energy along depth", "depth", "sum over tokens of |dx/dt|^2 / 2", energy),
            curves("second variation of an extremal that goes round", "share of the path", "eigenvalue", lowest),
        )
