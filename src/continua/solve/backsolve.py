"""The continuous adjoint: state, cotangent and parameter gradient integrated backwards in constant memory."""

import dataclasses
import warnings
from collections.abc import Sequence

import torch

from continua.core.checks import positive
from continua.core.errors import ReconstructionWarning, reject
from continua.core.shapes import DepthValue, Tensor
from continua.solve.controllers import Adaptive, Given, PerSequence
from continua.solve.functions import FunctionVectorField, hidden_leaves, refuse_hidden
from continua.solve.gradients import AbstractNodeGradient, Parameters, pull_back, refuse_shards
from continua.solve.integration import AbstractController, Endpoint, Integration, Stats
from continua.solve.runge_kutta import AbstractStepper, StepResult
from continua.solve.vector_field import AbstractVectorField, State


@dataclasses.dataclass(frozen=True)
class Backsolve(AbstractNodeGradient):
    """dx/dz = f, da/dz = -(df/dx)^T a - c dr/dx, dg/dz = -(df/dphi)^T a - c dr/dphi, from the end to the start.

    Memory does not grow with depth. The path is retraced, not remembered: on a contracting flow the way back is
    unstable and the gradient wrong, which `stats.reconstruction_error` reports and a `ReconstructionWarning` says when
    it exceeds `trust` (`None`: 100 (rtol + atol), or 1e-3 on a given grid). The adjoint of the ODE, not of the discrete
    solve: both agree to the solver's tolerance. Reference implementation: torchdiffeq's `odeint_adjoint`.

    a is the cotangent dJ/dx of autograd, and no density of it (`trace_costates`). `clip` bounds what of it enters the
    adjoint ODE: wherever |a| > clip for a sequence, clip a/|a| takes its place on the right-hand side, so that a grows
    at most linearly, |a(0)| <= |a(Z)| + clip int |df/dx| dz. What comes out is then no longer the gradient.
    """

    trust: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        positive(trust=self.trust, clip=self.clip)

    def check(self, stepper: AbstractStepper, controller: AbstractController) -> None:
        """Rejects steps that cannot be retraced."""
        cure = "Use gradient=Checkpointed(), which replays any step"
        if not stepper.reversible:
            why = "Backsolve retraces an ODE backwards, which split or projected steps do not solve so"
            reject("stepper", stepper, why, f"{cure}; or Runge-Kutta steps: model.at(rtol=1e-5, gradient=Backsolve()).")
        if isinstance(controller, PerSequence):
            reject("controller", controller, "Backsolve retraces one grid for all sequences", f"{cure}.")

    def run_forward(self, integration: Integration, start: State) -> tuple[Endpoint, list[Tensor], None]:
        refuse_shards(integration.vector_field.tensors, self)
        end = integration.run(start)
        # the state at the start is kept for nothing but the judgement of the way back
        return end, [start.x, end.state.x], None

    def run_backward(
        self, integration: Integration, kept: Sequence[Tensor], rest: None, cotangent: Endpoint, needed: Parameters
    ) -> tuple[Tensor, list[Tensor]]:
        # the adjoint is linear in a: scaled to unit size, so that atol means the same for it as for x
        unit = max(float(g.abs().max()) for g in cotangent.flat) or 1.0
        clip = None if self.clip is None else self.clip / unit
        adjoint = Adjoint(
            integration.vector_field, kept[0].shape, needed, [g / unit for g in cotangent.state.costs], clip
        )
        # what joins it on the way back: the cotangents of the end and of saved depths, the farthest first
        joins = {integration.span[1]: cotangent.state.x / unit}
        for z, g in reversed(list(zip(integration.save_at, cotangent.saved, strict=True))):
            joins[z] = joins[z] + g / unit if z in joins else g / unit
        back, a, sums = _back(integration, adjoint, kept[1], joins, unit)
        self._judge(integration, kept[0], back)
        return unit * a, [unit * g for g in sums]

    def _judge(self, integration: Integration, start: Tensor, back: Tensor) -> None:
        """Records how far the way back missed the start, and warns where it cannot be trusted."""
        weights, controller, trust = integration.vector_field.weights, integration.controller, self.trust
        masses = 1.0 if weights is None else weights.unsqueeze(-1)
        gap, size = ((masses * x.square()).sum().sqrt().item() for x in (start - back, start))
        error = integration.stats.reconstruction_error = gap / (size or 1.0)
        if trust is None:
            tolerance = controller.tolerance if isinstance(controller, Adaptive) else None
            trust = 1e-3 if tolerance is None else 100.0 * (tolerance.rtol + tolerance.atol)
        if not error <= trust:
            reason = f"the backward solve missed the start of the forward one by {error:.1e} (relative)"
            advice = "Use gradient=Checkpointed(), or tighten rtol and atol"
            cause = "this flow contracts, or the tolerance is loose"
            warning = f"{reason}: {cause}, and the gradient is not to be trusted. {advice}."
            warnings.warn(warning, ReconstructionWarning, stacklevel=2)


