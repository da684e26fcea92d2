"""`dimension-free` and `rms-scaling`: what the embedding dimension does to training."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.shapes import Points, Tensor
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves, rms_series
from continua.lab.intervals import bootstrap_slopes
from continua.lab.sweep import AbstractCell, Row
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.problem import Problem, UpdateRule
from continua.lab.verdicts import all_of, at_most, stays_below
from continua.operators import Attention, AttentionTheta
from continua.runs import Curve, Lines, Scale
from continua.spaces import Cloud


@final
class DimensionFree(AbstractExperiment):
    """Errors after some updates at fixed L and H, over the width d, for two families of problems.

    `same`: one problem in four dimensions, written in the coordinates of R^d in general position. Blockwise AdamW does
    not see coordinates, so its error must not change at all; an update of AdamW moves every entry by about the rate,
    hence a matrix by the root of its size. `full`: tokens, targets and heads of fixed norms that fill R^d, where the
    problem itself changes with d.
    """

    name = "dimension-free"
    claim = (
        "with one second moment for each matrix (Blockwise AdamW) the error does not grow with the embedding "
        "dimension; with one for each entry (AdamW) the bound does"
    )
    formula = 'E[ "sup" |x_r - x(t_r)|^2 ]^{1/2} ≤ C ( L^{-1} + L^{-1/3} H^{-1/2} ) , C " independent of " d'
    source = "arXiv 2605.11059, Lemma 6, Theorem 7 and Appendix B"

    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    layers: int = 16
    heads: int = 4
    seeds: int = 16
    updates: int = 5

    def quick(self) -> "DimensionFree":
        return DimensionFree(widths=(4, 8, 16, 32), seeds=8, updates=3)

    def cells(self) -> Sequence[AbstractCell]:
        rules = (UpdateRule(eps=0.01), UpdateRule(eps=0.01, learning_rate=0.2, blockwise=True))
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
                # Of one problem a seed is the same network at every width: resampled together, seeds cancel.
                (slope,) = bootstrap_slopes(sizes, squares, paired=problem == "same")
                slopes[f"{rule}, {problem} problem: slope of {kind} in d"] = slope
        judged = [stays_below(name, slope, 0.0, 0.1) for name, slope in slopes.items() if name.startswith("Blockwise")]
        bound = {name: AtMost(0.0) for name in slopes if name.startswith("Blockwise")}
        figures = tuple(
            self._figure(kind, problem, families[problem, "AdamW"], families[problem, "Blockwise AdamW"])
            for problem in ("same", "full")
            for kind in ("states", "parameters")
        )
        return Findings(figures, slopes, bound, all_of(*judged))

    def _figure(self, kind: str, problem: str, entry: Sequence[Row], block: Sequence[Row]) -> Lines:
        def series(name: str, rows: Sequence[Row]) -> Curve:
            return rms_series(name, self.widths, np.array([row[kind][0] for row in rows]))

        return Lines(
            title=f"error of {kind} against the dimension, {problem} problem",
            measured=f"L = {self.layers}, H = {self.heads}, {self.seeds} seeds, {self.updates} updates",
            x=Scale("width d", log=True),
            y=Scale("error", log=True),
            curves=(series("AdamW", entry), series("Blockwise AdamW", block)),
        )


@final
class ScaledPair(AbstractCell):
    """Two networks with the same heads: x with beta, and sqrt(d) x with beta/d; trained side by side by autograd.

    The loss of the second sees its output divided by sqrt(d). Relative gaps of states, adjoints (rescaled by sqrt(d))
    and parameters after the updates.
    """

    width: int
    layers: int
    heads: int
    updates: int

    def measure(self) -> Row:
        problem = Problem(width=self.width, key=4, sequences=1, trained=1)
        plain, scaled = self._train(problem, 1.0), self._train(problem, self.width**0.5)
        gaps = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(plain, scaled, strict=True)]
        return {"width": self.width, "states": gaps[0], "adjoints": gaps[1], "parameters": max(gaps[2:])}

    def _train(self, problem: Problem, scale: float) -> list[Tensor]:
        places = problem.draw_atoms(self.layers, 1, self.heads, 0)[:, 0]
        law = problem.law()
        parameters = [w[places].requires_grad_() for w in (law.q, law.k, law.v, law.o)]
        optimiser = UpdateRule().build(parameters)
        for _ in range(self.updates):
            _, loss, _ = self._pass(problem, parameters, scale)
            for w, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                # Before the optimiser: with an eps in its denominator an update depends on the scale of gradients.
                w.grad = g * self.layers * self.heads
            optimiser.step()
        end, loss, start = self._pass(problem, parameters, scale)
        (adjoint,) = torch.autograd.grad(loss, start)
        return [end.detach() / scale, adjoint * scale, *(w.detach() for w in parameters)]

    def _pass(self, problem: Problem, parameters: list[Tensor], scale: float) -> tuple[Points, Tensor, Points]:
        operator = Attention(self.heads, 4, beta=problem.beta / scale**2, biased=False, head_masses=True)
        p = torch.full((self.heads,), 1.0 / self.heads, dtype=torch.float64)
        start = x = (scale * problem.start()).requires_grad_()
        for layer in range(self.layers):
            x = x + operator.velocity(AttentionTheta(*(w[layer] for w in parameters), p=p), Cloud(x)) / self.layers
        return x, problem.loss(x / scale).sum(), start


@final
class RMSScaling(AbstractExperiment):
    """Equivariance before and after training, over widths."""

    name = "rms-scaling"
    claim = (
        "inputs of norm sqrt(d) with inverse temperature beta/d give the same network up to the factor sqrt(d), and "
        "the same training once the output is divided by sqrt(d) before the loss: the limit holds in RMS norms"
    )
    formula = "x_r( sqrt{d} x_0 ; beta / d , theta_k ) = sqrt{d} x_r( x_0 ; beta , theta_k )"
    source = "arXiv 2605.11059, Remark 8"

    widths: tuple[int, ...] = (5, 12, 50, 200)
    layers: int = 16
    heads: int = 4
    updates: int = 10

    def quick(self) -> "RMSScaling":
        return RMSScaling(widths=(5, 12, 50), updates=5)

    def cells(self) -> Sequence[AbstractCell]:
        return [ScaledPair(d, self.layers, self.heads, updates) for updates in (0, self.updates) for d in self.widths]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        before, after = rows[: len(self.widths)], rows[len(self.widths) :]
        measured = {}
        for name, own in (("before training", before), ("after training", after)):
            for kind in ("states", "adjoints", "parameters"):
                measured[f"{kind}, {name}"] = max(row[kind] for row in own)
        judgement = all_of(*(at_most(name, value, 1e-10) for name, value in measured.items()))
        found = tuple(  # a gap of exactly zero has no place on a logarithmic axis
            Curve.of(kind, self.widths, [max(row[kind], 1e-18) for row in after], mark="both")
            for kind in ("states", "adjoints", "parameters")
        )
        figure = curves("gap of the two scalings after training", "width d", "relative gap", found, "xy")
        return Findings((figure,), measured, dict.fromkeys(measured, AtMost(1e-10)), judgement)
