"""`softmax-residual`: Pontryagin's conditions of a classifier of digits, and training by them."""

import math
from collections.abc import Sequence
from typing import final

import torch

from continua.control import CrossEntropy, Objective, SuccessiveApproximations, pontryagin, trace_costates
from continua.core.batch import Batch
from continua.data import Digits, Split
from continua.fields import Expansion
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, at_most
from continua.model import ContinuousTransformer, Flow, MeanReadout, Part, SinusoidalPositions, VectorEmbedding
from continua.operators import Attention, FeedForward, Unnormalised
from continua.runs import Curve
from continua.solve import Direct, Euler, Fixed, Solver
from continua.spaces import Legendre, Uniform

_SIDE, _STEPS = 8, 2
_RHO, _INNER = 0.1, 12
"""Of successive approximations: with rho = 0.3 and half as many inner iterations J falls half as fast per second."""
POINTS = 0.03
"""How far successive approximations may stay behind AdamW in accuracy."""


def digit_rows(split: Split, classes: int, count: int) -> Batch:
    """The first digits of scikit-learn below `classes`: a token per row, its features the brightness of columns."""
    held = Digits().batch(split, torch.arange(Digits().count(split)))
    assert held.targets is not None
    values, times = held.inputs
    chosen = (held.targets < classes).nonzero()[:count, 0]
    rows = values[chosen, :, 0].double().unflatten(1, (_SIDE, _SIDE))
    return Batch((rows, times[chosen, ::_SIDE].double()), held.targets[chosen])