class Adjoint(AbstractVectorField):
    """The flow of (x, a | g) in `Backsolve`: state and cotangent side by side along the width, the g as costs.

    `parameters` are phi, `costs` the cotangents c of the running costs r, which do not change along depth, and `clip`
    bounds |a| of each sequence on the right-hand side.
    """

    def __init__(
        self,
        flow: AbstractVectorField,
        shape: torch.Size,
        parameters: Parameters,
        costs: Sequence[Tensor],
        clip: float | None,
    ) -> None:
        self.flow, self.shape, self.parameters, self.costs, self.clip = flow, shape, parameters, tuple(costs), clip
        self.breaks, self.weights, self.inputs = flow.breaks, flow.weights, tuple(parameters.tensors)

    def expect(self, depths: Sequence[float]) -> None:
        """Nothing is prepared."""

    def rates(self, z: DepthValue, x: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        raise AssertionError("splitting and projection are refused before")

    def costs_of_step(self, z: DepthValue, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        raise AssertionError("splitting and projection are refused before")

    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        x, a = self.split(state.x)
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            slope = self.flow(z, State(x, tuple(torch.zeros_like(c) for c in self.costs)), inside)
        cotangents = [-self._clip(a), *(-c for c in self.costs)]
        outputs = (slope.x, *slope.costs)
        doubtful = isinstance(self.flow, FunctionVectorField) or bool(self.costs)
        suspects = hidden_leaves(outputs, [x, *self.inputs]) if doubtful else []
        found = pull_back(outputs, cotangents, (x,), self.parameters)
        da, *dg = (torch.zeros_like(x) if g is None else g for x, g in zip((x, *self.inputs), found, strict=True))
        slope = State(self.join(slope.x.detach(), da), tuple(dg))
        del outputs  # the graph goes, and with it the leaves that the function made itself
        refuse_hidden(suspects)
        return slope

    def join(self, x: Tensor, a: Tensor) -> Tensor:
        return torch.cat([x, a], -1) if self.shape else torch.stack([x, a])

    def split(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        x, a = joined.chunk(2, -1)
        return x.reshape(self.shape), a.reshape(self.shape)

    def _clip(self, a: Tensor) -> Tensor:
        if self.clip is None:
            return a
        norm = a.abs() if a.ndim < 2 else a.flatten(1).norm(dim=-1).view(-1, *(1 for _ in a.shape[1:]))
        return a * (self.clip / norm.clamp_min(1e-30)).clamp_max(1.0)


def _back(
    integration: Integration, adjoint: Adjoint, end: Tensor, joins: dict[float, Tensor], unit: float
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """x and cotangent at the start and the gradient of every tensor, solved backwards from join to join."""
    state = State(adjoint.join(end, torch.zeros_like(end)), tuple(torch.zeros_like(t) for t in adjoint.inputs))
    depths = [*joins, integration.span[0]]
    for z, to, g in zip(depths[:-1], depths[1:], joins.values(), strict=True):
        x, a = adjoint.split(state.x)
        state = State(adjoint.join(x, a + g), state.costs)
        if to != z:
            integration.notify(z, x, unit * (a + g))
            state = _leg(integration, adjoint, state, (z, to), unit)
    x, a = adjoint.split(state.x)
    integration.notify(integration.span[0], x, unit * a)
    return x, a, state.costs


def _leg(integration: Integration, adjoint: Adjoint, state: State, span: tuple[float, float], unit: float) -> State:
    def on_step(result: StepResult) -> None:
        z = result.step.z + result.step.dz
        assert isinstance(z, float)
        if abs(z - span[1]) > integration.slack:  # the end of a leg is told of once all has joined there
            x, a = adjoint.split(result.state.x)
            integration.notify(z, x, unit * a)

    controller = integration.controller
    if isinstance(controller, Adaptive):
        # parameter gradients, the costs here, are quadratures that never feed back: outside the norm (P. Kidger,
        # R. T. Q. Chen, T. Lyons, "Hey, that's not an ODE": faster ODE adjoints via seminorms, ICML 2021)
        controller = dataclasses.replace(controller, first=None, costs=False)
    else:
        between = [z for z in reversed(integration.stats.grid) if min(span) < z < max(span)]
        controller = Given((span[0], *between, span[1]))
    # statistics of its own: those of the forward solve keep its grid, which every leg of the way back reads
    return Integration(adjoint, span, integration.stepper, controller, (), (), Stats()).run(state, on_step).state
