"""Training by Pontryagin's principle itself: the method of successive approximations, plain and augmented."""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple, final

import torch

from continua.control.hamiltonian import ControlProblem, CostateTrace
from continua.control.norms import state_weights
from continua.control.objective import Objective
from continua.core.batch import Batch
from continua.core.checks import at_least, not_negative, positive
from continua.core.errors import SolveError, reject
from continua.core.shapes import Float, Tensor
from continua.fields import parameter_spaces
from continua.model import ContinuousTransformer, FlowVectorField
from continua.solve import AbstractStepper, Solver, State, Step
from continua.spaces import AbstractFlatSpace, Cloud

_CURE = "Use the augmented method, SuccessiveApproximations(rho=1.0), or a larger rho."


class Approximations(NamedTuple):
    """What successive approximations did: J and |dJ/dphi| before each update and after the last, and why they ended."""

    values: tuple[float, ...]
    gradients: tuple[float, ...]
    rho: float
    converged: bool
    reason: str

    def __str__(self) -> str:
        state = "converged" if self.converged else "stopped"
        return f"{state} after {len(self.values) - 1} updates at J = {min(self.values):.6e}: {self.reason}"


@final
@dataclasses.dataclass(frozen=True)
class SuccessiveApproximations:
    """Repeats: solve forwards and backwards, then minimise the Hamiltonian over the parameters along the fixed path.

        phi <- argmin sum_k <a_{k+1}, x_{k+1}(phi)> + sum_c lambda_c r_c  +  rho/2 (|x(phi) - x|^2 + |a(phi) - a|^2)

    where x_{k+1}(phi) is the solver's own step from the recorded x_k, and a_k(phi) the costate that this step pulls
    back: the Hamiltonian of the discrete problem, whose derivative at the current phi is dJ/dphi exactly. With rho = 0
    this is the plain method, which may diverge when one minimisation carries the parameters further than the path is
    good for. With rho > 0 it is the extended one: leaving the dynamics of state or costate is penalised (per unit of
    depth), an update that does not lower J is taken back and rho is raised, and relaxed again after a good one.

    An alternative to gradient training on small problems. It moves the parameters of the flow; embedding and readout
    stay as they are. The grid is the one that the first solve accepts. Parameters on a manifold (head densities on a
    simplex, orthonormal kernels) are refused: the minimisation, by L-BFGS with at most `inner` iterations, is without
    constraints.

    Q. Li, L. Chen, C. Tai, W. E, Maximum principle based algorithms for deep learning, JMLR 18 (2018).
    """

    rho: float = 1.0
    iterations: int = 100
    tolerance: float = 1e-6
    """|dJ/dphi| at which it has converged."""
    inner: int = 20
    patience: int = 10
    """Updates without a new minimum after which the plain method is given up."""

    def __post_init__(self) -> None:
        not_negative(rho=self.rho)
        at_least(1, iterations=self.iterations, inner=self.inner, patience=self.patience)
        positive(tolerance=self.tolerance)

    def __call__(
        self,
        model: ContinuousTransformer,
        batch: Batch,
        objective: Objective,
        generator: torch.Generator | None = None,
        encoded: Cloud | None = None,
    ) -> Approximations:
        """Trains the flow of `model` in place and leaves it at the best parameters that were found.

        `encoded` is the cloud that cross-attention reads, as for `trace_costates`; it stays as it is.
        """
        problem = ControlProblem(model, batch, objective, generator, encoded)
        solver = model.solver
        if not isinstance(solver, Solver):
            reject("model.solver", solver, "its steps are not ours to repeat", "Use Solver(stepper, controller).")
        values = dict(model.flow.named_parameters())
        for name, space in parameter_spaces(model.flow).items():
            if values[name].requires_grad and not isinstance(space, AbstractFlatSpace):
                cure = "Train with a Recipe, whose optimisers keep the space, or freeze it with requires_grad_(False)."
                reject(f"model.flow.{name}", space, f"it lives where {space.law}, which L-BFGS would leave", cure)
        run = _Run(self, problem, solver.stepper)
        converged, reason = run.train()
        return Approximations(tuple(run.values), tuple(run.gradients), run.rho, converged, reason)


