"""`rms-scaling`: inputs of norm sqrt(d) with beta/d are the same network, and so is its training."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch

from continua.core.shapes import Points, Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.training.problem import Problem, Training
from continua.lab.verdicts import all_of, at_most
from continua.operators import Attention, AttentionTheta
from continua.runs import Lines, Scale, Series
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True)
class Scaled(AbstractCell):
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
        plain, scaled = self._trained(problem, 1.0), self._trained(problem, self.width**0.5)
        gaps = [_gap(a, b) for a, b in zip(plain, scaled, strict=True)]
        return {"width": self.width, "states": gaps[0], "adjoints": gaps[1], "parameters": max(gaps[2:])}

    def _trained(self, problem: Problem, scale: float) -> list[Tensor]:
        places = problem.drawn(self.layers, 1, self.heads, 0)[:, 0]
        law = problem.law()
        parameters = [w[places].requires_grad_() for w in (law.q, law.k, law.v, law.o)]
        optimiser = Training().optimiser(parameters)
        for _ in range(self.updates):
            _, loss, _ = self._pass(problem, parameters, scale)
            for w, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                w.grad = g * self.layers * self.heads
            optimiser.step()
        end, loss, start = self._pass(problem, parameters, scale)
        (adjoint,) = torch.autograd.grad(loss, start)
        return [end.detach() / scale, adjoint * scale, *(w.detach() for w in parameters)]

    def _pass(self, problem: Problem, parameters: list[Tensor], scale: float) -> tuple[Points, Tensor, Points]:
        operator = Attention(self.heads, 4, beta=problem.beta / scale**2, biased=False, measured=True)
        p = torch.full((self.heads,), 1.0 / self.heads, dtype=torch.float64)
        start = x = (scale * problem.start()).requires_grad_()
        for layer in range(self.layers):
            x = x + operator.velocity(AttentionTheta(*(w[layer] for w in parameters), p=p), Cloud(x)) / self.layers
        return x, problem.loss(x / scale).sum(), start


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


@final
@dataclasses.dataclass(frozen=True)
class RMSScaling(AbstractExperiment):
    """Equivariance before and after training, over widths."""

    name: ClassVar[str] = "rms-scaling"
    claim: ClassVar[str] = (
        "inputs of norm sqrt(d) with inverse temperature beta/d give the same network up to the factor sqrt(d), and "
        "the same training once the output is divided by sqrt(d) before the loss: the limit holds in RMS norms"
    )
    formula: ClassVar[str] = "x_r( sqrt{d} x_0 ; beta / d , theta_k ) = sqrt{d} x_r( x_0 ; beta , theta_k )"
    source: ClassVar[str] = "arXiv 2605.11059, Remark 8"

    widths: tuple[int, ...] = (5, 12, 50, 200)
    layers: int = 16
    heads: int = 4
    updates: int = 10

    def quick(self) -> "RMSScaling":
        return RMSScaling(widths=(5, 12, 50), updates=5)

    def cells(self) -> Sequence[AbstractCell]:
        return [Scaled(d, self.layers, self.heads, updates) for updates in (0, self.updates) for d in self.widths]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        before, after = rows[: len(self.widths)], rows[len(self.widths) :]
        measured = {}
        for name, own in (("before training", before), ("after training", after)):
            for kind in ("states", "adjoints", "parameters"):
                measured[f"{kind}, {name}"] = max(row[kind] for row in own)
        judgement = all_of(*(at_most(name, value, 1e-10) for name, value in measured.items()))
        figure = Lines(
            title="gap of the two scalings after training",
            x=Scale("width d", log=True),
            y=Scale("relative gap", log=True),
            series=tuple(
                Series.of(kind, self.widths, [max(row[kind], 1e-18) for row in after], mark="both")
                for kind in ("states", "adjoints", "parameters")
            ),
        )
        return Findings(rows, (figure,), measured, dict.fromkeys(measured, 1e-10), judgement)
