"""`estimator-bias`: bias and variance of estimators of the token integral against the number of their nodes."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import identity_theta, in_ball, softmax_mean
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most, equals
from continua.operators import AbstractTokenIntegral, Attention, Binding, Debiased, Nystrom, Sobol, Subset
from continua.runs import Curve
from continua.spaces import Cloud

_BETA = 3.0
_PART = 1024
"""Sequences, all of the same tokens, that draw their nodes in one call."""


def estimators(m: int) -> dict[str, AbstractTokenIntegral]:
    """What is compared at m nodes."""
    return {
        "subset": Subset(m),
        "subset, Sobol": Subset(m, draw=Sobol()),
        "debiased": Debiased(m),
        "Nystrom": Nystrom(m),
    }


@final
class EstimatorErrors(AbstractCell):
    """Mean and spread of one output of attention over independent draws, at every number of nodes.

    One sequence of `tokens`, copied: every copy draws for itself. The debiased estimate draws one level for a whole
    call, so that its copies are grouped: the error of its mean is taken over calls.
    """

    tokens: int
    nodes: tuple[int, ...]
    calls: int

    def measure(self) -> Row:
        # Sorted along the first axis: a signal, as low-discrepancy nodes expect it.
        points = in_ball((1, self.tokens, 2), 1.0, 45)
        points = points[:, points[0, :, 0].argsort()]
        exact = float(softmax_mean(points[:, -1:], Cloud(points), _BETA)[0, 0, 0])
        found: dict[str, dict[str, list[float]]] = {}
        for m in self.nodes:
            for name, integral in estimators(m).items():
                drawn = np.array([self._draw(points, integral, seed) for seed in range(self.calls)])  # (calls copies)
                row = found.setdefault(name, {"bias": [], "deviation": [], "error": []})
                row["bias"].append(float(drawn.mean()) - exact)
                row["deviation"].append(float(drawn.std()))
                row["error"].append(float(drawn.mean(1).std(ddof=1)) / self.calls**0.5)
        return {"found": found, "exact": exact}

    def _draw(self, points: torch.Tensor, integral: AbstractTokenIntegral, seed: int) -> np.ndarray:
        """The first coordinate of the last token's output, for every copy."""
        copies = 1 if isinstance(integral, Nystrom) else _PART if not isinstance(integral, Debiased) else 64
        cloud = Cloud(points.expand(copies, -1, -1).contiguous())
        operator = Attention(1, 2, beta=_BETA, biased=False, integral=integral)
        bound = operator.bind(Binding(cloud, seed=seed))
        queries = Cloud(cloud.points[:, -1:])
        asked = queries if not isinstance(integral, Nystrom) else cloud
        with torch.no_grad():
            return bound.velocity(identity_theta(2), asked, cloud)[:, -1, 0].numpy()


@final
class EstimatorBias(AbstractExperiment):
    """Slopes of bias and deviation in m; the debiased estimate within its own error."""

    name = "estimator-bias"
    claim = (
        "attention over a random subset of m tokens is biased like 1/m, through its normaliser, and spread like "
        "m^-1/2; the debiased estimate has no bias; Nystrom is deterministic"
    )
    formula = "E y_m - y = O(1/m) , (E |y_m - y|^2)^{1/2} = O(m^{-1/2})"
    source = "docs/mathematics.md, section 6; C.-H. Rhee, P. W. Glynn, Oper. Res. 63 (2015)"

    tokens: int = 1024
    nodes: tuple[int, ...] = (8, 16, 32, 64)
    calls: int = 300

    def quick(self) -> "EstimatorBias":
        return EstimatorBias(tokens=256, nodes=(4, 8, 16, 32), calls=40)

    def cells(self) -> Sequence[AbstractCell]:
        return [EstimatorErrors(self.tokens, self.nodes, self.calls)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        found = rows[0]["found"]
        plain, free = found["subset"], found["debiased"]
        bias = slope_interval(self.nodes, [abs(b) for b in plain["bias"]])
        spread = slope_interval(self.nodes, plain["deviation"])
        sure = max(e / abs(b) for b, e in zip(plain["bias"], plain["error"], strict=True))
        off = max(abs(b) / e for b, e in zip(free["bias"], free["error"], strict=True))
        still = max(found["Nystrom"]["deviation"])
        judgement = all_of(
            equals("slope in m: bias of the subset", bias, -1.0, 0.2),
            equals("slope in m: deviation of the subset", spread, -0.5, 0.2),
            at_most("error of the bias, of the bias", sure, 0.2),
            at_most("bias of the debiased estimate, in its standard errors", off, 4.0),
            at_most("deviation of Nystrom", still, 1e-12),
        )
        measured = {
            "slope in m: bias of the subset": bias,
            "slope in m: deviation of the subset": spread,
            "m x bias of the subset": [m * b for m, b in zip(self.nodes, plain["bias"], strict=True)],
            "debiased: bias in standard errors": off,
            "debiased: bias, of the subset's": [b / p for b, p in zip(free["bias"], plain["bias"], strict=True)],
            "debiased: deviation, of the subset's": [
                a / b for a, b in zip(free["deviation"], plain["deviation"], strict=True)
            ],
            "Sobol: deviation": found["subset, Sobol"]["deviation"],
            "Nystrom: error": found["Nystrom"]["bias"],
        }
        biases = [
            Curve.of(name, self.nodes, [max(abs(b), 1e-9) for b in row["bias"]], mark="both")
            for name, row in found.items()
        ]
        spreads = [
            Curve.of(name, self.nodes, row["deviation"], mark="both")
            for name, row in found.items()
            if name != "Nystrom"
        ]
        figures = (
            curves("bias of attention", "nodes m", "|mean - exact|", biases, "xy"),
            curves("deviation of attention", "nodes m", "standard deviation", spreads, "xy"),
        )
        bound = {"slope in m: bias of the subset": -1.0, "debiased: bias in standard errors": AtMost(4.0)}
        return Findings(figures, measured, bound, judgement)