@final
class _Run:
    """One run: the best parameters so far, and the history."""

    def __init__(self, rule: SuccessiveApproximations, problem: ControlProblem, stepper: AbstractStepper) -> None:
        self.rule, self.problem, self.stepper, self.rho = rule, problem, stepper, rule.rho
        self.objective = problem.objective
        self.parameters = [p for p in problem.model.flow.parameters() if p.requires_grad]
        self.values: list[float] = []
        self.gradients: list[float] = []

    def train(self) -> tuple[bool, str]:
        """Whether it converged, and why it ended."""
        path = self._path()
        if path is None:
            raise SolveError("J is not finite before the first update", 0.0, "Begin with other parameters.")
        best, best_parameters, since = self._record(path), self._copy_parameters(), 0
        for _ in range(self.rule.iterations):
            if self.gradients[-1] <= self.rule.tolerance:
                return True, f"|dJ/dphi| = {self.gradients[-1]:.1e} is within the tolerance {self.rule.tolerance:.1e}"
            before = self._copy_parameters()
            self._minimise(path)
            found = self._path()
            value = math.inf if found is None else float(found.terms.total)
            if self.rule.rho > 0.0 and not value < float(path.terms.total):
                # The path is good for a shorter way than this: with a larger rho the same minimisation goes less far.
                self._restore(before)
                self.rho *= 4.0
                if self.rho > 1e12 * self.rule.rho:
                    return False, f"J no longer falls, with |dJ/dphi| = {self.gradients[-1]:.1e}: rounding is reached"
                continue
            if found is None or value > 10.0 * (abs(best) + abs(self.values[0])):
                self._restore(best_parameters)
                return False, f"diverged, J went from {best:.3e} to {value:.3e}. {_CURE}"
            path = found
            self.rho = max(self.rule.rho, 0.5 * self.rho)
            value, since = self._record(path), since + 1
            if value < best:
                best, best_parameters, since = value, self._copy_parameters(), 0
            if since >= self.rule.patience:
                self._restore(best_parameters)
                return False, f"no new minimum in {since} updates after J = {best:.6e}. {_CURE}"
        self._restore(best_parameters)
        within = self.gradients[-1] <= self.rule.tolerance
        return within, f"iterations = {self.rule.iterations} were used, |dJ/dphi| = {self.gradients[-1]:.1e}"

    def _path(self) -> CostateTrace | None:
        """The extremal at the current parameters, or nothing where it is not finite."""
        try:
            path = self.problem.trace()
        except SolveError:
            return None
        finite = math.isfinite(float(path.terms.total)) and bool(torch.isfinite(path.cotangents).all())
        return path if finite else None

    def _record(self, path: CostateTrace) -> float:
        self.values.append(float(path.terms.total))
        self.gradients.append(sum(float(g.square().sum()) for g in path.gradients.values()) ** 0.5)
        return self.values[-1]

    def _minimise(self, path: CostateTrace) -> None:
        """L-BFGS on the (augmented) Hamiltonian along the path."""
        ends = {"max_iter": self.rule.inner, "tolerance_grad": 0.1 * self.rule.tolerance, "tolerance_change": 0.0}
        optimiser = torch.optim.LBFGS(self.parameters, **ends, line_search_fn="strong_wolfe")
        vector_field = path.setting.bind(self.objective.costs, second_derivatives=self.rho > 0.0)
        w = state_weights(path.setting.cloud.measure, path.setting.axis, path.points[0]).detach()

        def closure() -> Tensor:
            value = torch.zeros((), dtype=path.points.dtype, device=path.points.device)
            for k in range(len(path.depths) - 1):
                value = value + self._step(path, vector_field, k, w)
            self._set_gradients(torch.autograd.grad(value, self.parameters, allow_unused=True))
            return value.detach()

        # L-BFGS speaks through p.grad; whoever accumulates gradients there finds them as they were.
        before = [p.grad for p in self.parameters]
        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
        self._set_gradients(before)

    def _step(self, path: CostateTrace, vector_field: FlowVectorField, k: int, w: Tensor) -> Float[Tensor, ""]:
        """<a_{k+1}, x_{k+1}(phi) - x_{k+1}> + costs, and how far the step leaves the path."""
        z, dz = path.depths[k], path.depths[k + 1] - path.depths[k]
        x = path.points[k].clone().requires_grad_(self.rho > 0.0)
        costs = tuple(x.new_zeros(x.shape[0]) for _ in self.objective.costs)
        after = self.stepper.step(vector_field, Step(z, dz), State(x, costs)).state
        moved = after.x - path.points[k + 1]
        H = (path.cotangents[k + 1] * moved).sum()
        for coefficient, cost in zip(self.objective.coefficients, after.costs, strict=True):
            H = H + coefficient * cost.mean()
        if self.rho == 0.0:
            return H
        (a,) = torch.autograd.grad(H, x, create_graph=True)
        # mean_b |.|^2 in L2 of states, and of costates a = B c / w: there w ends below, and the batch size B above
        gap, heavy = a - path.cotangents[k], w > 0
        off_path = (w * moved.square()).sum() / len(x)
        off_path = off_path + len(x) * torch.where(heavy, gap.square() / torch.where(heavy, w, 1.0), 0.0).sum()
        # Divided by dz: a step's error is dz times that of the velocity, so that the sum is rho/2 int |error|^2 dz on
        # any grid, and one rho serves coarse and fine ones.
        return H + 0.5 * self.rho / dz * off_path

    def _copy_parameters(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]

    def _set_gradients(self, gradients: Iterable[Tensor | None]) -> None:
        for p, g in zip(self.parameters, gradients, strict=True):
            p.grad = g

    @torch.no_grad()
    def _restore(self, values: list[Tensor]) -> None:
        for p, value in zip(self.parameters, values, strict=True):
            p.copy_(value)
