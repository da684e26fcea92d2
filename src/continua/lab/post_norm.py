"""`post-norm`: what normalisation after every layer does to the constants of the depth limit."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch

from continua.lab.cells import AbstractCell, Row
from continua.lab.depth_limit import distance
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.flows import attention_flow, in_ball, random_theta
from continua.lab.verdicts import all_of, at_most
from continua.operators import Attention
from continua.runs import Lines, Scale, Series
from continua.solve import RK4, Direct, Euler, Fixed, Projected, integrate
from continua.spaces import Cloud, Sphere


@final
@dataclasses.dataclass(frozen=True)
class Normed(AbstractCell):
    """L times the distance between L layers and their flow, with steps projected on the sphere and without."""

    scale: float
    layers: int
    starts: int
    width: int = 8

    def measure(self) -> Row:
        operator = Attention(4, self.width, beta=1.0, biased=False, measured=True)
        flow = attention_flow(operator, random_theta(4, self.width, self.width, self.scale, 51))
        x = in_ball((self.starts, 8, self.width), 1.0, 52)
        x = x / x.norm(dim=-1, keepdim=True)
        bound = flow.bind(Cloud(x))
        on = Sphere()
        row = {"scale": self.scale, "layers": self.layers}
        pairs = {
            "plain": (Euler(), RK4()),
            "normed": (Projected(Euler(), on), Projected(RK4(), on, tangent=True)),
        }
        with torch.no_grad():
            for name, (coarse, fine) in pairs.items():
                layers = integrate(bound, bound.initial(), (0.0, 1.0), coarse, Fixed(self.layers), Direct()).x
                exact = integrate(bound, bound.initial(), (0.0, 1.0), fine, Fixed(4 * self.layers), Direct()).x
                row[f"{name}_constant"] = self.layers * float(distance(layers, exact).max())
                row[f"{name}_state"] = float(exact.norm(dim=-1).max())
        return row


@final
@dataclasses.dataclass(frozen=True)
class PostNorm(AbstractExperiment):
    """Constants and sizes of states over the scale of the weights."""

    name: ClassVar[str] = "post-norm"
    claim: ClassVar[str] = (
        "normalisation after every layer keeps states bounded where they grow exponentially without it, and so "
        "improves the constant of the depth limit"
    )
    formula: ClassVar[str] = '|x(1)| ≤ R e^{|O^T V|} " without, " |x(1)| = R " with normalisation"'
    source: ClassVar[str] = "arXiv 2605.11059, section 1.1"

    scales: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    layers: int = 256
    starts: int = 128

    def quick(self) -> "PostNorm":
        return PostNorm(scales=(1.5, 2.0, 2.5, 3.0), layers=64, starts=32)

    def cells(self) -> Sequence[AbstractCell]:
        return [Normed(scale, self.layers, self.starts) for scale in self.scales]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        ratios = [row["normed_constant"] / row["plain_constant"] for row in rows]
        states = max(abs(row["normed_state"] - 1.0) for row in rows)
        judgement = all_of(
            at_most("normed states, distance from the sphere", states, 1e-12),
            at_most("constant with over constant without, largest weights", ratios[-1], 1.0),
        )
        measured = {"constants, with": [row["normed_constant"] for row in rows]}
        measured |= {"constants, without": [row["plain_constant"] for row in rows], "ratio": ratios}
        measured |= {"largest state without": [row["plain_state"] for row in rows]}

        def figure(title: str, kind: str, label: str) -> Lines:
            return Lines(
                title=title,
                x=Scale("Frobenius norm of each matrix"),
                y=Scale(label, log=True),
                series=(
                    Series.of("without", self.scales, [row[f"plain_{kind}"] for row in rows], mark="both"),
                    Series.of(
                        "projected on the sphere", self.scales, [row[f"normed_{kind}"] for row in rows], mark="both"
                    ),
                ),
            )

        figures = (
            figure("constant of the depth limit", "constant", "L x distance"),
            figure("largest state at depth 1", "state", "|x(1)|"),
        )
        return Findings(rows, figures, measured, {"largest ratio": 1.0}, judgement)
