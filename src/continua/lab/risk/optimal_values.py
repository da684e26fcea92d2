"""`optimal-values`: minima of discrete, sampled problems against that of the continuous population problem."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.errors import SolveError
from continua.core.shapes import Float, Tensor
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.intervals import bootstrap_slopes, slope_interval
from continua.lab.risk.problem import RANGE, ControlledRisk, Population
from continua.lab.risk.sampling import draw_counts
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, at_most, equals, stays_below
from continua.runs import Curve
from continua.spaces import Legendre

_MODES = 2
PRICE = 0.02
"""lam of lam int |zeta|^2: Legendre modes are orthonormal, so that the integral is |c|^2."""
_STARTS = ((1.0, 0.0), (-1.0, 0.5), (2.0, -1.0))


@final
class Minimiser:
    """min_c sum_s w_s loss_s(c) + lam |c|^2, from several starts, by L-BFGS."""

    def __init__(
        self, population: Population, layers: int | None, weights: Float[Tensor, " size"] | None = None
    ) -> None:
        self.controlled, self.layers = ControlledRisk(population, Legendre(_MODES)), layers
        self.weights = weights

    def value(self) -> Float[Tensor, ""]:
        """J at the control as it stands."""
        losses = self.controlled.losses(self.layers)
        data = losses.mean() if self.weights is None else (self.weights * losses).sum()
        return data + PRICE * self.controlled.c.square().sum()

    def at(self, c: Float[Tensor, " modes"]) -> float:
        """J of a control."""
        self.controlled.steer(c)
        with torch.no_grad():
            return float(self.value())

    def from_start(self, start: Sequence[float]) -> tuple[float, Tensor]:
        """The minimum that a start leads to."""
        c = self.controlled.c
        self.controlled.steer(torch.tensor(start, dtype=torch.float64))
        ends = {"max_iter": 60, "tolerance_grad": 1e-7, "tolerance_change": 0.0}
        optimiser = torch.optim.LBFGS([c], **ends, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            found = self.value()
            found.backward()
            return found.detach()

        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
        found = c.detach().clone().flatten()
        return self.at(found), found

    def best(self, starts: Sequence[Sequence[float]] = _STARTS) -> tuple[float, Tensor, float]:
        """The least minimum, where it is, and how far the second start that leads there ends from it."""
        found = sorted((self.from_start(start) for start in starts), key=lambda pair: pair[0])
        if not math.isfinite(found[0][0]):
            raise SolveError("no minimum was found", 1.0, "Begin elsewhere.")
        return *found[0], (found[1][0] - found[0][0] if len(found) > 1 else 0.0)


@final
class DiscreteValues(AbstractCell):
    """min J_L and min J, recovery, stability and range: everything without sampling.

    Stability: J_s is the problem with x(0), or mass, moved by s. Its least value is that of the control as it was, up
    to second order: J_s(theta*) - min J_s = O(s^2), so that least values are Lipschitz in s as J_s(theta*) is.
    """

    size: int
    layers: tuple[int, ...]
    shifts: tuple[float, ...]

    def measure(self) -> Row:
        population = Population(self.size)
        value, c, agree = Minimiser(population, None).best()
        near = (tuple(c.tolist()),)
        found: dict[str, list[float]] = {"values": [], "recovery": [], "agree": [agree]}
        for L in self.layers:
            discrete = Minimiser(population, L)
            least, _, agree = discrete.best((*near, _STARTS[0]))
            found["values"].append(abs(least - value))
            found["recovery"].append(max(discrete.at(c) - least, 1e-300))
            found["agree"].append(agree)
        tilt = population.labels / self.size
        problems = {
            "moved": [Minimiser(Population(self.size, s), None) for s in self.shifts],
            "tilted": [Minimiser(population, None, 1.0 / self.size + s * (tilt - tilt.mean())) for s in self.shifts],
        }
        for name, others in problems.items():
            least = [other.best(near)[0] for other in others]
            found[name] = [abs(own - value) for own in least]
            held = [other.at(c) for other in others]  # the control stays, and is no longer the best
            found[f"{name}_regret"] = [max(a - b, 1e-300) for a, b in zip(held, least, strict=True)]
        start = Minimiser(population, None).at(torch.zeros(_MODES, dtype=torch.float64))
        return {**found, "least": value, "start": float(c.square().sum()), "allowed": start / PRICE}


@final
class SampledValues(AbstractCell):
    """(min J_{L,n} - min J)^2 over draws of n sequences, and (min J_{L,n} - min J_L)^2: what sampling alone does."""

    size: int
    layers: int
    sizes: tuple[int, ...]
    draws: int

    def measure(self) -> Row:
        population = Population(self.size)
        value, c, _ = Minimiser(population, None).best()
        same, *_ = Minimiser(population, self.layers).best((tuple(c.tolist()),))
        squares, own = [], []
        for n in self.sizes:
            counts = torch.tensor(draw_counts(self.size, n, self.draws, 101 * n + self.layers) / n)
            found = [Minimiser(population, self.layers, w).best((tuple(c.tolist()),))[0] for w in counts]
            squares.append([(least - value) ** 2 for least in found])
            own.append([(least - same) ** 2 for least in found])
        return {"layers": self.layers, "sizes": list(self.sizes), "squares": squares, "own": own}


@final
class OptimalValues(AbstractExperiment):
    """Slopes of optimal values in L and n, recovery, stability in initial condition and law, range of the minimiser."""

    name = "optimal-values"
    claim = (
        "the least value of the discrete, sampled problem is within C (eps + n^-1/2) of that of the continuous "
        "population problem; the continuous optimum read at the layers is nearly optimal for them; values move no "
        "faster than initial condition and law; minimisers stay in the range that the price of controls allows"
    )
    formula = '|min J_{L,n} - min J| ≤ C ( epsilon + n^{-1/2} ) , " " int |theta^*|^2 ≤ J_{"data"}(0) / lambda'
    source = "arXiv 2606.23235; docs/mathematics.md, section 9"

    size: int = 256
    layers: tuple[int, ...] = (32, 64, 128, 256)
    shifts: tuple[float, ...] = (0.00125, 0.0025, 0.005, 0.01)
    sizes: tuple[int, ...] = (64, 512, 4096)
    draws: int = 32

    def quick(self) -> "OptimalValues":
        return OptimalValues(size=64, shifts=(0.0025, 0.005, 0.01), draws=8)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            DiscreteValues(self.size, self.layers, self.shifts),
            *(SampledValues(self.size, L, self.sizes, self.draws) for L in (4, 8)),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        row, *sampled = rows
        depth = slope_interval(self.layers, row["values"])
        recovery = slope_interval(self.layers, row["recovery"])
        sizes, squares = np.array(self.sizes, dtype=float), np.array([s["squares"] for s in sampled])
        (samples,) = bootstrap_slopes(sizes[:, None], squares[1])
        # of both depths together: at a fixed L the error of depth, which n does not move, is taken away
        (alone,) = bootstrap_slopes(sizes[:, None], np.concatenate([s["own"] for s in sampled], 1))
        bounds = np.array([[1.0 / s["layers"] + n**-0.5 for n in self.sizes] for s in sampled])
        errors = np.sqrt(squares.mean(-1)) / bounds
        steepest = {
            f"change of the least value per unit {name}": max(d / s for d, s in zip(row[key], self.shifts, strict=True))
            for name, key in (("that x(0) is moved", "moved"), ("of mass that is moved", "tilted"))
        }
        regrets = {
            f"order of what a control that stays loses, {name}": slope_interval(self.shifts, row[f"{key}_regret"])
            for name, key in (("x(0) moved", "moved"), ("mass moved", "tilted"))
        }
        judgement = all_of(
            at_most("minima from two starts, difference", max(row["agree"]), 1e-8),
            equals("slope in L: optimal value", depth, -1.0, 0.2),
            stays_below("slope in L: recovery", recovery, -1.0, 0.2),
            stays_below("slope in n: against the same layers", alone, -0.5, 0.2),
            at_most("error over eps + n^-1/2, last over first", float((errors[:, -1] / errors[:, 0]).max()), 1.0),
            *(equals(name, slope, 2.0, 0.2) for name, slope in regrets.items()),
            at_most("int |theta*|^2 of its range", row["start"] / row["allowed"], 1.0),
            at_least("int |theta*|^2", row["start"], 0.05),
        )
        measured = {
            "slope in L: optimal value": depth,
            "slope in L: recovery": recovery,
            "slope in n: against the same layers": alone,
            "slope in n: optimal value, 8 layers": samples,
            **regrets,
            **{f"slack: {name}": value for name, value in steepest.items()},
            "error over eps + n^-1/2": errors.tolist(),
            "least value": row["least"],
            "agreement of starts": max(row["agree"]),
            "int |theta*|^2": row["start"],
        }
        over = [Curve.of("min J_L - min J", self.layers, row["values"], mark="both")]
        over.append(Curve.of("J_L(theta*) - min J_L", self.layers, row["recovery"], mark="both"))
        many = [
            Curve.of(f"{s['layers']} layers", self.sizes, np.sqrt(np.mean(s["squares"], -1)).tolist(), mark="both")
            for s in sampled
        ]
        many.append(Curve.of("n^-1/2", self.sizes, [n**-0.5 for n in self.sizes], mark="dashed"))
        figures = (
            curves("optimal values over depth", "layers L", "difference", over, "xy"),
            curves("optimal values over samples", "samples n", "root mean square of min J_{L,n} - min J", many, "xy"),
        )
        bound = {
            "slope in L: optimal value": -1.0,
            "slope in n: against the same layers": AtMost(-0.5),
            "int |theta*|^2": AtMost(row["allowed"]),
        }
        bound |= dict.fromkeys(regrets, 2.0) | {f"slack: {name}": AtMost(RANGE) for name in steepest}
        return Findings(figures, measured, bound, judgement)
