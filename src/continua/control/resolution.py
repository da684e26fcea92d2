"""The resolution report: what a trained model's output and loss owe to how finely its axes are read."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch

from continua.control.losses.loss import AbstractLoss
from continua.control.norms import relative
from continua.control.objective import Objective
from continua.control.resolution_table import UNITS, LeftOut, ResolutionReport, ResolutionRow
from continua.core.errors import SolveError, expect, reject
from continua.core.shapes import Tensor
from continua.data import Resampling, Samples, refine, take_every
from continua.fields import ContinuousHeads
from continua.model import AbstractEmbeddingWrapper, ContinuousTransformer, Part, SynthesisEmbedding, VectorEmbedding
from continua.solve import AbstractSolver, Adaptive, DormandPrince, PerSequence, Projected, Solver, manifold_of

Loss = Callable[[Tensor, Any], Tensor]
"""(output, targets) -> a scalar; of a readout that gives one output a token, the present tokens in one row."""


@final
@dataclasses.dataclass(frozen=True)
class Resolutions:
    """The resolutions to ask for.

    - `thinned`, `interpolated`: t, every k-th sample alone, and k samples for one on the lines between them;
    - `nodes`, `heads`: d and h; `None` means half, twice and four times the model's own;
    - `steps`, `rtols`: z, equal steps and tolerances.
    """

    thinned: tuple[int, ...] = (4, 2)
    interpolated: tuple[int, ...] = (2, 4)
    nodes: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rtols: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)


@torch.no_grad()
def resolution_report(
    model: ContinuousTransformer,
    inputs: Sequence[Any],
    targets: Any = None,
    loss: Loss | None = None,
    resolutions: Resolutions = Resolutions(),
    reference: AbstractSolver | None = None,
) -> ResolutionReport:
    """How `model` answers the same `inputs`, the arguments of its call, when its axes are read more or less finely.

    Token time is re-sampled (signals only), the embedding axis by `at_resolution`, heads by `with_heads`, depth by
    `at(steps=...)` and `at(rtol=...)`; one axis is changed at a time, and nothing is drawn at random. Steps are counted
    as they were taken: no step crosses a jump of the parameters. An axis that the model does not have, and a
    resolution that it refuses, is left out with the reason. `reference` is the solver that
    the training one is compared with: by default Dormand-Prince, or the model's own stepper where it estimates its
    error, at a tolerance of 1e-6 (1e-10 in float64).
    """
    expect("model", model, ContinuousTransformer, "Ask for encoder and decoder apart.")
    if isinstance(inputs, Tensor):
        reject("inputs", tuple(inputs.shape), "the arguments of the model's call come as a tuple", "Pass (values,).")
    if isinstance(loss, AbstractLoss | Objective):
        cure = "Pass a function of output and targets, such as torch.nn.functional.cross_entropy."
        reject("loss", loss, "it reads a whole batch, and here tokens are compared in one row", cure)
    if reference is not None:
        expect(
            "reference", reference, AbstractSolver, "Pass Solver(stepper, controller), such as Solver(DormandPrince())."
        )
    study = _Study(model, tuple(inputs), targets, loss)
    axes = (_over_time, _over_embedding, _over_heads, _over_steps, _over_tolerances)
    answers = [study.answer(asked) for axis in axes for asked in axis(study, resolutions)]
    solver = _reference(study.model) if reference is None else reference
    invariance = study.invariance(solver)
    answers += [invariance] if isinstance(invariance, LeftOut) else []
    return ResolutionReport(
        rows=tuple(_once(a for a in answers if isinstance(a, ResolutionRow))),
        own={unit: study.own[unit] for unit in UNITS if unit in study.own},
        solver_invariance=None if isinstance(invariance, LeftOut) else invariance,
        reference=_named(solver),
        loss=study.loss_of(study.base, study.targets),
        left_out=tuple(a for a in answers if isinstance(a, LeftOut)),
    )


class _Asked(NamedTuple):
    """A resolution, and how the model gets there: another model, or other samples."""

    unit: str
    resolution: int | float
    model: Callable[[], ContinuousTransformer] | None = None
    resampled: Callable[[], Resampling] | None = None


class _Study:
    """The model in evaluation mode, its inputs, and what it says as it is."""

    def __init__(self, model: ContinuousTransformer, inputs: tuple[Any, ...], targets: Any, loss: Loss | None) -> None:
        self.model = model.at()
        self.model.training = False
        self.inputs, self.loss = inputs, loss
        self.per_token = model.readout.per_token
        cloud = self.model.embedding(*inputs)
        self.present = cloud.present
        self.own: dict[str, int | float] = {"tokens": cloud.points.shape[1]}
        solution = self.model.solve(cloud)
        self.whole = self.model.readout(cloud.at(solution.x))  # (batch, tokens, outputs) or (batch, outputs)
        self.base, self.targets = self._row(self.whole), self._row(targets)
        self.given = targets
        if solution.stats.grid:
            self.own["steps"] = len(solution.stats.grid) - 1

    def answer(self, asked: "_Asked | LeftOut") -> ResolutionRow | LeftOut:
        """The row of a resolution, or why there is none."""
        if isinstance(asked, LeftOut):
            return asked
        try:
            resolution = asked.resolution
            if asked.resampled is not None:
                y, base, targets = self._resampled(asked.resampled())
            else:
                assert asked.model is not None
                y, taken = self._solved(asked.model())
                base, targets = self.base, self.targets
                resolution = taken if asked.unit == "steps" else resolution
        except (ValueError, SolveError) as error:  # as it is, the model answered: the resolution is to blame
            return LeftOut(asked.unit, asked.resolution, str(error))
        loss, own = self.loss_of(y, targets), self.loss_of(base, targets)
        change = None if loss is None or own is None else loss - own
        return ResolutionRow(asked.unit, resolution, relative(y - base, base), loss, change)

    def invariance(self, solver: AbstractSolver) -> float | LeftOut:
        """The distance of the model as it is to the same model under another solver, or why it cannot be solved."""
        try:
            exact, _ = self._solved(self.model.at(solver=solver))
        except (ValueError, SolveError) as error:
            return LeftOut("rtol", None, f"the reference solve, {_named(solver)}: {error}")
        return relative(self.base - exact, exact)

    def _solved(self, model: ContinuousTransformer) -> tuple[Tensor, int]:
        """The output, and how many steps led to it."""
        cloud = model.embedding(*self.inputs)
        solution = model.solve(cloud)
        return self._row(model.readout(cloud.at(solution.x))), len(solution.stats.grid) - 1

    def loss_of(self, output: Tensor, targets: Any) -> float | None:
        return None if self.loss is None else float(self.loss(output, targets))

    def _row(self, x: Any) -> Any:
        """Of one output a token, those of present tokens."""
        if not self.per_token or not isinstance(x, Tensor):
            return x
        return x.flatten(0, 1) if self.present is None else x[self.present]

    def _resampled(self, found: Resampling) -> tuple[Tensor, Tensor, Any]:
        samples = found.samples
        y = self.model(samples.values, samples.positions, None if bool(samples.present.all()) else samples.present)
        if not self.per_token:
            return y, self.base, self.targets
        targets = self.given
        if isinstance(targets, Tensor):
            targets = _chosen(targets, found.there, found.shared)
        base = _chosen(self.whole, found.there, found.shared)
        return _chosen(y, found.here, found.shared), base, targets


_Answers = Iterator[_Asked | LeftOut]


def _over_time(study: _Study, asked: Resolutions) -> _Answers:
    embedding = study.model.embedding
    while isinstance(embedding, AbstractEmbeddingWrapper):
        embedding = embedding.inner
    if not isinstance(embedding, VectorEmbedding):
        yield LeftOut("tokens", None, f"what a {type(embedding).__name__} reads are no samples of a signal")
        return
    try:
        samples = Samples.of(*study.inputs)
    except ValueError as error:
        yield LeftOut("tokens", None, str(error))
        return
    longest = int(samples.counts.max()) - 1
    for stride in sorted(asked.thinned, reverse=True):
        yield _Asked("tokens", -(-longest // stride) + 1, resampled=lambda k=stride: take_every(samples, k))
    for factor in sorted(asked.interpolated):
        yield _Asked("tokens", factor * longest + 1, resampled=lambda k=factor: refine(samples, k))


def _over_embedding(study: _Study, asked: Resolutions) -> _Answers:
    model = study.model
    if not isinstance(model.embedding, SynthesisEmbedding):
        yield LeftOut("nodes", None, "states are vectors, not functions along the embedding axis")
        return
    own = model.embedding.axis.nodes
    study.own["nodes"] = own
    for nodes in _around(own) if asked.nodes is None else asked.nodes:
        yield _Asked("nodes", nodes, lambda n=nodes: model.at(nodes=n))


def _over_heads(study: _Study, asked: Resolutions) -> _Answers:
    model = study.model
    fields = [part.field for part in model.flow.parts if isinstance(part, Part)]
    counts = [field.heads for field in fields if isinstance(field, ContinuousHeads)]
    if not counts:
        yield LeftOut("heads", None, "heads are counted, not a measure with continuous parameters")
        return
    study.own["heads"] = counts[0]
    for heads in _around(counts[0]) if asked.heads is None else asked.heads:
        yield _Asked("heads", heads, lambda n=heads: model.at(heads=n))


def _over_steps(study: _Study, asked: Resolutions) -> _Answers:
    model = study.model
    if not isinstance(model.solver, Solver):
        yield LeftOut("steps", None, f"{type(model.solver).__name__} has no steps to choose")
        return
    for steps in asked.steps:
        yield _Asked("steps", steps, lambda n=steps: model.at(steps=n))


def _over_tolerances(study: _Study, asked: Resolutions) -> _Answers:
    model = study.model
    if not isinstance(model.solver, Solver) or model.solver.stepper.error_order is None:
        yield LeftOut("rtol", None, "the stepper does not estimate its error")
        return
    if isinstance(model.solver.controller, Adaptive | PerSequence):
        study.own["rtol"] = model.solver.controller.rtol
    for rtol in asked.rtols:
        yield _Asked("rtol", rtol, lambda r=rtol: model.at(rtol=r))


def _around(own: int) -> list[int]:
    return [*([own // 2] if own > 1 else []), 2 * own, 4 * own]


def _reference(model: ContinuousTransformer) -> Solver:
    """A stepper that estimates its error, of the same ODE as the model's own, at a tight tolerance."""
    method = model.solver.stepper if isinstance(model.solver, Solver) else DormandPrince()
    if method.error_order is None:
        manifold = manifold_of(method)
        method = DormandPrince() if manifold is None else Projected(DormandPrince(), manifold, tangent=True)
    double = next(model.parameters()).dtype == torch.float64
    return Solver(method, Adaptive(*((1e-10, 1e-10) if double else (1e-6, 1e-6))))


def _named(solver: AbstractSolver) -> str:
    if isinstance(solver, Solver) and isinstance(solver.controller, Adaptive):
        return f"{solver.stepper} at rtol {solver.controller.rtol:g}"
    return str(solver)


def _once(rows: Iterable[ResolutionRow]) -> Iterator[ResolutionRow]:
    """Numbers of steps once each: where no step crosses a jump, several that were asked for become the same."""
    steps: set[int | float] = set()
    for row in rows:
        if row.unit != "steps" or row.resolution not in steps:
            yield row
        steps |= {row.resolution} if row.unit == "steps" else set()


def _chosen(x: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """x at one index a row along its second axis, where the mask is true, in one row."""
    rows = torch.arange(len(index), device=index.device).unsqueeze(-1)
    return x[rows, index][mask]