def digit_model(width: int, classes: int, seed: int) -> ContinuousTransformer:
    """Attention and feed-forward, two Legendre modes in depth, two layers, and a linear readout of the mean token.

    Embedding and readout are drawn and stay: both ways of training move the flow alone.
    """
    torch.manual_seed(seed)
    operators = (Attention(2, width // 2), FeedForward(2 * width))
    parts = [Part(f, Expansion(f.spec(width), Legendre(2), 1.0)) for f in operators]
    embedding = VectorEmbedding(_SIDE, width, SinusoidalPositions(width, 8.0, 0.5), Uniform())
    readout = MeanReadout(width, classes, norm=Unnormalised())
    solver = Solver(Euler(), Fixed(_STEPS))
    model = ContinuousTransformer(embedding, Flow(parts, 1.0), readout, solver, Direct()).double()
    for part in (model.embedding, model.readout):
        part.requires_grad_(False)
    with torch.no_grad():
        readout.linear.weight.mul_(4.0)
    return model


@torch.no_grad()
def accuracy(model: ContinuousTransformer, batch: Batch) -> float:
    assert batch.targets is not None
    return float((model(*batch.inputs).argmax(-1) == batch.targets).double().mean())


@final
class TrainedClassifier(AbstractCell):
    """A classifier trained by AdamW or by successive approximations on the same digits, from the same weights.

    `gaps` are |a(Z) - W^T(softmax - onehot)|, relative, for the costate that the solve itself passes back; `sizes` the
    largest |a(Z)| of sqrt(2) |W|.
    """

    successive: bool
    classes: int
    samples: int
    updates: int
    width: int = 16
    seed: int = 0

    def measure(self) -> Row:
        model, objective = digit_model(self.width, self.classes, self.seed), Objective(CrossEntropy())
        train, test = (digit_rows(s, self.classes, self.samples) for s in (Split.TRAIN, Split.TEST))
        before = self._adjoint(model, train, objective)
        seen: dict[str, list[float]] = {"updates": [], "gradient": [], "richer": [], "loss": []}

        def watch(update: int) -> None:
            report = pontryagin(model, train, objective)
            values = (update, report.projected_gradient, report.unprojected_gradient, report.objective)
            for name, value in zip(seen, values, strict=True):
                seen[name].append(float(value))

        if self.successive:
            watch(0)
            found = SuccessiveApproximations(_RHO, self.updates, inner=_INNER)(model, train, objective)
            seen["updates"], seen["loss"] = [float(k) for k in range(len(found.values))], list(found.values)
            seen["gradient"] = list(found.gradients)
        else:
            optimiser = torch.optim.AdamW(model.flow.parameters(), 0.01, weight_decay=0.01)
            for update in range(self.updates + 1):
                if update % max(1, self.updates // 8) == 0:
                    watch(update)
                optimiser.zero_grad()
                objective(model, train).total.backward()
                optimiser.step()
        after = self._adjoint(model, train, objective)
        return {
            "successive": self.successive,
            **seen,
            "gaps": [before[0], after[0]],
            "sizes": [before[1], after[1]],
            "train": accuracy(model, train),
            "test": accuracy(model, test),
        }

    def _adjoint(self, model: ContinuousTransformer, batch: Batch, objective: Objective) -> tuple[float, float]:
        path = trace_costates(model, batch, objective)
        readout = model.readout
        assert isinstance(readout, MeanReadout) and batch.targets is not None
        W = readout.linear.weight
        with torch.no_grad():
            rest = torch.softmax(model(*batch.inputs), -1)
            rest[torch.arange(len(rest)), batch.targets.long()] -= 1.0
            wanted = (rest @ W)[:, None]
            a = path.costates[-1]
            gap = float((a - wanted).abs().max() / wanted.abs().max())
            size = float(a.norm(dim=-1).max() / (math.sqrt(2.0) * torch.linalg.matrix_norm(W, ord=2)))
        return gap, size


@final
class SoftmaxResidual(AbstractExperiment):
    """The terminal adjoint before and after training, stationarity over training, two ways to train."""

    name = "softmax-residual"
    claim = (
        "under cross-entropy the terminal adjoint is the softmax residual; training drives Pontryagin's conditions to "
        "zero; solved as they stand, by successive approximations, they train a classifier as well as AdamW"
    )
    formula = 'a(Z) = W^T ( "softmax" - "onehot" ) , " " |a(Z)| ≤ sqrt{2} |W| , " " dH/dtheta = 0'
    source = "arXiv 2606.23235; docs/mathematics.md, sections 4 and 9"

    classes: int = 10
    samples: int = 300
    updates: int = 200
    iterations: int = 100
    seeds: int = 3

    def quick(self) -> "SoftmaxResidual":
        return SoftmaxResidual(classes=3, samples=60, updates=60, iterations=25, seeds=1)

    def cells(self) -> Sequence[AbstractCell]:
        seeds = range(self.seeds)
        return [
            *(TrainedClassifier(False, self.classes, self.samples, self.updates, seed=seed) for seed in seeds),
            *(TrainedClassifier(True, self.classes, self.samples, self.iterations, seed=seed) for seed in seeds),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        adam, successive = rows[: self.seeds], rows[self.seeds :]
        gap = max(max(row["gaps"]) for row in rows)
        size = max(max(row["sizes"]) for row in rows)
        falls = max(row["gradient"][-1] / max(row["gradient"]) for row in rows)
        behind = [a["test"] - s["test"] for a, s in zip(adam, successive, strict=True)]
        judgement = all_of(
            at_most("terminal adjoint against the softmax residual", gap, 1e-12),
            at_most("|a(Z)| of sqrt(2) |W|", size, 1.0),
            at_most("|dJ/dphi| at the end, of its largest", falls, 0.3),
            at_most("accuracy of AdamW minus that of successive approximations", sum(behind) / len(behind), POINTS),
            at_least("accuracy of AdamW on the test", min(row["test"] for row in adam), 0.75),
        )
        measured = {
            "adjoint gap": gap,
            "adjoint, of its bound": size,
            "|dJ/dphi| at the end, of its largest": [r["gradient"][-1] / max(r["gradient"]) for r in rows],
            "max_z |dH/dtheta(z)|, AdamW": [row["richer"][-1] for row in adam],
            "test accuracy, AdamW": [row["test"] for row in adam],
            "test accuracy, successive approximations": [row["test"] for row in successive],
            "loss, AdamW": [row["loss"][-1] for row in adam],
            "loss, successive approximations": [min(row["loss"]) for row in successive],
        }
        names = ("AdamW", "successive approximations")
        pairs = list(zip(names, (adam[0], successive[0]), strict=True))

        def along(kind: str) -> list[Curve]:
            return [Curve.of(name, row["updates"], row[kind], mark="both") for name, row in pairs]

        figures = (
            curves("stationarity while training", "updates", "|dJ/dphi|", along("gradient"), "y"),
            curves("cross-entropy while training", "updates", "J", along("loss"), "y"),
        )
        bound = {"adjoint gap": AtMost(1e-12), "adjoint, of its bound": AtMost(1.0)}
        return Findings(figures, measured, bound, judgement)
