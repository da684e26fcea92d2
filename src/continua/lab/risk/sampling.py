"""`sampling`: empirical against population cross-entropy, for one control, finite classes and Lipschitz controls."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.seeds import generator_of
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.intervals import bootstrap_slopes, slope_interval
from continua.lab.risk.problem import RANGE, ControlledRisk, Population
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most, equals, stays_below
from continua.runs import Curve
from continua.spaces import BSpline

DELTA = 0.05
_NODES = 9
_LAYERS = 8


def lipschitz_controls(count: int) -> torch.Tensor:
    """Profiles that are piecewise linear on nine nodes, with slopes from -4 to 4 and values from -2 to 2."""
    steps = torch.rand(count, _NODES, generator=generator_of(91), dtype=torch.float64) - 0.5
    walk = steps.cumsum(1) + 3.0 * steps[:, :1]
    return 2.0 - ((walk + 2.0).remainder(8.0) - 4.0).abs()  # folded at both ends


def draw_counts(size: int, n: int, draws: int, seed: int) -> np.ndarray:
    """How often each of `size` sequences is among n independent ones, `draws` times."""
    return np.random.default_rng(seed).multinomial(n, np.full(size, 1.0 / size), size=draws)


@final
class SampledRisk(AbstractCell):
    """|J_n - J| for one control and its supremum over classes of M, for many independent samples of size n."""

    size: int
    controls: int
    sizes: tuple[int, ...]
    draws: int

    def measure(self) -> Row:
        paths = lipschitz_controls(self.controls)
        controlled, table = ControlledRisk(Population(self.size), BSpline(_NODES, 1)), []
        with torch.no_grad():
            for c in paths:
                controlled.steer(c)
                table.append(controlled.losses(_LAYERS))
        losses = torch.stack(table).numpy()  # (controls size)
        risks, classes = losses.mean(1), [2**k for k in range(0, int(math.log2(self.controls)) + 1, 2)]
        sup: dict[int, list[list[float]]] = {M: [] for M in classes}
        for n in self.sizes:
            counts = draw_counts(self.size, n, self.draws, n)
            gaps = np.abs(counts @ losses.T / n - risks)  # (draws controls)
            for M in classes:
                sup[M].append(gaps[:, :M].max(1).tolist())
        apart = (paths[:, None] - paths[None]).abs().amax(-1).numpy()
        spread = np.stack([np.abs(losses - own).max(-1) for own in losses])  # row by row: all at once is gigabytes
        lip = float((spread[apart > 0] / apart[apart > 0]).max())
        return {
            "sizes": list(self.sizes),
            "classes": classes,
            "sup": [sup[M] for M in classes],
            "range": float(losses.max() - losses.min()),
            "lipschitz": lip,
        }


def hoeffding(n: int, M: int = 1) -> float:
    """B sqrt(log(2M/delta)/(2n))."""
    return RANGE * math.sqrt(math.log(2.0 * M / DELTA) / (2.0 * n))


def log_cover(r: float) -> float:
    """The logarithm of how many balls of radius r cover the controls, in the largest distance over depth.

    Values from -2 to 2 and slopes up to 4: values rounded to steps of r at nodes r/4 apart, from each node to the next
    one of three; off by r/2 at the nodes and by as much again between them.
    """
    return math.log(max(1.0, 4.0 / r)) + (math.log(3.0) * 4.0 / r if r < 4.0 else 0.0)


def one_scale(n: int, lip: float) -> float:
    """The least over r of 2 Lip r + B sqrt((log N(r) + log(2/delta))/(2n))."""
    radii = np.geomspace(1e-4, 4.0, 400)
    whole = [2.0 * lip * r + RANGE * math.sqrt((log_cover(r) + math.log(2.0 / DELTA)) / (2.0 * n)) for r in radii]
    return min(whole)


def chaining(n: int, lip: float) -> float:
    """32 (Lip/sqrt n) int_0^4 sqrt(log N(r)) dr for what controls differ by, and Hoeffding for one and the deviation.

    M. Wainwright, High-dimensional statistics, theorem 5.22, and the inequality of bounded differences.
    """
    radii = np.geomspace(1e-8, 4.0, 4000)
    values = np.sqrt([max(log_cover(r), 0.0) for r in radii])
    integral = float(np.sum(0.5 * (values[1:] + values[:-1]) * np.diff(radii)))
    return 32.0 * lip * integral / math.sqrt(n) + 2.0 * hoeffding(n)


@final
class RiskSampling(AbstractExperiment):
    """Rates in n, coverage and slack of bounds, for one control, for M of them, and by metric entropy."""

    name = "sampling"
    claim = (
        "the empirical cross-entropy risk approaches that of the population like n^-1/2, within its high-probability "
        "bound, uniformly over M controls, and over Lipschitz controls by metric entropy: a bound of n^-1/3 at one "
        "scale and of n^-1/2 by chaining"
    )
    formula = '|J_n - J| ≤ B sqrt{frac{log(2 M / delta)}{2 n}} " with probability " 1 - delta'
    source = "arXiv 2606.23235; docs/mathematics.md, section 9"

    size: int = 4096
    controls: int = 256
    sizes: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    draws: int = 2000

    def quick(self) -> "RiskSampling":
        return RiskSampling(size=1024, controls=64, draws=400)

    def cells(self) -> Sequence[AbstractCell]:
        return [SampledRisk(self.size, self.controls, self.sizes, self.draws)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        (row,) = rows
        n, classes, sup = self.sizes, row["classes"], np.array(row["sup"])  # (classes sizes draws)
        sizes = np.array(n, dtype=float)[:, None]
        (single,), (uniform,) = (bootstrap_slopes(sizes, sup[k] ** 2) for k in (0, -1))
        bounds = np.array([[hoeffding(size, M) for size in n] for M in classes])
        misses = (sup > bounds[..., None]).mean(-1)
        quantiles = np.quantile(sup, 1.0 - DELTA, axis=-1)
        scales = {
            "one scale": [one_scale(size, row["lipschitz"]) for size in n],
            "chaining": [chaining(size, row["lipschitz"]) for size in n],
        }
        entropy = {f"slope in n: bound, {name}": slope_interval(n, values) for name, values in scales.items()}
        largest = quantiles[-1]
        judgement = all_of(
            equals("slope in n: one control", single, -0.5, 0.2),
            stays_below(f"slope in n: largest of {classes[-1]}", uniform, -0.5, 0.2),
            at_most("share of samples beyond the bound", float(misses.max()), DELTA),
            at_most("losses, range of its bound", row["range"] / RANGE, 1.0),
            *(
                at_most(f"quantile of the largest, of the bound, {name}", float((largest / values).max()), 1.0)
                for name, values in scales.items()
            ),
            equals("slope in n: bound, one scale", entropy["slope in n: bound, one scale"], -1.0 / 3.0, 0.2),
            equals("slope in n: bound, chaining", entropy["slope in n: bound, chaining"], -0.5, 0.2),
        )
        measured = {
            "slope in n: one control": single,
            f"slope in n: largest of {classes[-1]}": uniform,
            **entropy,
            "samples beyond the bound": float(misses.max()),
            "quantile of the bound, by class": (quantiles / bounds).max(1).tolist(),
            **{f"quantile of the bound, {name}": float((largest / values).max()) for name, values in scales.items()},
            "Lipschitz constant": row["lipschitz"],
        }
        series = [Curve.of(f"M = {M}", n, quantiles[k].tolist(), mark="both", colour=k) for k, M in enumerate(classes)]
        series += [
            Curve.of(f"bound, M = {M}", n, bounds[k].tolist(), mark="dashed", colour=k)
            for k, M in enumerate(classes)
            if k in (0, len(classes) - 1)
        ]
        entropies = [Curve.of(f"metric entropy, {name}", n, values, mark="dashed") for name, values in scales.items()]
        largest_series = Curve.of("measured, all controls", n, largest.tolist(), mark="both")
        figures = (
            curves("95 % quantile of |J_n - J|", "samples n", "largest over M controls", series, "xy"),
            curves("Lipschitz controls", "samples n", "sup |J_n - J|", [largest_series, *entropies], "xy"),
        )
        bound = {"slope in n: one control": -0.5, "samples beyond the bound": AtMost(DELTA)}
        return Findings(figures, measured, bound, judgement)
