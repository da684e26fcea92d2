"""The resolution report: what a trained model's output and loss owe to how finely its axes are read."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch

from continua.control.losses import AbstractLoss
from continua.control.norms import relative
from continua.control.objective import Objective
from continua.core.checks import is_a
from continua.core.errors import SolveError, reject
from continua.core.shapes import Tensor
from continua.data import Resampling, Samples, refine, take_every
from continua.fields import AbstractHeadField
from continua.model import AbstractEmbeddingWrapper, ContinuousTransformer, Part, VectorEmbedding
from continua.solve import AbstractSolver, Adaptive, DormandPrince, PerSequence, Projected, Solver, manifold_of

Loss = Callable[[Tensor, Any], Tensor]
"""(output, targets) -> a scalar; of a readout that gives one output per token, the present tokens in one row."""

UNITS = {"tokens": "t", "nodes": "d", "heads": "h", "steps": "z", "rtol": "z"}
"""What a resolution counts, and the axis it belongs to."""


@final
@dataclasses.dataclass(frozen=True)
class Resolutions:
    """The resolutions to read a model at.

    - `strides`, `factors`: t, every k-th sample alone, and k samples for one on the lines between them;
    - `nodes`, `heads`: d and h; `None` means half, twice and four times the model's own;
    - `steps`, `rtols`: z, equal steps and tolerances.
    """

    strides: tuple[int, ...] = (4, 2)
    factors: tuple[int, ...] = (2, 4)
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
) -> "ResolutionReport":
    """How `model` answers the same `inputs`, the arguments of its call, when its axes are read more or less finely.

    Token time is re-sampled (signals only), every other axis read by `model.at(nodes=)`, `at(heads=)`, `at(steps=)` and
    `at(rtol=)`; one axis is changed at a time, and nothing is drawn at random. Steps are counted as they were taken: no
    step crosses a jump of the parameters. An axis that the model does not have, and a resolution that it refuses, is
    left out with the reason. `reference` is the solver that the training one is compared with: by default
    Dormand-Prince, or the model's own stepper where it estimates its error, at a tolerance of 1e-6 (1e-10 in float64).
    """
    is_a(ContinuousTransformer, "Report on encoder and decoder apart.", model=model)
    if isinstance(inputs, Tensor):
        reject("inputs", tuple(inputs.shape), "the arguments of the model's call come as a tuple", "Pass (values,).")
    if isinstance(loss, AbstractLoss | Objective):
        cure = "Pass a function of output and targets, such as torch.nn.functional.cross_entropy."
        reject("loss", loss, "it reads a whole batch, and here tokens are compared in one row", cure)
    solver = _reference(model) if reference is None else reference
    is_a(AbstractSolver, "Pass Solver(stepper, controller), such as Solver(DormandPrince()).", reference=solver)
    study = _Study(model, tuple(inputs), targets, loss)
    axes = (_over_time, _over_nodes_and_heads, _over_depth)
    answers = [study.answer(request) for axis in axes for request in axis(study, resolutions)]
    invariance = study.invariance(solver)
    answers += [invariance] if isinstance(invariance, LeftOut) else []
    return ResolutionReport(
        rows=tuple(_without_repeats(a for a in answers if isinstance(a, ResolutionRow))),
        own={unit: study.own[unit] for unit in UNITS if unit in study.own},
        solver_invariance=None if isinstance(invariance, LeftOut) else invariance,
        reference=_describe(solver),
        loss=study.loss_of(study.base, study.targets),
        left_out=tuple(a for a in answers if isinstance(a, LeftOut)),
    )


# --- the table


@final
@dataclasses.dataclass(frozen=True)
class ResolutionRow:
    """The model at another resolution of one axis, against itself.

    - `axis`: t (token time), d (embedding), h (heads) or z (depth); `unit`: what `resolution` counts;
    - `change`: |y - y0| / |y0|, y0 the output of the model as it is (|y| where y0 = 0);
    - `loss`, `loss_change`: the loss there, and what it is more than that of y0; `None` where no loss was given.
    """

    unit: str
    resolution: int | float
    change: float
    loss: float | None = None
    loss_change: float | None = None

    @property
    def axis(self) -> str:
        """The axis whose resolution is another."""
        return UNITS[self.unit]


@final
@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What could not be measured, and why; without a resolution, the whole axis."""

    unit: str
    resolution: int | float | None
    reason: str

    @property
    def axis(self) -> str:
        """The axis that could not be read otherwise."""
        return UNITS[self.unit]


