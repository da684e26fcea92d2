"""`adamw-compactness`: where parameters, states and adjoints stay while a network is trained for long."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch

from continua.core.shapes import Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import OVERFLOW, AbstractExperiment, Findings
from continua.lab.training import stationary
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.network import Network, Pass
from continua.lab.training.problem import Problem, Training
from continua.lab.training.stationary import Stationary
from continua.lab.training.trained import trained
from continua.lab.verdicts import all_of, at_least, at_most, settled
from continua.operators import AttentionTheta
from continua.optim import parameter_bound
from continua.runs import Lines, Note, Scale, Series

_FAR = Problem(keep=0.0, aim=6.0, sequences=1, trained=1, tokens=4, width=4, key=4)
"""Targets out of reach: training pushes the parameters as far as they may go."""
_EDGE = dataclasses.replace(_FAR, scale=1.0)
"""Targets that parameters reach for up to the edge of the box, some of them: others stay within."""
_NEAR = Problem(keep=1.0, aim=0.3, sequences=1, trained=1, tokens=2, width=8, key=8, beta=2.0)
"""Targets that can be reached: the adjoint may vanish."""


CALM = 0.1
"""A terminal adjoint that has fallen to this share of its start has vanished."""


@final
@dataclasses.dataclass(frozen=True)
class LongTraining(AbstractCell):
    """Largest |b(theta)|, |x| and |p| after each update, all seeds together, and what Lemma 26 allows.

    `pull` is the largest growth of the adjoint over depth, log( mean_i |p_0^i| / mean_i |p_L^i| ), `pull_allowed` what
    the sizes of that very pass allow: adjoints move by the transpose of the tangent map, whose norm in the largest
    token `lipschitz_bound` bounds, and hence that of its transpose in the mean over tokens,

        mean_i |p_r^i| <= (1 + Lip_r / L) mean_i |p_{r+1}^i| ,   Lip_r = lipschitz_bound(theta_r, max |x_r|)
    """

    layers: int
    heads: int
    seeds: int
    updates: int
    problem: Problem
    training: Training

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.drawn(self.layers, self.seeds, self.heads, 0))
        names = ("parameters", "states", "adjoints", "loss", "pull", "pull_allowed")
        seen: dict[str, list[float]] = {name: [] for name in names}

        def watch(update: int, passed: Pass) -> None:
            seen["parameters"].append(max(_size(w, self.training.blockwise) for w in network.parameters))
            seen["states"].append(float(passed.states.norm(dim=-1).max()))
            seen["adjoints"].append(float(passed.adjoints.norm(dim=-1).max()))
            pull, pull_allowed = _pulls(network, passed)
            seen["pull"].append(pull)
            seen["pull_allowed"].append(pull_allowed)
            seen["loss"].append(float(self.problem.loss(passed.states[-1].flatten(0, 1)).mean()))

        start = max(_size(w, self.training.blockwise) for w in network.parameters)
        trained(network, self.training, self.updates, watch)
        allowed = parameter_bound(self.training.betas, self.training.decay, start)
        return {**seen, "allowed": allowed, "log_states": _log_states(self, allowed)}


def _pulls(network: Network, passed: Pass) -> tuple[float, float]:
    """The growth of the mean adjoint over depth, and what bounds it, of the seed that comes nearest to its own bound.

    An adjoint that has vanished has not grown; numbers that have overflowed are beyond any bound.
    """
    means = passed.adjoints.norm(dim=-1).mean(-1)  # (depths seeds sequences)
    radius = float(passed.states.norm(dim=-1).max())
    if not math.isfinite(radius) or not bool(means.isfinite().all()):
        return OVERFLOW, 1.0
    grown = torch.where(means[0] > 0.0, (means[0] / means[-1]).log(), 0.0).amax(-1)
    masses = network.q.new_full(network.places.shape, 1.0 / network.heads)
    bounds = network.operator.lipschitz_bound(AttentionTheta(*network.parameters, p=masses), radius)
    allowed = (bounds * network.step).log1p().sum(0).reshape(grown.shape)
    nearest = int((grown / allowed).argmax())
    return float(grown[nearest]), float(allowed[nearest])


def _size(w: Tensor, blockwise: bool) -> float:
    """|b(theta)|_inf; what has overflowed is as large as can be written."""
    size = float(torch.linalg.matrix_norm(w).max() if blockwise else w.abs().max())
    return size if math.isfinite(size) else OVERFLOW


def _log_states(cell: LongTraining, allowed: float) -> float:
    """The logarithm of R e^{M^2}, the bound of Lemma 20 on states: |A| <= M^2 sup|x|.

    M bounds the Frobenius norm of each matrix. The like bound on adjoints has an exponential in e^{2 M^2} and is beyond
    any number for the M that Lemma 26 allows: what is judged instead are the sizes that were met.
    """
    problem = cell.problem
    M = allowed if cell.training.blockwise else allowed * math.sqrt(problem.key * problem.width)
    return math.log(problem.radius) + M**2


@final
@dataclasses.dataclass(frozen=True)
class AdamWCompactness(AbstractExperiment):
    """Long training of AdamW, Blockwise AdamW and SGD; stationary points; the adjoint at convergence."""

    name: ClassVar[str] = "adamw-compactness"
    claim: ClassVar[str] = (
        "AdamW keeps parameters, states and adjoints in sets that do not depend on the length of training, while SGD "
        "leaves them; it ends at KKT points of its box; as training converges the adjoint vanishes and errors stop "
        "growing"
    )
    formula: ClassVar[str] = (
        '|b(theta_k)|_infty ≤ "max" ( |b(theta_0)|_infty , C / lambda ) , " " C = sqrt{frac{1 - b_1}{1 - b_2}}'
    )
    source: ClassVar[str] = (
        "arXiv 2605.11059, Lemmas 20, 26 and 43, Remark 27, section 4; for KKT points S. Xie, Z. Li, ICML 2024"
    )

    updates: int = 1000
    settle: int = 3000
    converge: int = 800
    seeds: int = 8

    def quick(self) -> "AdamWCompactness":
        return AdamWCompactness(updates=150, settle=600, converge=120, seeds=4)

    def cells(self) -> Sequence[AbstractCell]:
        entry = Training(rate=0.05, decay=0.5)
        block = dataclasses.replace(entry, blockwise=True)
        box = Training(rate=0.03, decay=2.0, eps=1e-8, betas=(0.9, 0.9))
        balls = dataclasses.replace(box, rate=0.05, decay=1.0, blockwise=True)
        ends = [(box, 0.9, 0.03), (box, 0.95, 0.02), (balls, 0.9, 0.05), (balls, 0.95, 0.04)]
        asked = tuple(self.converge * i // 8 for i in range(9))
        converging = Training(rate=0.05, decay=1e-4)
        return [
            LongTraining(8, 4, self.seeds, self.updates, _FAR, entry),
            LongTraining(8, 4, self.seeds, self.updates, _FAR, block),
            LongTraining(8, 4, self.seeds, self.updates, _FAR, dataclasses.replace(entry, rate=0.05, adaptive=False)),
            *(
                Stationary(4, 2, self.settle, _EDGE, dataclasses.replace(rule, betas=(0.9, b2), rate=rate))
                for rule, b2, rate in ends
            ),
            AgainstLimit(16, 4, self.seeds, asked, _NEAR, converging),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        entry, block, plain, *ends, near = rows
        judgements = []
        measured: dict[str, Any] = {}
        bound: dict[str, Any] = {}
        for name, row in (("AdamW", entry), ("Blockwise AdamW", block)):
            top, state, pull = max(row["parameters"]), math.log(max(row["states"])), max(row["pull"])
            share = max(own / most for own, most in zip(row["pull"], row["pull_allowed"], strict=True))
            half = len(row["adjoints"]) // 2
            late = max(row["adjoints"][half:]) / max(row["adjoints"][:half])
            judgements += [
                at_most(f"{name}: largest parameter", top, row["allowed"]),
                at_most(f"{name}: log of the largest state", state, row["log_states"]),
                at_most(f"{name}: log growth of the mean adjoint, of what its pass allows", share, 1.0),
            ]
            measured |= {f"{name}: parameters": top, f"{name}: log states": state, f"{name}: log adjoint growth": pull}
            measured |= {
                f"{name}: log adjoint growth, of its bound": share,
                f"{name}: adjoints, second half over first": late,
            }
            bound |= {f"{name}: parameters": row["allowed"], f"{name}: log states": row["log_states"]}
            bound |= {f"{name}: log adjoint growth": max(row["pull_allowed"])}
            bound[f"{name}: log adjoint growth, of its bound"] = 1.0
        escaped = max(plain["parameters"])
        judgements.append(at_least("SGD: largest parameter", escaped, entry["allowed"]))
        measured["SGD: parameters"] = escaped
        for row in ends:
            judgements += stationary.judged(row)
            measured |= stationary.numbers(row)
            bound |= dict(zip(stationary.numbers(row), (stationary.RESIDUAL, 1.0 + stationary.OUTSIDE), strict=False))
        errors = [math.sqrt(sum(s) / len(s)) for s in near["states"]]
        losses = [sum(s) / len(s) for s in near["losses"]]
        vanish, late = math.sqrt(losses[-1] / losses[0]), errors[-1] / errors[len(errors) // 2]
        judgements += [
            settled("terminal adjoint at the end, of its start", vanish, CALM),
            (at_most if vanish <= CALM else settled)("growth of the error over the second half of training", late, 1.1),
        ]
        measured |= {
            "adjoint at the end": vanish,
            "error growth, second half": late,
            "errors": errors,
            "losses": losses,
        }
        bound |= {"adjoint at the end": CALM, "error growth, second half": 1.1}
        figures = (_sizes(entry, block, plain), stationary.figure(ends), _calm(near, errors))
        return Findings([], figures, measured, bound, all_of(*judgements))


def _sizes(entry: Row, block: Row, plain: Row) -> Lines:
    named = (("AdamW, |theta|_inf", entry), ("Blockwise AdamW, Frobenius", block), ("SGD, |theta|_inf", plain))
    return Lines(
        title="how far parameters go",
        x=Scale("updates"),
        y=Scale("largest |b(theta)|", log=True),
        series=tuple(Series.of(name, range(len(row["parameters"])), _shown(row["parameters"])) for name, row in named),
        notes=(Note(entry["allowed"], "bound of Lemma 26", "y"),),
    )


def _shown(sizes: list[float]) -> list[float]:
    """What has overflowed leaves a gap."""
    return [size if size < 1e3 else math.nan for size in sizes]


def _calm(near: Row, errors: list[float]) -> Lines:
    losses = [math.sqrt(sum(s) / len(s)) for s in near["losses"]]
    return Lines(
        title="error and adjoint while training converges",
        x=Scale("updates"),
        y=Scale("size", log=True),
        series=(
            Series.of("error of the states", near["updates"], errors, mark="both"),
            Series.of("terminal adjoint, root mean square", near["updates"], losses, mark="both"),
        ),
    )
