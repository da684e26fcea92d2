"""Single questions about clusters: one overlap, or the fastest mode of one ring."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

from continua.lab.cells import AbstractCell, Row
from continua.lab.clusters.circle import CircleModes
from continua.lab.clusters.equiangular import Equiangular
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.verdicts import all_of, at_most
from continua.runs import Lines, Scale, Series

DIGITS = 5e-8
"""Seven digits."""
SOURCE = "B. Geshkovski, C. Letrouit, Y. Polyanskiy, P. Rigollet, arXiv 2312.10794; docs/mathematics.md, section 11"


@final
@dataclasses.dataclass(frozen=True)
class Overlap(AbstractExperiment):
    """The common inner product of n tokens that began orthonormal, at inverse temperature beta and one time."""

    tokens: int
    beta: float
    time: float

    name: ClassVar[str] = "clusters"
    claim: ClassVar[str] = "the inner products of tokens that start orthonormal stay equal and obey one scalar equation"
    formula: ClassVar[str] = "g' = frac{2 e^{beta g} (1-g) ((n-1)g+1)}{e^{beta} + (n-1) e^{beta g}} , g(0) = 0"
    source: ClassVar[str] = SOURCE

    def quick(self) -> "Overlap":
        return self

    def cells(self) -> Sequence[AbstractCell]:
        return [Equiangular(self.tokens, self.beta, self.time)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        (row,) = rows
        gap = abs(row["overlap"] - row["exact"])
        judgement = all_of(at_most("gap to the exact overlap", gap, DIGITS), at_most("spread", row["spread"], DIGITS))
        return Findings(rows, (), dict(row), {"overlap": row["exact"], "gap": DIGITS}, judgement)


@final
@dataclasses.dataclass(frozen=True)
class FastestMode(AbstractExperiment):
    """The mode that grows fastest on a uniform ring of tokens at inverse temperature beta, and its rate."""

    beta: float

    name: ClassVar[str] = "clusters"
    claim: ClassVar[str] = "a small perturbation of mode k of uniform tokens on the circle grows at the rate lambda_k"
    formula: ClassVar[str] = "lambda_k = frac{k^2 I_k(beta)}{beta I_0(beta)}"
    source: ClassVar[str] = SOURCE

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
        measured = {
            k: row[k] for k in ("beta", "particles", "mode", "rate", "formula_mode", "formula_rate", "grid_gap")
        }
        bound = {"mode": row["formula_mode"], "rate": row["formula_rate"], "gap": DIGITS}
        return Findings(rows, (rates_figure(rows),), measured, bound, judgement)


def rates_figure(rows: Sequence[Row]) -> Lines:
    """Growth rates over modes, formula as lines, particles as points."""
    series: list[Series] = []
    for colour, row in enumerate(rows):
        modes = list(range(1, len(row["rates"]) + 1))
        name = f"beta = {row['beta']:g}"
        series.append(Series.of(f"{name}, formula", modes, row["formula_rates"], mark="line", colour=colour))
        series.append(Series.of(f"{name}, particles", modes, row["rates"], mark="points", colour=colour))
    return Lines(
        title="how fast modes grow on the circle",
        caption="Points: Jacobian of the particles' velocity. Lines: the formula. The fastest mode wins.",
        measured="one row of the circulant Jacobian by autograd, float64",
        x=Scale("mode k"),
        y=Scale("rate"),
        series=tuple(series),
    )
