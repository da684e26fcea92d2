"""The integrator: one call from a vector field and a state to a solution; a solver holds its settings."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import torch

from continua.core.arguments import advise
from continua.core.checks import holds, is_a, is_exported
from continua.core.errors import reject
from continua.core.processor import check_autocast
from continua.core.shapes import Tensor
from continua.solve.backsolve import Backsolve
from continua.solve.checkpointed import Checkpointed
from continua.solve.controllers import AbstractAdaptive, AbstractGridController, Adaptive, Fixed, PerSequence
from continua.solve.functions import FunctionVectorField
from continua.solve.gradients import AbstractGradient, Direct
from continua.solve.integration import AbstractController, Integration, Observer, Solution, Stats
from continua.solve.runge_kutta import AbstractStepper, DormandPrince
from continua.solve.splitting import stagger_on
from continua.solve.step_size import agree
from continua.solve.vector_field import AbstractVectorField, State


class AbstractSolver(abc.ABC):
    """From a vector field and a state to a solution: what a model holds."""

    @abc.abstractmethod
    def solve(
        self,
        vector_field: AbstractVectorField,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        """The solution over the span; see `integrate`."""


@dataclasses.dataclass(frozen=True)
class Solver(AbstractSolver):
    """A stepper and a controller, by default Dormand-Prince with rtol = atol = 1e-4."""

    stepper: AbstractStepper = DormandPrince()
    controller: AbstractController = Adaptive()

    def __post_init__(self) -> None:
        is_a(AbstractStepper, "Pass an object: DormandPrince() for 'dopri5', RK4() for 'rk4'.", stepper=self.stepper)
        cure = "Pass an object such as Adaptive(rtol=1e-4) or Fixed(steps=8)."
        is_a(AbstractController, cure, controller=self.controller)
        if self.stepper.error_order is None and isinstance(self.controller, AbstractAdaptive):
            judging = "DormandPrince(), BogackiShampine() or Tsitouras() (on a manifold: Projected(..., tangent=True))"
            grid = f"Fixed(8) instead of {type(self.controller).__name__}(), which is steps=8 in continua.integrate"
            cure = f"Pass {judging}, or walk a grid: {grid}."
            reject("stepper", self.stepper, "it has no error estimate, so its steps cannot adapt", cure)

    def solve(
        self,
        vector_field: AbstractVectorField,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        is_a(AbstractGradient, "Pass an object such as Checkpointed() or Direct().", gradient=gradient)
        if isinstance(gradient, Backsolve):
            gradient.check(self.stepper, self.controller)
        if isinstance(self.controller, AbstractAdaptive) and is_exported():
            cure = "Export the model on a fixed grid: model.at(steps=8), or model.at(grid=solution.stats.grid)."
            reject("controller", self.controller, "steps that adapt look at values, and an exported graph cannot", cure)
        span, depths = check_problem(state, span, save_at, observers, getattr(self.controller, "all_ranks", False))
        if depths and isinstance(self.controller, PerSequence):
            cure = "Use Adaptive(), or walk a frozen grid: Given(stats.grid)."
            reject("save_at", depths, "a trajectory needs one grid for all sequences", cure)
        stats, before = Stats(), vector_field.evaluations
        integration = Integration(vector_field, span, self.stepper, self.controller, depths, tuple(observers), stats)
        if vector_field.stagger is not None and isinstance(self.controller, AbstractGridController):
            stepper = stagger_on(self.stepper, vector_field, self.controller.grid(integration))
            integration = dataclasses.replace(integration, stepper=stepper)
        end, saved = gradient.solve(integration, state)
        stats.evaluations = vector_field.evaluations - before
        return Solution(end.x, stats, end.costs, depths, torch.stack(saved) if depths else None)


_OF_CONTROLLERS = {"steps": "controller=Fixed(8)", "grid": "controller=Given(grid)",
                   **dict.fromkeys(("rtol", "atol"), "controller=Adaptive(rtol, atol)")}  # fmt: skip
Solver.__init__ = advise("continua.Solver", _OF_CONTROLLERS)(Solver.__init__)

_ELSEWHERE = {
    **dict.fromkeys(("method", "solver"), "stepper=, an object such as RK4() or DormandPrince()"),
    **dict.fromkeys(("t", "ts", "t_span"), "span=(0, 1), and further depths as save_at=[...]"),
    **dict.fromkeys(("t_eval", "saveat"), "save_at="),
    **dict.fromkeys(("y0", "z0"), "x0="),
    **dict.fromkeys(("func", "fun", "rhs"), "f="),
    **dict.fromkeys(("dt", "dt0", "step_size", "options"), "steps=, a number of equal steps"),
    "adjoint": "gradient=Checkpointed() or Backsolve()",
    "adjoint_params": "parameters=[...], where f hides some of its own",
    "atol": "controller=Adaptive(rtol, atol)",
    "max_steps": "controller=Adaptive(max_steps=...)",
    "args": "a function that holds them, lambda z, x: f(z, x, *args)",
}
"""What other libraries call the arguments of `integrate`."""


@advise("continua.integrate", _ELSEWHERE)
def integrate(  # noqa: PLR0913 - a front door: one word for each choice, all but three with a default
    f: Callable[[Tensor, Tensor], Tensor] | AbstractVectorField,
    x0: Tensor | State,
    span: tuple[float, float],
    stepper: AbstractStepper = DormandPrince(),
    controller: AbstractController | None = None,
    gradient: AbstractGradient = Checkpointed(),
    save_at: Sequence[float] = (),
    observers: Sequence[Observer] = (),
    *,
    steps: int | None = None,
    rtol: float | None = None,
    parameters: Iterable[Tensor] | dict[str, Tensor] | Tensor | torch.nn.Module | None = None,
) -> Solution:
    """Solves dx/dz = f(z, x), x(span[0]) = x0, up to span[1] and returns where it leads, differentiably.

        integrate(lambda z, x: -x, x0, (0, 1)).x

    f is any function of a depth and a tensor of any shape, or a flow bound to a cloud. `steps=8` takes eight equal
    steps, `rtol=1e-6` sets both tolerances of adaptive ones (1e-4 otherwise); `controller` is the long form of both.
    `save_at` asks for x at further depths, `solution.xs` (dense output inside the steps; asking changes no step). A
    span may run backwards. `Checkpointed` and `Backsolve` need to know the tensors that f depends on: they are found in
    its closure, globals, arguments and attributes, unless `parameters` names them; one that stays hidden raises.

    Errors are measured as the root mean square over all entries (tokens of a flow by their mass); `PerSequence` takes
    the first axis for the batch. Raises `SolveError`, with the depth and advice, when the step limit is reached, a step
    underflows or a state is no longer finite. Reference implementation: torchdiffeq's `odeint`.
    """
    cure = "Pass a tensor of any shape; join several, torch.cat([a.flatten(), b.flatten()]), and split x in f."
    cure = "Pass torch.tensor(float(x0))." if isinstance(x0, float | int) else cure
    is_a((Tensor, State), cure, x0=x0)
    state = State(x0) if isinstance(x0, Tensor) else x0
    solver = Solver(stepper, _choose_controller(controller, steps, rtol))
    if isinstance(f, AbstractVectorField):
        if state.x.ndim != 3:
            why = "tokens have three axes"
            reject("x0", tuple(state.x.shape), why, "Pass tokens of shape (batch, tokens, width).")
        return solver.solve(f, state, span, gradient, save_at, observers)
    check_autocast(state.x.device)
    vector_field = FunctionVectorField(f)
    check_problem(state, span, save_at, observers)  # before f is called at all
    watched = any(observer.cotangent is not None for observer in observers)
    if torch.is_grad_enabled() and (watched or not isinstance(gradient, Direct)):
        vector_field.find_parameters(float(span[0]), state.x, parameters)
    return solver.solve(vector_field, state, span, gradient, save_at, observers)


def _choose_controller(
    controller: AbstractController | None, steps: int | None, rtol: float | None
) -> AbstractController:
    given = {"controller": controller, "steps": steps, "rtol": rtol}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        reject(chosen[0], given[chosen[0]], f"{chosen[1]} chooses the steps as well", "Pass one of the two.")
    if steps is not None:
        return Fixed(steps)
    if rtol is not None:
        return Adaptive(rtol, rtol)
    return Adaptive() if controller is None else controller


def check_problem(
    state: State,
    span: tuple[float, float],
    save_at: Sequence[float],
    observers: Sequence[Observer],
    all_ranks: bool = False,
) -> tuple[tuple[float, float], tuple[float, ...]]:
    """Span and saved depths as numbers; a state that a solve can start from, and observers that can observe it."""
    is_a((list, tuple), "Pass a list of observers, [Observer(step=...)].", observers=observers)
    for observer in observers:
        is_a(Observer, "Pass [Observer(step=..., cotangent=...)].", observers=observer)
    if not hasattr(span, "__len__") or len(span) != 2:
        reject("span", span, "a span has two ends", "Pass (start, end), and further depths as save_at=[...].")
    if torch.is_grad_enabled() and any(isinstance(z, Tensor) and z.requires_grad for z in span):
        why = "a solve has no gradient by the ends of its span"
        cure = "Scale the velocity by a length T that is trained: lambda z, x: T * f(T * z, x) over (0.0, 1.0)."
        reject("span", tuple(float(torch.as_tensor(z).detach()) for z in span), why, cure)
    start, end = float(span[0]), float(span[1])
    if not (math.isfinite(start) and math.isfinite(end)):
        reject("span", span, "both ends must be finite", "Pass span=(0.0, depth).")
    if start == end:
        reject("span", span, "the span is empty", "Pass (start, end); it may run backwards.")
    if (x := state.x).numel() == 0:
        reject("x0", tuple(x.shape), "it is empty", "Pass a tensor with entries.")
    if x.dtype not in (torch.float32, torch.float64):
        real, other = "Pass torch.view_as_real(x0), and view x as complex in f.", "Convert with .to(torch.float32)."
        reject("x0", x.dtype, "the dtype is neither float32 nor float64", real if x.is_complex() else other)
    if not agree(holds(torch.isfinite(x.detach()).all(), unseen=True), all_ranks, x):
        reject("x0", x, "it holds nan or inf", "Mend the input, or give such tokens zero mass in a Cloud.")
    return (start, end), _check_depths(save_at, (start, end))


def _check_depths(save_at: Sequence[float], span: tuple[float, float]) -> tuple[float, ...]:
    """Saved depths as numbers; those that miss an end of the span by rounding alone are that end."""
    if isinstance(save_at, float | int | str):
        reject("save_at", save_at, "depths come as a list", "Pass save_at=[0.5].")
    if isinstance(save_at, Tensor) and save_at.ndim != 1:
        reject("save_at", tuple(save_at.shape), "depths come as a list", "Pass save_at.flatten().")
    if torch.is_grad_enabled() and any(isinstance(z, Tensor) and z.requires_grad for z in save_at):
        cure = "Pass save_at.detach(); dx/dz at a saved depth is f(z, x)."
        reject(
            "save_at",
            [float(z.detach()) for z in map(torch.as_tensor, save_at)],
            "a solve has no gradient by the depths that it saves",
            cure,
        )
    slack, sign = 1e-12 * abs(span[1] - span[0]), math.copysign(1.0, span[1] - span[0])
    near = {z: end for z in map(float, save_at) for end in span if abs(z - end) <= slack}
    depths = tuple(near.get(z, z) for z in map(float, save_at))
    if not all(sign * b > sign * a for a, b in itertools.pairwise(depths)):
        cure = "Sort them and drop duplicates: sorted(set(save_at))."
        reject("save_at", depths, "depths to save must increase (or decrease, where the span runs backwards)", cure)
    if not all(min(span) <= z <= max(span) for z in depths):
        reject("save_at", depths, f"a depth to save lies outside {span}", "Ask for depths within the span.")
    return depths