@final
@dataclasses.dataclass(frozen=True)
class ResolutionReport:
    """Axis x resolution -> change of output and loss, and how far the training solver is from a tight one.

    - `own`: the model's own resolutions, by unit; `loss`: its loss as it is;
    - `solver_invariance`: |y0 - y| / |y|, y the output under the `reference` solver; `None` where that solve failed.
    """

    rows: tuple[ResolutionRow, ...]
    own: dict[str, int | float]
    solver_invariance: float | None
    reference: str
    loss: float | None = None
    left_out: tuple[LeftOut, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The report as plain data, which JSON can hold and `continua.report.resolution_figures` draws."""
        data = dataclasses.asdict(self)
        for name in ("rows", "left_out"):
            data[name] = [{"axis": UNITS[row["unit"]], **row} for row in data[name]]
        return data

    def __str__(self) -> str:
        head = ["axis", "resolution", "change of output", "loss", "change of loss"]
        lines = [head, *([row.axis, _count(row.unit, row.resolution), *_numbers(row)] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(word.ljust(n) for word, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        own = ", ".join(_count(unit, value) for unit, value in self.own.items())
        loss = "" if self.loss is None else f"; loss {self.loss:.6g}"
        absent = [f"left out, {x.axis}{_place(x)}: {x.reason}" for x in self.left_out]
        gap = "not measured" if self.solver_invariance is None else f"{self.solver_invariance:.1e}"
        invariance = f"solver invariance {gap}, against {self.reference}"
        return "\n".join([f"the model as it is: {own}{loss}", *table, invariance, *absent])


def _numbers(row: ResolutionRow) -> list[str]:
    loss = "" if row.loss is None else f"{row.loss:.6g}"
    return [f"{row.change:.1e}", loss, "" if row.loss_change is None else f"{row.loss_change:+.1e}"]


def _count(unit: str, value: int | float) -> str:
    return f"{unit} {value:.0e}" if unit == "rtol" else f"{value:g} {unit[:-1] if value == 1 else unit}"


def _place(left: LeftOut) -> str:
    return "" if left.resolution is None else f" at {_count(left.unit, left.resolution)}"


# --- one model, its inputs and its answers


class _Request(NamedTuple):
    """A resolution to answer at: other samples, or else `model.at(unit=resolution)`."""

    unit: str
    resolution: int | float
    resample: Callable[[], Resampling] | None = None


class _Study:
    """The model in evaluation mode, its inputs, and its output as it is."""

    def __init__(self, model: ContinuousTransformer, inputs: tuple[Any, ...], targets: Any, loss: Loss | None) -> None:
        self.model = model.at()
        self.model.training = False  # of this copy alone: `eval()` would reach the parts that both share
        self.inputs, self.loss = inputs, loss
        self.per_token = model.readout.per_token
        found = self.model(*inputs, full=True)
        self.present, grid = found.cloud.present, found.solution.stats.grid
        self.own: dict[str, int | float] = {"tokens": found.cloud.points.shape[1]}
        self.whole = found.output  # (batch, tokens, outputs) or (batch, outputs)
        self.base, self.targets = self._flat(self.whole), self._flat(targets)
        self.given = targets
        if grid:
            self.own["steps"] = len(grid) - 1

    def answer(self, request: "_Request | LeftOut") -> ResolutionRow | LeftOut:
        """The row of a resolution, or why there is none."""
        if isinstance(request, LeftOut):
            return request
        unit, resolution, resample = request
        base, targets = self.base, self.targets
        try:
            if resample is not None:
                y, base, targets = self._answer_samples(resample())
            else:
                y, steps = self._answer(self.model.at(**{unit: resolution}))  # pyright: ignore[reportArgumentType]
                resolution = steps if unit == "steps" else resolution
        except (ValueError, SolveError) as error:  # as it is, the model answered: the resolution is to blame
            return LeftOut(unit, resolution, str(error))
        loss, own = self.loss_of(y, targets), self.loss_of(base, targets)
        change = None if loss is None or own is None else loss - own
        return ResolutionRow(unit, resolution, relative(y - base, base), loss, change)

    def invariance(self, solver: AbstractSolver) -> float | LeftOut:
        """The distance of the model as it is to the same model under another solver, or why it cannot be solved."""
        try:
            exact, _ = self._answer(self.model.at(solver=solver))
        except (ValueError, SolveError) as error:
            return LeftOut("rtol", None, f"the reference solve, {_describe(solver)}: {error}")
        return relative(self.base - exact, exact)

    def loss_of(self, output: Tensor, targets: Any) -> float | None:
        return None if self.loss is None else float(self.loss(output, targets))

    def _answer(self, model: ContinuousTransformer) -> tuple[Tensor, int]:
        """The output, and how many steps led to it."""
        found = model(*self.inputs, full=True)
        return self._flat(found.output), len(found.solution.stats.grid) - 1

    def _answer_samples(self, other: Resampling) -> tuple[Tensor, Tensor, Any]:
        """The output at other samples, with own output and targets: per token, at the samples that both have."""
        values, positions, present = other.samples
        y = self.model(values, positions, None if bool(present.all()) else present)
        if not self.per_token:
            return y, self.base, self.targets
        targets = self.given
        if isinstance(targets, Tensor):
            targets = _select(targets, other.there, other.shared)
        base = _select(self.whole, other.there, other.shared)
        return _select(y, other.here, other.shared), base, targets

    def _flat(self, x: Any) -> Any:
        """Of one output per token, those of present tokens in one row."""
        if not self.per_token or not isinstance(x, Tensor):
            return x
        return x.flatten(0, 1) if self.present is None else x[self.present]


def _select(x: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """x at the indices of each row along its second axis, where the mask is true, in one row."""
    rows = torch.arange(len(index), device=index.device).unsqueeze(-1)
    return x[rows, index][mask]


# --- what each axis is read at

_Requests = Iterator[_Request | LeftOut]


def _over_time(study: _Study, wanted: Resolutions) -> _Requests:
    embedding = study.model.embedding
    while isinstance(embedding, AbstractEmbeddingWrapper):
        embedding = embedding.inner
    if not isinstance(embedding, VectorEmbedding):
        yield LeftOut("tokens", None, f"what a {type(embedding).__name__} reads are no samples of a signal")
        return
    try:
        samples = Samples.of(*_with_times(study.inputs, embedding))
    except ValueError as error:
        yield LeftOut("tokens", None, str(error))
        return
    longest = int(samples.counts.max()) - 1
    for stride in sorted(wanted.strides, reverse=True):
        yield _Request("tokens", -(-longest // stride) + 1, lambda k=stride: take_every(samples, k))
    for factor in sorted(wanted.factors):
        yield _Request("tokens", factor * longest + 1, lambda k=factor: refine(samples, k))


def _with_times(inputs: tuple[Any, ...], embedding: VectorEmbedding) -> tuple[Any, ...]:
    """The inputs with the times that the embedding's clock gives to samples without."""
    clock, values = embedding.clock, inputs[0]
    if clock is None or (len(inputs) > 1 and inputs[1] is not None):
        return inputs
    present = inputs[2] if len(inputs) > 2 else None
    times = clock.start + (clock.end - clock.start) * clock.even(present, tuple(values.shape[:2]), values)
    return (values, times, *inputs[2:])


def _over_nodes_and_heads(study: _Study, wanted: Resolutions) -> _Requests:
    fields = [part.field for part in study.model.flow.parts if isinstance(part, Part)]
    nodes = None if study.model.axis is None else study.model.axis.nodes
    heads = next((field.heads for field in fields if isinstance(field, AbstractHeadField)), None)
    for unit, own, sizes, why in (
        ("nodes", nodes, wanted.nodes, "states are vectors, not functions along the embedding axis"),
        ("heads", heads, wanted.heads, "heads are counted, not a measure with continuous parameters"),
    ):
        if own is None:
            yield LeftOut(unit, None, why)
            continue
        study.own[unit] = own
        yield from (_Request(unit, n) for n in (_around(own) if sizes is None else sizes))


def _over_depth(study: _Study, wanted: Resolutions) -> _Requests:
    solver = study.model.solver
    if isinstance(solver, Solver):
        yield from (_Request("steps", n) for n in wanted.steps)
    else:
        yield LeftOut("steps", None, f"{type(solver).__name__} has no steps to choose")
    if not isinstance(solver, Solver) or solver.stepper.error_order is None:
        yield LeftOut("rtol", None, "the stepper does not estimate its error")
        return
    if isinstance(solver.controller, Adaptive | PerSequence):
        study.own["rtol"] = solver.controller.rtol
    yield from (_Request("rtol", rtol) for rtol in wanted.rtols)


def _around(own: int) -> list[int]:
    return [*([own // 2] if own > 1 else []), 2 * own, 4 * own]


def _without_repeats(rows: Iterable[ResolutionRow]) -> Iterator[ResolutionRow]:
    """Numbers of steps once each: where no step crosses a jump, several that were wanted become the same."""
    seen: set[int | float] = set()
    for row in rows:
        if row.unit != "steps" or row.resolution not in seen:
            yield row
        seen |= {row.resolution} if row.unit == "steps" else set()


# --- the reference


def _reference(model: ContinuousTransformer) -> Solver:
    """A stepper that estimates its error, of the same ODE as the model's own, at a tight tolerance."""
    stepper = model.solver.stepper if isinstance(model.solver, Solver) else DormandPrince()
    if stepper.error_order is None:
        # A projected stepper solves another ODE than the one without its manifold: the reference must stay on it.
        manifold = manifold_of(stepper)
        stepper = DormandPrince() if manifold is None else Projected(DormandPrince(), manifold, tangent=True)
    tolerance = 1e-10 if next(model.parameters()).dtype == torch.float64 else 1e-6
    return Solver(stepper, Adaptive(tolerance, tolerance))


def _describe(solver: AbstractSolver) -> str:
    if isinstance(solver, Solver) and isinstance(solver.controller, Adaptive):
        return f"{solver.stepper} at rtol {solver.controller.rtol:g}"
    return str(solver)
