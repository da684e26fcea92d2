"""The resolution report: how output and loss of a trained model change with the resolution of each continuum."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch

from continua.control.losses import AbstractLoss
from continua.control.norms import relative
from continua.control.objective import Objective
from continua.core.checks import is_a
from continua.core.errors import SolveError, reject
from continua.core.shapes import Tensor
from continua.data import Resampling, Samples, refine, take_every
from continua.model import (
    AbstractEmbeddingWrapper,
    ContinuousTransformer,
    Loss,
    Resolution,
    StemEmbedding,
    VectorEmbedding,
    call_loss,
    flatten_tokens,
    own_nodes,
)
from continua.solve import AbstractSolver, Adaptive, DormandPrince, PerSequence, Projected, Solver, manifold_of
from continua.spaces import Uniform

UNITS = {"tokens": "t", "axis_nodes": "d", "head_nodes": "h", "steps": "z", "rtol": "z"}
"""What a resolution counts, and the continuum it belongs to."""
CONTINUA = {"t": "token time", "d": "embedding", "h": "heads", "z": "depth"}


class Resolutions(NamedTuple):
    """The resolutions to run a model at.

    - `strides`, `factors`: t, every k-th sample alone, and k samples for one on the lines between them;
    - `axis_nodes`, `head_nodes`: d and h; `None` means half, twice and four times the model's own;
    - `steps`, `rtols`: z, equal steps and tolerances.
    """

    strides: tuple[int, ...] = (4, 2)
    factors: tuple[int, ...] = (2, 4)
    axis_nodes: tuple[int, ...] | None = None
    head_nodes: tuple[int, ...] | None = None
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rtols: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)


@torch.no_grad()
def resolution_report(
    model: ContinuousTransformer,
    inputs: Sequence[Any],
    targets: Any = None,
    loss: Loss | None = None,
    resolutions: Resolutions = Resolutions(),
    reference_solver: AbstractSolver | None = None,
) -> "ResolutionReport":
    """How `model` answers the same `inputs`, the arguments of its call, at other resolutions of each continuum.

    Token time is re-sampled (signals only), the others are changed by `model.at(axis_nodes=)`, `at(head_nodes=)`,
    `at(steps=)` and `at(rtol=)` (by Dormand-Prince where the stepper does not estimate its error), one continuum at a
    time; nothing is drawn at random. Steps are counted as they were taken: no step crosses a jump of the parameters. A
    continuum that the model does not have, and a resolution that it refuses, is left out with the reason.
    `loss(output, targets)` is a mean over its rows, such as `torch.nn.functional.cross_entropy`: of one output per
    token there is one row per present token of the batch, not one per sequence.
    `reference_solver` is what the training one is compared with: by default Dormand-Prince, or the model's own stepper
    where it estimates its error, at a tolerance of 1e-6 (1e-10 in float64).
    """
    is_a(ContinuousTransformer, "Report on encoder and decoder apart.", model=model)
    if isinstance(inputs, Tensor):
        reject("inputs", tuple(inputs.shape), "the arguments of the model's call come as a tuple", "Pass (values,).")
    if isinstance(loss, AbstractLoss | Objective):
        cure = "Pass a function of output and targets, such as torch.nn.functional.cross_entropy."
        reject("loss", loss, "it reads a whole batch, and here tokens are compared in one row", cure)
    solver = _tight_solver(model) if reference_solver is None else reference_solver
    is_a(AbstractSolver, "Pass Solver(stepper, controller), such as Solver(DormandPrince()).", reference_solver=solver)
    study = _Study(model, tuple(inputs), targets, loss)
    study.read_time(resolutions)
    study.read_nodes_and_heads(resolutions)
    study.read_depth(resolutions)
    return ResolutionReport(
        rows=tuple(study.rows),
        own={unit: study.own[unit] for unit in UNITS if unit in study.own},
        solver_error=study.solver_error(solver),
        reference_solver=_describe(solver),
        loss=study.loss_of(study.flatten(study.output), study.flatten(targets)),
        left_out=tuple(study.left_out),
    )


class ResolutionRow(NamedTuple):
    """The model at another resolution of one continuum, against itself.

    - `continuum`: t (token time), d (embedding), h (heads) or z (depth); `unit`: what `resolution` counts;
    - `change`: |y - y0| / |y0|, y0 the output of the model as it is (|y| where y0 = 0);
    - `loss`, `loss_change`: the loss there, and what it is more than that of y0; `None` where no loss was given.
    """

    unit: str
    resolution: int | float
    change: float
    loss: float | None = None
    loss_change: float | None = None

    @property
    def continuum(self) -> str:
        """The continuum whose resolution is another."""
        return UNITS[self.unit]


class LeftOut(NamedTuple):
    """What could not be measured, and why; without a resolution, the whole continuum."""

    unit: str
    resolution: int | float | None
    reason: str


@final
@dataclasses.dataclass(frozen=True)
class ResolutionReport:
    """Continuum x resolution -> change of output and loss, and how far the training solver is from a tight one.

    - `own`: the model's own resolutions, by unit; `loss`: its loss as it is;
    - `solver_error`: |y0 - y| / |y|, y the output under the `reference_solver`; `None` where that solve failed.
    """

    rows: tuple[ResolutionRow, ...]
    own: dict[str, int | float]
    solver_error: float | None
    reference_solver: str
    loss: float | None = None
    left_out: tuple[LeftOut, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The report as plain data, which JSON can hold and `continua.report.resolution_figures` draws."""
        tables = {"rows": self.rows, "left_out": self.left_out}
        plain = {
            name: [{"continuum": UNITS[row.unit], **row._asdict()} for row in rows] for name, rows in tables.items()
        }
        return {**vars(self), **plain}

    def __str__(self) -> str:
        head = ["continuum", "resolution", "change of output", "loss", "change of loss"]
        lines = [head]
        for row in self.rows:
            losses = ["" if row.loss is None else f"{row.loss:.6g}"]
            losses += ["" if row.loss_change is None else f"{row.loss_change:+.1e}"]
            lines.append(
                [CONTINUA[row.continuum], str(Resolution(row.unit, row.resolution)), f"{row.change:.1e}", *losses]
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(word.ljust(n) for word, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        own = ", ".join(str(Resolution(unit, value)) for unit, value in self.own.items())
        loss = "" if self.loss is None else f"; loss {self.loss:.6g}"
        error = "not measured" if self.solver_error is None else f"{self.solver_error:.1e}"
        absent = []
        for unit, resolution, reason in self.left_out:
            place = "" if resolution is None else f" at {Resolution(unit, resolution)}"
            continuum = "depth by tolerance" if unit == "rtol" and resolution is None else CONTINUA[UNITS[unit]]
            absent.append(f"left out, {continuum}{place}: {reason}")
        whose = "in units of the tight output, changes in those of the model's own"
        solver = f"solver error {error} ({whose}), against {self.reference_solver}"
        return "\n".join([f"the model as it is: {own}{loss}", *table, solver, *absent])


class _Study:
    """The model in evaluation mode, its inputs, its output as it is, and what was found at other resolutions."""

    def __init__(self, model: ContinuousTransformer, inputs: tuple[Any, ...], targets: Any, loss: Loss | None) -> None:
        self.model = model.in_eval_mode()
        self.inputs, self.targets, self.loss = inputs, targets, loss
        found = self.model(*inputs, full=True)
        self.output, self.present = found.output, found.cloud.present
        self.own: dict[str, int | float] = {"tokens": found.cloud.points.shape[1]}
        if grid := found.solution.stats.grid:
            self.own["steps"] = len(grid) - 1
        self.rows: list[ResolutionRow] = []
        self.left_out: list[LeftOut] = []

    def read_time(self, wanted: Resolutions) -> None:
        """Other samples of the same signals."""
        embedding = self.model.embedding
        while isinstance(embedding, AbstractEmbeddingWrapper):
            embedding = embedding.inner
        if not isinstance(embedding, VectorEmbedding):
            return self._leave_out("tokens", f"what a {type(embedding).__name__} reads are no samples of a signal")
        if isinstance(embedding.rule, Uniform) and not self._reads_time(embedding):
            return self._leave_out("tokens", "tokens are a set, of equal masses: nothing lies between them")
        values, (times, present) = self.inputs[0], (*self.inputs[1:], None, None)[:2]
        if times is None and (clock := embedding.clock) is not None:
            unit = clock.regular_times(present, tuple(values.shape[:2]), values)
            times = clock.start + (clock.end - clock.start) * unit
        try:
            samples = Samples.of(values, times, present)
        except ValueError as error:
            return self._leave_out("tokens", str(error))
        longest = int(samples.counts.max()) - 1
        for stride in sorted(wanted.strides, reverse=True):
            self._read("tokens", -(-longest // stride) + 1, lambda k=stride: take_every(samples, k))
        for factor in sorted(wanted.factors):
            self._read("tokens", factor * longest + 1, lambda k=factor: refine(samples, k))

    def _reads_time(self, embedding: VectorEmbedding) -> bool:
        """Whether positions or a stem tell which samples are neighbours."""
        stems = any(isinstance(module, StemEmbedding) for module in self.model.embedding.modules())
        operators: list[Any] = [part.operator for part in self.model.flow.parts]
        for operator in operators:  # grows by what is wrapped: a norm, dropout, a spectral limit
            operators += [operator.inner] if hasattr(operator, "inner") else []
        rotary = any(getattr(operator, "rotary", None) is not None for operator in operators)
        return stems or rotary or embedding.code is not None

    def read_nodes_and_heads(self, wanted: Resolutions) -> None:
        nodes = own_nodes(self.model)
        for unit, sizes, why in (
            ("axis_nodes", wanted.axis_nodes, "states are vectors, not functions along the embedding axis"),
            ("head_nodes", wanted.head_nodes, "heads are counted, not a measure with continuous parameters"),
        ):
            if (own := nodes.get(unit)) is None:
                self._leave_out(unit, why)
                continue
            self.own[unit] = own
            around = (own // 2, 2 * own, 4 * own) if own > 1 else (2, 4)
            for size in around if sizes is None else sizes:
                self._read(unit, size)

    def read_depth(self, wanted: Resolutions) -> None:
        """Equal steps, and tolerances."""
        solver = self.model.solver
        if not isinstance(solver, Solver):
            for unit in ("steps", "rtol"):
                self._leave_out(unit, f"{type(solver).__name__} has no steps to choose")
            return
        for steps in wanted.steps:
            self._read("steps", steps)
        # off a manifold `at(rtol=)` takes Dormand-Prince where the stepper does not estimate its error
        if solver.stepper.error_order is None and manifold_of(solver.stepper) is not None:
            return self._leave_out("rtol", "the stepper, which stays on a manifold, does not estimate its error")
        if isinstance(solver.controller, Adaptive | PerSequence):
            self.own["rtol"] = solver.controller.rtol
        for rtol in wanted.rtols:
            self._read("rtol", rtol)

    def solver_error(self, solver: AbstractSolver) -> float | None:
        """The distance of the model as it is to the same model under another solver, where that can be solved."""
        try:
            exact = self.flatten(self.model.at(solver=solver)(*self.inputs))
        except (ValueError, SolveError) as error:
            return self._leave_out("rtol", f"the reference solver, {_describe(solver)}: {error}")
        return relative(self.flatten(self.output) - exact, exact)

    def loss_of(self, output: Tensor, targets: Any) -> float | None:
        return None if self.loss is None else call_loss(self.loss, output, targets)

    def flatten(self, x: Any) -> Any:
        """Of one output per token, those of present tokens in one row."""
        return flatten_tokens(x, self.present) if self.model.readout.per_token else x

    def _leave_out(self, unit: str, why: str) -> None:
        self.left_out.append(LeftOut(unit, None, why))

    def _read(self, unit: str, resolution: int | float, resample: Callable[[], Resampling] | None = None) -> None:
        """Adds the row of a resolution, by other samples or else by `model.at(unit=resolution)`, or why it has none."""
        try:
            if resample is not None:
                y, base, targets = self._answer_samples(resample())
            else:
                found = Resolution(unit, resolution).apply(self.model)(*self.inputs, full=True)
                y, base, targets = (self.flatten(x) for x in (found.output, self.output, self.targets))
                resolution = len(found.solution.stats.grid) - 1 if unit == "steps" else resolution
        except (ValueError, SolveError) as error:  # as it is, the model answered: the resolution is to blame
            self.left_out.append(LeftOut(unit, resolution, str(error)))
            return
        # where no step crosses a jump, several numbers of steps that were wanted become the same
        if unit == "steps" and any((row.unit, row.resolution) == (unit, resolution) for row in self.rows):
            return
        loss, own = self.loss_of(y, targets), self.loss_of(base, targets)
        change = None if loss is None or own is None else loss - own
        self.rows.append(ResolutionRow(unit, resolution, relative(y - base, base), loss, change))

    def _answer_samples(self, other: Resampling) -> tuple[Tensor, Tensor, Any]:
        """The output at other samples, with own output and targets: per token, at the samples that both have."""
        values, positions, present = other.samples
        y = self.model(values, positions, None if bool(present.all()) else present)
        if not self.model.readout.per_token:
            return y, self.output, self.targets

        def select(x: Any, index: Tensor) -> Any:
            rows = torch.arange(len(index), device=index.device).unsqueeze(-1)
            return x[rows, index][other.shared] if isinstance(x, Tensor) else x

        return select(y, other.here), select(self.output, other.there), select(self.targets, other.there)


def _tight_solver(model: ContinuousTransformer) -> Solver:
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
