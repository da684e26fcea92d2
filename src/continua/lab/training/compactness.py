"""`adamw-compactness`: where parameters, states and adjoints stay while a network is trained for long."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch

from continua.core.shapes import Tensor
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.network import Network, Pass, trained
from continua.lab.training.problem import Problem, Training
from continua.lab.verdicts import Judgement, Word, all_of, at_least, at_most
from continua.optim import parameter_bound
from continua.runs.figures import Lines, Note, Scale, Series

_FAR = Problem(keep=0.0, aim=6.0, sequences=1, trained=1, tokens=4, width=4, key=4)
"""Targets out of reach: training pushes the parameters as far as they may go."""
_EDGE = dataclasses.replace(_FAR, aim=2.0, scale=1.5)
"""Targets within reach of some parameters and not of others: stationary points on the boundary of the box."""
_NEAR = Problem(keep=1.0, aim=0.3, sequences=1, trained=1, tokens=2, width=8, key=8, beta=2.0)
"""Targets that can be reached: the adjoint may vanish."""


_HUGE = 1e300


@final
@dataclasses.dataclass(frozen=True)
class LongTraining(AbstractCell):
    """Largest |b(theta)|, |x| and |p| after each update, all seeds together, and what Lemma 26 allows."""

    layers: int
    heads: int
    seeds: int
    updates: int
    problem: Problem
    training: Training

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.drawn(self.layers, self.seeds, self.heads, 0))
        seen: dict[str, list[float]] = {"parameters": [], "states": [], "adjoints": [], "terminal": [], "loss": []}

        def watch(update: int, passed: Pass) -> None:
            seen["parameters"].append(max(_size(w, self.training.blockwise) for w in network.parameters))
            seen["states"].append(float(passed.states.norm(dim=-1).max()))
            seen["adjoints"].append(float(passed.adjoints.norm(dim=-1).max()))
            seen["terminal"].append(float(passed.adjoints[-1].norm(dim=-1).max()))
            seen["loss"].append(float(self.problem.loss(passed.states[-1].flatten(0, 1)).mean()))

        start = max(_size(w, self.training.blockwise) for w in network.parameters)
        trained(network, self.training, self.updates, watch)
        allowed = parameter_bound(self.training.betas, self.training.decay, start)
        return {**seen, "allowed": allowed, **_growth(self, allowed)}


def _size(w: Tensor, blockwise: bool) -> float:
    """|b(theta)|_inf; what has overflowed is as large as can be written."""
    size = float(torch.linalg.matrix_norm(w).max() if blockwise else w.abs().max())
    return size if math.isfinite(size) else _HUGE


def _growth(cell: LongTraining, allowed: float) -> dict[str, float]:
    """Logarithms of the bounds of Lemma 20: R e^{M^2} on states, and a factor e^c on adjoints.

    M bounds the Frobenius norm of each matrix, so |A| <= M^2 sup|x|, and with R the bound on states, T = beta R^2 M^2,
    |Psi| <= M^2 ( T + (1 + 2T) e^{2T} ) sup|p|: the tilted density is at most e^{2T}.
    """
    problem = cell.problem
    M = allowed if cell.training.blockwise else allowed * math.sqrt(problem.key * problem.width)
    log_state = math.log(problem.radius) + M**2
    T = problem.beta * M**2 * math.exp(min(2 * log_state, 700.0))
    factor = M**2 * (T + (1 + 2 * T) * math.exp(min(2 * T, 700.0)))
    return {"log_states": log_state, "log_adjoints": min(factor, _HUGE)}


@final
@dataclasses.dataclass(frozen=True)
class Stationary(AbstractCell):
    """AdamW with rates that fall: how far its end is from a KKT point of min loss over |theta| <= 1/lam.

    residual = | theta - P(theta - g) | / | g at the start | ,   P the projection on the box (blockwise: on balls)
    """

    layers: int
    heads: int
    updates: int
    problem: Problem
    training: Training

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.drawn(self.layers, 1, self.heads, 0))
        optimiser = self.training.optimiser(network.parameters)
        residuals: list[float] = []
        edges: list[float] = []
        with torch.no_grad():
            for update in range(self.updates + 1):
                network.both()
                residuals.append(max(self._residual(w) for w in network.parameters))
                limit = 1.0 / self.training.decay
                edges.append(max(_size(w, self.training.blockwise) for w in network.parameters) / limit)
                optimiser.param_groups[0]["lr"] = self.training.rate * min(
                    1.0, (1.0 - update / self.updates) ** 2 + 1e-6
                )
                optimiser.step()
        return {"residuals": residuals, "edges": edges, "blockwise": self.training.blockwise}

    def _residual(self, w: Tensor) -> float:
        assert w.grad is not None
        limit, moved = 1.0 / self.training.decay, w - w.grad
        if not self.training.blockwise:
            return float((w - moved.clamp(-limit, limit)).abs().max())
        norm = torch.linalg.matrix_norm(moved, keepdim=True)
        return float(torch.linalg.matrix_norm(w - moved * (limit / norm.clamp_min(limit))).max())


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
        return AdamWCompactness(updates=150, settle=500, converge=120, seeds=4)

    def cells(self) -> Sequence[AbstractCell]:
        entry = Training(rate=0.05, decay=0.5)
        block = dataclasses.replace(entry, blockwise=True)
        still = Training(rate=0.05, decay=0.5, eps=1e-8, betas=(0.9, 0.9))  # b1 = b2: no update is longer than 1
        asked = tuple(self.converge * i // 8 for i in range(9))
        converging = Training(rate=0.05, decay=1e-4)
        return [
            LongTraining(8, 4, self.seeds, self.updates, _FAR, entry),
            LongTraining(8, 4, self.seeds, self.updates, _FAR, block),
            LongTraining(8, 4, self.seeds, self.updates, _FAR, dataclasses.replace(entry, rate=0.05, adaptive=False)),
            Stationary(4, 2, self.settle, _EDGE, still),
            Stationary(4, 2, self.settle, _EDGE, dataclasses.replace(still, blockwise=True, rate=0.3)),
            AgainstLimit(16, 4, self.seeds, asked, _NEAR, converging),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        entry, block, plain, box, balls, near = rows
        judgements = []
        measured: dict[str, Any] = {}
        bound: dict[str, Any] = {}
        for name, row in (("AdamW", entry), ("Blockwise AdamW", block)):
            top, state = max(row["parameters"]), math.log(max(row["states"]))
            pull = max(math.log(p / q) for p, q in zip(row["adjoints"], row["terminal"], strict=True))
            judgements += [
                at_most(f"{name}: largest parameter", top, row["allowed"]),
                at_most(f"{name}: log of the largest state", state, row["log_states"]),
                at_most(f"{name}: log growth of the adjoint", pull, row["log_adjoints"]),
            ]
            measured |= {f"{name}: parameters": top, f"{name}: log states": state, f"{name}: log adjoint growth": pull}
            bound |= {f"{name}: parameters": row["allowed"], f"{name}: log states": row["log_states"]}
            bound[f"{name}: log adjoint growth"] = row["log_adjoints"]
        escaped = max(plain["parameters"])
        judgements.append(at_least("SGD: largest parameter", escaped, entry["allowed"]))
        measured["SGD: parameters"] = escaped
        for name, row in (("box", box), ("balls", balls)):
            fall = row["residuals"][-1] / row["residuals"][0]
            judgements.append(_settled(f"KKT residual in {name}, of its start", fall, 0.05))
            measured |= {f"KKT residual, {name}": fall, f"largest parameter of 1/lam, {name}": row["edges"][-1]}
            bound[f"KKT residual, {name}"] = 0.05
        errors = [math.sqrt(sum(s) / len(s)) for s in near["states"]]
        losses = [sum(s) / len(s) for s in near["losses"]]
        vanish, late = math.sqrt(losses[-1] / losses[0]), errors[-1] / errors[len(errors) // 2]
        judgements += [
            at_most("terminal adjoint at the end, of its start", vanish, 0.1),
            at_most("growth of the error over the second half of training", late, 1.1),
        ]
        measured |= {
            "adjoint at the end": vanish,
            "error growth, second half": late,
            "errors": errors,
            "losses": losses,
        }
        bound |= {"adjoint at the end": 0.1, "error growth, second half": 1.1}
        figures = (_sizes(entry, block, plain), _stationary(box, balls), _calm(near, errors))
        return Findings([], figures, measured, bound, all_of(*judgements))


def _settled(name: str, value: float, limit: float) -> Judgement:
    """A limit point is claimed to be a KKT point: before the limit is reached nothing is said."""
    if value <= limit:
        return Judgement(Word.HOLDS, f"{name} = {value:.3g} <= {limit:.3g}")
    return Judgement(Word.INCONCLUSIVE, f"{name} = {value:.3g} > {limit:.3g}: training has not converged")


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


def _stationary(box: Row, balls: Row) -> Lines:
    named = (("AdamW, box", box), ("Blockwise AdamW, balls", balls))
    return Lines(
        title="distance from a KKT point",
        caption="|theta - P(theta - g)| while the rate falls to zero.",
        x=Scale("updates"),
        y=Scale("residual", log=True),
        series=tuple(Series.of(name, range(len(row["residuals"])), row["residuals"]) for name, row in named),
    )


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
