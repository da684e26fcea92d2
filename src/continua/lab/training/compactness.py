"""`adamw-compactness`: where parameters, states and adjoints stay while a network is trained for long."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch

from continua.core.shapes import Tensor
from continua.lab.experiment import OVERFLOW, AbstractExperiment, AtMost, Findings, curves
from continua.lab.sweep import AbstractCell, Row
from continua.lab.training.cells import AgainstLimit
from continua.lab.training.networks import Network, NetworkPass, train
from continua.lab.training.problem import Problem, UpdateRule
from continua.lab.training.update_stretch import UpdateStretch
from continua.lab.verdicts import Judgement, all_of, at_least, at_most, once_converged
from continua.operators import AttentionTheta
from continua.optim import parameter_bound
from continua.runs import Curve, Lines, Note, Scale

_FAR = Problem(keep=0.0, aim=6.0, sequences=1, trained=1, tokens=4, width=4, key=4)
"""Targets out of reach: training pushes the parameters as far as they may go."""
_EDGE = dataclasses.replace(_FAR, scale=1.0)
"""Targets that parameters reach for up to the edge of the box, some of them: others stay within."""
_NEAR = Problem(keep=1.0, aim=0.3, sequences=1, trained=1, tokens=2, width=8, key=8, beta=2.0)
"""Targets that can be reached: the adjoint may vanish."""
RESIDUAL = 0.02
"""The most that the residual at the end may be, of the largest gradient at the end."""
OUTSIDE = 0.02
"""The most that |b(theta)| may be above 1/lam at the end."""
CALM = 0.1
"""A terminal adjoint that has fallen to this share of its start has vanished."""
STILL = 0.1
"""Converged: parameters that move by less than this share of their rates, a loss that falls by less over half of it."""


@final
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
    rule: UpdateRule

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.draw_atoms(self.layers, self.seeds, self.heads, 0))
        names = ("parameters", "states", "adjoints", "loss", "pull", "pull_allowed")
        seen: dict[str, list[float]] = {name: [] for name in names}

        def watch(update: int, passed: NetworkPass) -> None:
            seen["parameters"].append(max(_size(w, self.rule.blockwise) for w in network.parameters))
            seen["states"].append(float(passed.states.norm(dim=-1).max()))
            seen["adjoints"].append(float(passed.adjoints.norm(dim=-1).max()))
            pull, pull_allowed = _pulls(network, passed)
            seen["pull"].append(pull)
            seen["pull_allowed"].append(pull_allowed)
            seen["loss"].append(float(self.problem.loss(passed.states[-1].flatten(0, 1)).mean()))

        start = max(_size(w, self.rule.blockwise) for w in network.parameters)
        train(network, self.rule, self.updates, watch)
        allowed = parameter_bound(self.rule.betas, self.rule.weight_decay, start)
        return {**seen, "allowed": allowed, "log_states": _log_states(self, allowed)}


def _pulls(network: Network, passed: NetworkPass) -> tuple[float, float]:
    """The growth of the mean adjoint over depth, and what bounds it, of the seed that comes nearest to its own bound.

    An adjoint that has vanished has not grown; numbers that have overflowed are beyond any bound.
    """
    means = passed.adjoints.norm(dim=-1).mean(-1)  # (depths seeds sequences)
    radius = float(passed.states.norm(dim=-1).max())
    if not math.isfinite(radius) or not bool(means.isfinite().all()):
        return OVERFLOW, 1.0
    grown = torch.where(means[0] > 0.0, (means[0] / means[-1]).log(), 0.0).amax(-1)
    masses = network.parameters[0].new_full(network.places.shape, 1.0 / network.heads)
    bounds = network.operator.lipschitz_bound(AttentionTheta(*network.parameters, p=masses), radius)
    allowed = (bounds * network.step).log1p().sum(0).reshape(grown.shape)
    nearest = int((grown / allowed).argmax())
    return float(grown[nearest]), float(allowed[nearest])


def _size(w: Tensor, blockwise: bool) -> float:
    """|b(theta)|_inf; what has overflowed is as large as can be written."""
    size = float(_sizes(w, blockwise).max())
    return size if math.isfinite(size) else OVERFLOW


def _sizes(w: Tensor, blockwise: bool) -> Tensor:
    """|b| of every block: a matrix by its Frobenius norm, or every entry by itself."""
    return torch.linalg.matrix_norm(w) if blockwise else w.abs()


def _log_states(cell: LongTraining, allowed: float) -> float:
    """The logarithm of R e^{M^2}, the bound of Lemma 20 on states: |A| <= M^2 sup|x|.

    M bounds the Frobenius norm of each matrix. The like bound on adjoints has an exponential in e^{2 M^2} and is beyond
    any number for the M that Lemma 26 allows: what is judged instead are the sizes that were met.
    """
    problem = cell.problem
    M = allowed if cell.rule.blockwise else allowed * math.sqrt(problem.key * problem.width)
    return math.log(problem.radius) + M**2


@final
class Stationary(AbstractCell):
    """AdamW with rates that fall: how far its end is from a KKT point of min loss over |b(theta)| <= 1/lam.

        residual = | theta - P(theta - g) | ,   P the projection on the box (blockwise: on balls)

    It vanishes at KKT points and nowhere else: within the set g = 0, on its edge g points inwards. The rate is constant
    over the first half of the updates and falls to zero over the second. A limit is reached only if parameters move
    more slowly than the second moment forgets: rate * decay well below 1 - b2. Whether one is reached is told apart
    from the residual by `moves`, how far parameters went over the last quarter, of the sum of their rates: updates are
    of size 1, and cancel the decay where parameters stand still.
    """

    layers: int
    heads: int
    updates: int
    problem: Problem
    rule: UpdateRule

    def measure(self) -> Row:
        network = Network(self.problem, self.problem.draw_atoms(self.layers, 1, self.heads, 0))
        optimiser = self.rule.build(network.parameters)
        seen: list[Distance] = []
        mark, rates = [w.clone() for w in network.parameters], 0.0
        with torch.no_grad():
            for update in range(self.updates + 1):
                network.both()
                seen.append(self.distance(network.parameters))
                if update == 3 * self.updates // 4:
                    mark, rates = [w.clone() for w in network.parameters], 0.0
                left = 2.0 * (1.0 - update / self.updates)
                rate = self.rule.learning_rate * min(1.0, left**2)
                optimiser.param_groups[0]["lr"] = rate
                optimiser.step()
                rates += rate
        pairs = zip(network.parameters, mark, strict=True)
        moves = max(_size(w - before, self.rule.blockwise) for w, before in pairs) / rates
        whole = {name: [getattr(one, name) for one in seen] for name in Distance._fields}
        farthest = parameter_bound(self.rule.betas, self.rule.weight_decay, seen[0].size / self.rule.weight_decay)
        sizes = {"moves": moves, "farthest": farthest * self.rule.weight_decay}
        return {**whole, **sizes, "blockwise": self.rule.blockwise, "betas": list(self.rule.betas)}

    def distance(self, parameters: list[Tensor]) -> "Distance":
        """How far parameters with these gradients are from a KKT point."""
        limit, block = 1.0 / self.rule.weight_decay, self.rule.blockwise
        residual = gradient = size = 0.0
        inside: list[Tensor] = []
        for w in parameters:
            assert w.grad is not None
            projected = _project(w - w.grad, limit, block)
            sizes = _sizes(w, block) / limit
            residual = max(residual, float(_sizes(w - projected, block).max()))
            gradient = max(gradient, float(_sizes(w.grad, block).max()))
            size = max(size, float(sizes.max()))
            inside.append((sizes < 1.0 - OUTSIDE).flatten())
        return Distance(residual, gradient, size, 1.0 - float(torch.cat(inside).double().mean()))


class Distance(NamedTuple):
    """The residual, the largest gradient, the largest |b(theta)| of 1/lam, and the share of them at the edge."""

    residual: float
    gradient: float
    size: float
    edge: float


def _project(w: Tensor, limit: float, blockwise: bool) -> Tensor:
    if not blockwise:
        return w.clamp(-limit, limit)
    return w * (limit / torch.linalg.matrix_norm(w, keepdim=True).clamp_min(limit))


@final
class AdamWCompactness(AbstractExperiment):
    """Long training of AdamW, Blockwise AdamW and SGD; stationary points; the adjoint at convergence."""

    name = "adamw-compactness"
    claim = (
        "AdamW keeps parameters, states and adjoints in sets that do not depend on the length of training, while SGD "
        "leaves them; it ends at KKT points of its box; as training converges the adjoint vanishes and errors stop "
        "growing; updates are Lipschitz in the gradients, with the constant of Lemma 43 and 1/eps"
    )
    formula = '|b(theta_k)|_infty ≤ "max" ( |b(theta_0)|_infty , C / lambda ) , " " C = sqrt{frac{1 - b_1}{1 - b_2}}'
    source = (
        "arXiv 2605.11059, Lemmas 20, 26, 28, 43 and 44, Remark 27, section 4; for KKT points S. Xie, Z. Li, ICML 2024"
    )

    updates: int = 1000
    settle: int = 3000
    converge: int = 800
    seeds: int = 8
    plain: int = 500
    climb: int = 80

    def quick(self) -> "AdamWCompactness":
        return AdamWCompactness(updates=100, settle=600, converge=100, seeds=4, climb=40)

    def cells(self) -> Sequence[AbstractCell]:
        entry = UpdateRule(learning_rate=0.05, weight_decay=1.0)
        block = dataclasses.replace(entry, blockwise=True)
        # A rate at which the loss falls from update to update: parameters leave the set, and not by an instability.
        plain = dataclasses.replace(entry, adaptive=False, learning_rate=0.004)
        # Small eps: otherwise g / (|g| + eps) fades as g does, and the edge of the box is never reached.
        box = UpdateRule(learning_rate=0.03, weight_decay=2.0, eps=1e-8, betas=(0.9, 0.9))
        balls = dataclasses.replace(box, learning_rate=0.05, weight_decay=1.0, blockwise=True)
        ends = [(box, 0.9, 0.03), (box, 0.95, 0.02), (balls, 0.9, 0.05), (balls, 0.95, 0.04)]
        milestones = tuple(self.converge * i // 8 for i in range(9))
        converging = UpdateRule(learning_rate=0.05, weight_decay=1e-4)
        return [
            *(LongTraining(4, 4, self.seeds, self.updates, _FAR, rule) for rule in (entry, block)),
            LongTraining(4, 4, 1, self.plain, _FAR, plain),
            *(
                Stationary(4, 2, self.settle, _EDGE, dataclasses.replace(rule, betas=(0.9, b2), learning_rate=rate))
                for rule, b2, rate in ends
            ),
            AgainstLimit(16, 4, self.seeds, milestones, _NEAR, converging),
            *(UpdateStretch(UpdateRule(blockwise=blockwise), 5, 24, self.climb) for blockwise in (False, True)),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        entry, block, plain, *ends, near, entrywise, by_block = rows
        parts = [
            _judge_sizes("AdamW", entry),
            _judge_sizes("Blockwise AdamW", block),
            _judge_escape(plain, entry["allowed"]),
            *(_judge_end(row) for row in ends),
            _judge_convergence(near),
            _judge_stretch("AdamW", entrywise),
            _judge_stretch("Blockwise AdamW", by_block),
        ]
        measured = {name: value for part in parts for name, value in part.measured.items()}
        bound = {name: value for part in parts for name, value in part.bound.items()}
        figures = (_sizes_figure(entry, block, plain), _residual_figure(ends), _convergence_figure(near))
        return Findings(figures, measured, bound, all_of(*(one for part in parts for one in part.judgements)))


class _Part(NamedTuple):
    """What one kind of cell contributes to the findings."""

    judgements: list[Judgement]
    measured: dict[str, Any]
    bound: dict[str, Any]


def _judge_sizes(name: str, row: Row) -> _Part:
    """One long training against what the lemmas allow; for states that is beyond reach, and told as slack."""
    top, state = max(row["parameters"]), math.log(max(row["states"]))
    share = max(own / most for own, most in zip(row["pull"], row["pull_allowed"], strict=True))
    half = len(row["adjoints"]) // 2
    judgements = [
        at_most(f"{name}: largest parameter", top, row["allowed"]),
        at_most(f"{name}: log growth of the mean adjoint, of what its pass allows", share, 1.0),
    ]
    measured = {
        f"{name}: parameters": top,
        f"{name}: log states": state,
        f"{name}: log adjoint growth": max(row["pull"]),
        f"{name}: log adjoint growth, of its bound": share,
        f"{name}: adjoints, second half over first": max(row["adjoints"][half:]) / max(row["adjoints"][:half]),
    }
    bound = {
        f"{name}: parameters": AtMost(row["allowed"]),
        f"{name}: log states": AtMost(row["log_states"]),
        f"{name}: log adjoint growth": AtMost(max(row["pull_allowed"])),
        f"{name}: log adjoint growth, of its bound": AtMost(1.0),
    }
    return _Part(judgements, measured, bound)


def _judge_escape(row: Row, allowed: float) -> _Part:
    """SGD, while its loss only falls, goes where AdamW of the same decay cannot."""
    losses = row["loss"]
    first_rise = next((k for k in range(1, len(losses)) if not losses[k] < losses[k - 1]), len(losses))
    escaped = max(row["parameters"][:first_rise])
    name = "SGD: largest parameter while the loss falls"
    measured = {name: escaped, "SGD: updates until the loss rises": first_rise, "SGD: loss": losses[first_rise - 1]}
    return _Part([at_least(name, escaped, allowed)], measured, {})


def _judge_end(row: Row) -> _Part:
    """A limit point is claimed to be a KKT point; while parameters still move nothing is said."""
    residual, size = row["residual"][-1] / row["gradient"][-1], row["size"][-1]
    first, second = (
        f"{what}, {_label(row)}" for what in ("KKT residual of the gradient", "largest parameter of 1/lam")
    )
    moves = 0.0 if residual <= RESIDUAL else row["moves"]
    judgements = [
        once_converged(first, residual, RESIDUAL, row["moves"], STILL),
        once_converged(second, size, 1.0 + OUTSIDE, moves, STILL),
        at_most(f"{second}, at any time", max(row["size"]), row["farthest"]),
    ]
    measured = {first: residual, second: size, f"share of parameters at the edge, {_label(row)}": row["edge"][-1]}
    measured[f"movement at the end, {_label(row)}"] = row["moves"]
    return _Part(judgements, measured, {first: RESIDUAL, second: 1.0 + OUTSIDE})


def _judge_stretch(name: str, row: Row) -> _Part:
    """Lemmas 28 and 44: parameters move apart no further than gradients and starts allow."""
    judgements = [
        at_most(f"{name}: change of the parameters, of what gradients allow", row["found"], 1.0),
        at_most(f"{name}: the formula of its updates against the optimiser", row["parity"], 1e-12),
    ]
    measured = {f"{name}: change of the parameters, of what gradients allow": row["found"]}
    return _Part(judgements, measured, {name: AtMost(1.0) for name in measured})


def _judge_convergence(near: Row) -> _Part:
    """As the adjoint vanishes, errors stop growing; while the loss still falls nothing is said."""
    errors, losses = _root_means(near["states"]), [sum(s) / len(s) for s in near["losses"]]
    vanish, late = math.sqrt(losses[-1] / losses[0]), errors[-1] / errors[len(errors) // 2]
    falls = 1.0 - losses[-1] / losses[len(losses) // 2]
    judgements = [
        once_converged("terminal adjoint at the end, of its start", vanish, CALM, falls, STILL),
        once_converged("growth of the error over the second half", late, 1.1, 0.0 if vanish <= CALM else falls, STILL),
    ]
    measured = {"adjoint at the end": vanish, "error growth, second half": late, "errors": errors, "losses": losses}
    return _Part(judgements, measured, {"adjoint at the end": CALM, "error growth, second half": 1.1})


def _root_means(squares: Sequence[Sequence[float]]) -> list[float]:
    return [math.sqrt(sum(s) / len(s)) for s in squares]


def _label(row: Row) -> str:
    """`box, b = (0.9, 0.9)`, or balls."""
    b1, b2 = row["betas"]
    return f"{'balls' if row['blockwise'] else 'box'}, b = ({b1:g}, {b2:g})"


def _sizes_figure(entry: Row, block: Row, plain: Row) -> Lines:
    named = (("AdamW, |theta|_inf", entry), ("Blockwise AdamW, Frobenius", block), ("SGD, |theta|_inf", plain))
    return Lines(
        title="how far parameters go",
        x=Scale("updates"),
        y=Scale("largest |b(theta)|", log=True),
        curves=tuple(
            # What has overflowed leaves a gap; it would flatten the other curves.
            Curve.of(name, range(len(sizes := row["parameters"])), [s if s < 1e3 else math.nan for s in sizes])
            for name, row in named
        ),
        notes=(Note(entry["allowed"], "bound of Lemma 26", "y"),),
    )


def _convergence_figure(near: Row) -> Lines:
    errors, losses = _root_means(near["states"]), _root_means(near["losses"])
    found = (
        Curve.of("error of the states", near["updates"], errors, mark="both"),
        Curve.of("terminal adjoint, root mean square", near["updates"], losses, mark="both"),
    )
    return curves("error and adjoint while training converges", "updates", "size", found, "y")


def _residual_figure(rows: Sequence[Row]) -> Lines:
    """Residuals over training."""
    return Lines(
        title="distance from a KKT point",
        caption="|theta - P(theta - g)|, P the projection on |b(theta)| <= 1/lam; the rate falls over the second half.",
        x=Scale("updates"),
        y=Scale("residual", log=True),
        curves=tuple(Curve.of(_label(row), range(len(row["residual"])), row["residual"]) for row in rows),
    )
