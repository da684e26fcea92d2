"""The Hamiltonian along a solve: states, costates, and H with its derivatives by state and by parameters.

    H = <a, f> + sum_c lambda_c r_c
    dX/dz = dH/da ,   da/dz = -dH/dX ,   a(Z) = dloss/dX(Z) ,   dJ/dtheta(z) = dH/dtheta

for J = mean_b [...], in the convention of minimisation (docs/mathematics.md, section 4).
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch

from continua.control.norms import state_weights
from continua.control.objective import Objective, Terms, call_model
from continua.core.batch import Batch
from continua.core.checks import is_a
from continua.core.errors import reject
from continua.core.seeds import fresh_seed, generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.fields import AbstractField, parameter_spaces
from continua.model import ContinuousTransformer, Flow, Setting
from continua.operators import leaves, rebuild
from continua.solve import Observer, State
from continua.spaces import AbstractParameterSpace, Cloud, SimplexSpace


class HamiltonianValue(NamedTuple):
    """H at one depth and state, and what it depends on."""

    value: Float[Tensor, " batch"]
    """H_b of each sequence."""
    velocity: Points
    """f = dH/da"""
    by_state: Points
    """The derivative of mean_b H_b by the states: minus the slope of the cotangent."""
    by_parameters: dict[str, Tensor]
    """dJ/dtheta(z), the derivative of mean_b H_b by each parameter at this depth, by its name."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostateTrace:
    """States x(z) and cotangents dJ/dx(z) of one solve at every depth of its grid, detached.

    Those of any parameters, optimal or not. `gradients` are dJ/dphi for the parameters phi of the flow.
    """

    objective: Objective
    setting: Setting
    terms: Terms
    depths: tuple[float, ...]
    points: Float[Tensor, "depths batch tokens width"]
    cotangents: Float[Tensor, "depths batch tokens width"]
    terminal_cotangent: Points
    """dloss/dX(Z) of the terminal loss alone, with no solve in between."""
    gradients: dict[str, Tensor]

    @property
    def costates(self) -> Float[Tensor, "depths batch tokens width"]:
        """a(z) in L2, at every depth."""
        return self.costate(self.cotangents)

    def costate(self, cotangent: Float[Tensor, "*depths batch tokens width"]) -> Tensor:
        """The cotangent of mean_b J_b as the costate of each sequence in L2: B dJ/dx_ia / (w_i v_a).

        Tokens without mass have no density in L2 and are left out: their entries are zero.
        """
        # Autograd's dJ/dx_ia shrinks as tokens and nodes are added. Its density in L2 does not: it converges to the
        # costate of the continuous problem.
        w = state_weights(self.setting.cloud.measure, self.setting.axis, self.points[0]).detach()
        return torch.where(w > 0, len(self.points[0]) * cotangent / torch.where(w > 0, w, 1.0), 0.0)

    def side(self, index: int) -> float:
        """The middle of the step that begins at a depth of the grid; at the end, of the last one."""
        first = min(index, len(self.depths) - 2)
        return 0.5 * (self.depths[first] + self.depths[first + 1])

    def evaluator(self) -> Callable[[float, Points, Points, float], HamiltonianValue]:
        """(z, points, cotangent, depth inside the step to be read) -> H and its derivatives, at any depth and state."""
        objective, flow = self.objective, self.setting.flow
        vector_field = self.setting.bind(objective.costs)

        def evaluate(z: float, points: Points, cotangent: Points, inside: float) -> HamiltonianValue:
            with torch.enable_grad(), free_parameters(flow) as thetas:
                x = points.detach().requires_grad_(True)
                zeros = tuple(x.new_zeros(x.shape[0]) for _ in objective.costs)
                slope = vector_field(z, State(x, zeros), inside)
                # The cotangent is that of the mean over the batch; each sequence's own is batch times as large.
                H = x.shape[0] * (cotangent * slope.x).sum((-1, -2))
                for coefficient, rate in zip(objective.coefficients, slope.costs, strict=True):
                    H = H + coefficient * rate
                by_x, *found = _derivatives(H.mean(), [x, *thetas.values()])
            homes = {f"{name}.{leaf}": spec.home for name, field in _fields(flow) for leaf, spec in leaves(field.spec)}
            each = zip(thetas.items(), found, strict=True)
            by_theta = {name: _tangent_part(homes[name], theta.detach(), g) for (name, theta), g in each}
            return HamiltonianValue(H.detach(), slope.x.detach(), by_x, by_theta)

        return evaluate


def trace_costates(
    model: ContinuousTransformer,
    batch: Batch,
    objective: Objective,
    save_at: Sequence[float] = (),
    generator: torch.Generator | None = None,
    encoded: Cloud | None = None,
) -> CostateTrace:
    """One solve forwards, on the grid that the model's own controller accepts, and one backwards, by its gradient.

    Nothing is optimised: the parameters are the model's own (`SuccessiveApproximations` improves them).

    Depths of `save_at` join the grid, so that costates there are those of the discrete solve and not interpolated; J is
    that of this finer grid.
    `encoded` is the cloud that cross-attention reads: of an encoder-decoder, its decoder with `both.encode(*source)`.
    """
    problem = ControlProblem(model, batch, objective, generator, encoded)
    depth, grid = model.flow.depth, problem.grid
    if any(not 0.0 <= z <= depth for z in save_at):
        reject("save_at", tuple(save_at), f"depth goes from 0 to {depth}", "Pass depths within.")
    # Nearer to another than rounding, a depth would make a step of length zero.
    for z in save_at:
        if all(abs(z - known) > 1e-12 * depth for known in grid):
            grid = [*grid, float(z)]
    problem.grid = sorted(grid)
    return problem.trace()


