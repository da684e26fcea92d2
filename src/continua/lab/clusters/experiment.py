"""`clusters`: tokens on the sphere gather in clusters, stay there for long, and collapse in the end."""

import itertools
import math
from collections.abc import Sequence
from typing import final

import numpy as np

from continua.lab.clusters.exact import exact_overlap
from continua.lab.clusters.particles import CircleModes, Collapse, Equiangular, Film, Metastable
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.intervals import Interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, at_most, equals
from continua.runs import AbstractFigure, Curve, Lines, Paths, Scale

DIGITS = 5e-8
"""Seven digits."""
SOURCE = "B. Geshkovski, C. Letrouit, Y. Polyanskiy, P. Rigollet, arXiv 2312.10794; docs/mathematics.md, section 11"


@final
class Clusters(AbstractExperiment):
    """Equiangular tokens, modes on the circle, metastability, collapse."""

    starts: tuple[tuple[int, float], ...] = ((2, 0.5), (4, 1.0), (8, 4.0), (16, 2.0), (32, 9.0))
    times: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    betas: tuple[float, ...] = (1.0, 4.0, 9.0, 25.0, 64.0)
    lasting: tuple[float, ...] = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    widths: tuple[int, ...] = (16, 64, 256)
    seeds: int = 8
    film: float = 60.0

    name = "clusters"
    claim = (
        "tokens on the sphere follow the exact equation when they start orthonormal, bunch on the circle at the "
        "rates lambda_k, stay apart for a time that grows exponentially in beta, and in high dimension collapse to "
        "one point at the rate e^{-2t}"
    )
    formula = 'lambda_k = frac{k^2 I_k(beta)}{beta I_0(beta)} , " " 1 - g(t) ~ e^{-2t}'
    source = SOURCE

    def quick(self) -> "Clusters":
        return Clusters(
            starts=((4, 1.0), (8, 4.0), (32, 9.0)),
            betas=(1.0, 4.0, 9.0, 25.0),
            lasting=(3.0, 4.0, 5.0, 6.0),
            widths=(16, 64),
            seeds=4,
        )

    def cells(self) -> Sequence[AbstractCell]:
        return [
            *(Equiangular(n, beta, t) for n, beta in self.starts for t in self.times),
            *(CircleModes(beta) for beta in self.betas),
            *(Metastable(8, beta) for beta in self.lasting),
            *(Collapse(12, width, 1.0, 12.0, self.seeds) for width in self.widths),
            Film(48, 9.0, self.film),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        counts = (len(self.starts) * len(self.times), len(self.betas), len(self.lasting), len(self.widths))
        left = iter(rows)
        angles, modes, lasting, collapse = (list(itertools.islice(left, count)) for count in counts)
        overlap_gap = max(abs(row["overlap"] - row["exact"]) for row in angles)
        rate_gap = max(abs(row["rate"] - row["formula_rate"]) for row in modes)
        time_gap = max(abs(row["time"] / row["exact"] - 1.0) for row in lasting)
        rates = [_rate(row) for row in collapse]
        growth = _growth(lasting)
        judgement = all_of(
            at_most("largest gap of overlaps", overlap_gap, DIGITS),
            at_most("largest gap of rates", rate_gap, DIGITS),
            at_most("largest relative gap of half-times", time_gap, 1e-6),
            *(
                equals(f"collapse rate, width {r['width']}", rate, 2.0, 0.05)
                for r, rate in zip(collapse, rates, strict=True)
            ),
            at_least("least gain of that growth with beta", min(np.diff(growth)), 0.0),
            at_least("growth of the half-time for each unit of beta", min(growth), 1.5),
        )
        measured = {
            "overlap_gap": overlap_gap,
            "rate_gap": rate_gap,
            "modes": [row["mode"] for row in modes],
            "rates": [row["rate"] for row in modes],
            "half_time_gap": time_gap,
            "half_time_growth": growth,
            "collapse_rates": rates,
        }
        bound = {
            "overlap_gap": AtMost(DIGITS),
            "rate_gap": AtMost(DIGITS),
            "modes": [row["formula_mode"] for row in modes],
            "rates": [row["formula_rate"] for row in modes],
            "half_time_gap": AtMost(1e-6),
            "collapse_rates": 2.0,
        }
        figures = (*self._figures(angles, lasting, collapse), _rates_figure(modes), _film_figure(rows[-1]))
        return Findings(figures, measured, bound, judgement)

    def _figures(
        self, angles: Sequence[Row], lasting: Sequence[Row], collapse: Sequence[Row]
    ) -> Sequence[AbstractFigure]:
        grid = np.linspace(0.0, max(self.times), 121)
        drawn: list[Curve] = []
        for colour, (n, beta) in enumerate(self.starts):
            name = f"n = {n}, beta = {beta:g}"
            exact = [exact_overlap(n, beta, float(t)) for t in grid]
            drawn.append(Curve.of(f"{name}, exact", grid, exact, colour=colour))
            own = [row for row in angles if (row["tokens"], row["beta"]) == (n, beta)]
            x, y = [row["time"] for row in own], [row["overlap"] for row in own]
            drawn.append(Curve.of(f"{name}, particles", x, y, mark="points", colour=colour))
        overlaps = Lines(
            title="overlap of tokens that start orthonormal",
            caption="With large beta the overlap stays near zero for long: metastability.",
            measured="Dormand-Prince with tangential projected steps at 1e-11, float64",
            x=Scale("time t"),
            y=Scale("common inner product"),
            curves=tuple(drawn),
        )
        betas = [row["beta"] for row in lasting]
        found = (
            Curve.of("exact", betas, [row["exact"] for row in lasting]),
            Curve.of("particles", betas, [row["time"] for row in lasting], mark="points", colour=0),
        )
        plateau = curves("how long tokens stay apart", "beta", "time until the overlap is 1/2", found, "y")
        falls = Lines(
            title="collapse of random tokens in high dimension",
            caption="The largest 1 - <x_i, x_j>, mean over seeds; the dashed line falls like e^{-2t}.",
            x=Scale("time t"),
            y=Scale("largest 1 - <x_i, x_j>", log=True),
            curves=(
                *(Curve.of(f"width {r['width']}", r["times"], np.mean(r["gaps"], 0)) for r in collapse),
                Curve.of("e^{-2t}", collapse[0]["times"], np.exp(-2 * np.array(collapse[0]["times"])), mark="dashed"),
            ),
        )
        return overlaps, plateau, falls


def _rate(row: Row) -> Interval:
    """The exponential rate at which the largest gap falls, while it is small and not yet rounding."""
    times, gaps = np.array(row["times"]), np.array(row["gaps"])
    slopes = []
    for gap in gaps:
        clean = (gap < 1e-2) & (gap > 1e-8)
        slopes.append(-np.polyfit(times[clean], np.log(gap[clean]), 1)[0] if clean.sum() > 2 else math.nan)
    mean, half = float(np.mean(slopes)), 2.0 * float(np.std(slopes)) / math.sqrt(len(slopes))
    return Interval(mean, mean - half, mean + half)


def _growth(lasting: Sequence[Row]) -> list[float]:
    """T(beta')/T(beta) for neighbours, for each unit of beta; it rises towards e, since T ~ e^beta/(2 beta)."""
    pairs = itertools.pairwise(lasting)
    return [(b["time"] / a["time"]) ** (1.0 / (b["beta"] - a["beta"])) for a, b in pairs]


def _film_figure(row: Row) -> Paths:
    return Paths(
        title="tokens on the circle",
        caption="Move the slider: clusters form early, and merge only much later.",
        measured=f"{row['tokens']} tokens, beta = {row['beta']:g}",
        x=Scale("x_1"),
        y=Scale("x_2"),
        depths=np.array(row["times"]),
        points=np.array(row["points"]),
        tokens=np.arctan2(np.array(row["points"])[0, :, 1], np.array(row["points"])[0, :, 0]),
        hue="angle at the start",
        slider="time t",
    )


@final
class Overlap(AbstractExperiment):
    """The common inner product of n tokens that began orthonormal, at inverse temperature beta and one time."""

    tokens: int
    beta: float
    time: float

    name = "clusters"
    claim = "the inner products of tokens that start orthonormal stay equal and obey one scalar equation"
    formula = "g' = frac{2 e^{beta g} (1-g) ((n-1)g+1)}{e^{beta} + (n-1) e^{beta g}} , g(0) = 0"
    source = SOURCE

    def quick(self) -> "Overlap":
        return self

    def cells(self) -> Sequence[AbstractCell]:
        return [Equiangular(self.tokens, self.beta, self.time)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        (row,) = rows
        gap = abs(row["overlap"] - row["exact"])
        judgement = all_of(at_most("gap to the exact overlap", gap, DIGITS), at_most("spread", row["spread"], DIGITS))
        return Findings((), dict(row), {"overlap": row["exact"], "gap": AtMost(DIGITS)}, judgement)


@final
class FastestMode(AbstractExperiment):
    """The mode that grows fastest on a uniform ring of tokens at inverse temperature beta, and its rate."""

    beta: float

    name = "clusters"
    claim = "a small perturbation of mode k of uniform tokens on the circle grows at the rate lambda_k"
    formula = "lambda_k = frac{k^2 I_k(beta)}{beta I_0(beta)}"
    source = SOURCE

    def quick(self) -> "FastestMode":
        return self

    def cells(self) -> Sequence[AbstractCell]:
        return [CircleModes(self.beta)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        (row,) = rows
        wrong = float(row["mode"] != row["formula_mode"])
        judgement = all_of(
            at_most("gap to the formula's rate", abs(row["rate"] - row["formula_rate"]), DIGITS),
            at_most("wrong mode", wrong, 0.0),
        )
        measured = {k: value for k, value in row.items() if k not in ("rates", "formula_rates")}
        bound = {"mode": row["formula_mode"], "rate": row["formula_rate"], "gap": AtMost(DIGITS)}
        return Findings((_rates_figure(rows),), measured, bound, judgement)


def _rates_figure(rows: Sequence[Row]) -> Lines:
    """Growth rates over modes, formula as lines, particles as points."""
    series: list[Curve] = []
    for colour, row in enumerate(rows):
        modes = list(range(1, len(row["rates"]) + 1))
        name = f"beta = {row['beta']:g}"
        series.append(Curve.of(f"{name}, formula", modes, row["formula_rates"], mark="line", colour=colour))
        series.append(Curve.of(f"{name}, particles", modes, row["rates"], mark="points", colour=colour))
    return Lines(
        title="how fast modes grow on the circle",
        caption="Points: Jacobian of the particles' velocity. Lines: the formula. The fastest mode wins.",
        measured="one row of the circulant Jacobian by autograd, float64",
        x=Scale("mode k"),
        y=Scale("rate"),
        curves=tuple(series),
    )