@final
class ControlProblem:
    """A model, a batch and an objective, all fixed but the parameters: tokens at depth 0, the accepted grid, seed."""

    def __init__(
        self,
        model: ContinuousTransformer,
        batch: Batch,
        objective: Objective,
        generator: torch.Generator | None,
        encoded: Cloud | None,
    ) -> None:
        cure = "Pass a ContinuousTransformer; of an encoder-decoder, its decoder with encoded=both.encode(*source)."
        is_a(ContinuousTransformer, cure, model=model)
        is_a(Batch, "Pass Batch(inputs, targets).", batch=batch)
        is_a(Objective, "Pass Objective(loss), such as Objective(CrossEntropy()).", objective=objective)
        self.model, self.batch, self.objective, self.encoded = model, batch, objective, encoded
        random = model.training or any(cost.random for cost in objective.costs)
        self.seed = fresh_seed(generator) if random else 0
        with torch.no_grad():
            self.start = call_model(model, batch, objective.costs, generator_of(self.seed), encoded=encoded)
        self.grid = self.start.solution.stats.grid
        if not self.grid:
            cure = "Use model.at(steps=...) or model.at(solver=Solver(stepper, Adaptive()))."
            reject("model.solver", model.solver, "every sequence has a grid of its own, and costates need one", cure)

    def trace(self) -> CostateTrace:
        """The extremal at the current parameters."""
        seen: list[tuple[float, Tensor, Tensor]] = []
        watch = Observer(cotangent=lambda z, points, g: seen.append((float(z), points.clone(), g.clone())))
        flow, cloud = self.model.flow, self.start.cloud
        names = {name: p for name, p in flow.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            start = cloud.points.detach().requires_grad_(True)
            solve = {"encoded": self.encoded, "grid": self.grid, "observers": (watch,), "full": True}
            found = self.model(cloud.at(start), costs=self.objective.costs, generator=generator_of(self.seed), **solve)
            if (where := self.start.where) is not None:  # with queries, the output is theirs
                found = found._replace(output=found.output.take_along_dim(where.unsqueeze(-1), 1))
            terms = self.objective.read(found, self.batch)
            # of the terminal loss alone: the running costs reach the end by the solve, not by the loss
            (terminal,) = _derivatives(terms.terminal, [found.solution.x], keep=True)
            seen.clear()  # `Direct` is observed by hooks on the states, and that of the last one has just fired
            _, *gradients = _derivatives(terms.total, [start, *names.values()])
        depths, points, cotangents = zip(*reversed(seen), strict=True)  # the backward pass met them from the end
        spaces, each = parameter_spaces(flow), zip(names.items(), gradients, strict=True)
        bare = {name: getattr(terms, name).detach() for name in ("total", "terminal", "output")}
        running = {name: cost.detach() for name, cost in terms.running.items()}
        return CostateTrace(
            self.objective,
            dataclasses.replace(found.setting, cloud=cloud.at(start.detach())),
            terms._replace(**bare, running=running),
            depths,
            torch.stack(points),
            torch.stack(cotangents),
            terminal,
            {name: spaces[name].tangent(p.detach(), g) for (name, p), g in each},
        )


@contextlib.contextmanager
def free_parameters(flow: Flow) -> Iterator[dict[str, Tensor]]:
    """Within, every field of the flow gives parameters of its own, cut off from its coefficients: free variables theta.

    They are made when a field is first read and stay the same, so that one block belongs to one depth.
    """
    # Hooks, since operators read their field deep inside the flow, and running costs (FieldSize) read it once more: all
    # must meet the same leaf tensors for dH/dtheta to be whole.
    thetas: dict[str, Tensor] = {}

    def hook(name: str, module: AbstractField, inputs: Any, theta: Any) -> Any:
        for leaf, value in leaves(theta):
            thetas.setdefault(f"{name}.{leaf}", value.detach().requires_grad_(True))
        return rebuild(theta, {leaf: thetas[f"{name}.{leaf}"] for leaf, _ in leaves(theta)})

    handles = [field.register_forward_hook(functools.partial(hook, name)) for name, field in _fields(flow)]
    try:
        yield thetas
    finally:
        for handle in handles:
            handle.remove()


def _fields(flow: Flow) -> list[tuple[str, AbstractField]]:
    return [(name, module) for name, module in flow.named_modules() if isinstance(module, AbstractField)]


def _derivatives(scalar: Tensor, inputs: list[Tensor], keep: bool = False) -> list[Tensor]:
    """The gradient by each input, zero where nothing depends on it."""
    if not scalar.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(scalar, inputs, retain_graph=keep, materialize_grads=True))


def _tangent_part(space: AbstractParameterSpace, p: Tensor, g: Tensor) -> Tensor:
    """The part of a gradient by theta(z) that its space lets act; for masses p, which sum to one, g - <p, g>."""
    if isinstance(space, SimplexSpace):  # a gradient by the logits that fields hold needs no such care
        return g - (p * g).sum(space.axis, keepdim=True)
    return space.tangent(p, g)
