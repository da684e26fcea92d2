"""The Pontryagin report: how far a model on a batch is from the conditions of optimality."""

import dataclasses
from typing import final

import numpy as np
import torch

from continua.control.hamiltonian import CostateTrace, trace_costates
from continua.control.norms import relative
from continua.control.objective import Objective
from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.model import ContinuousTransformer
from continua.operators import leaves
from continua.solve import Solver, manifold_of
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PontryaginReport:
    """The conditions of Pontryagin's principle, each as a number and, where it lives along depth, as an array.

    - `terminal_mismatch`: |a(Z) - dloss/dX(Z)| / |dloss/dX(Z)|, zero for every exact gradient;
    - `defects`: for each step, |a' + dH/dX| / max_z |a|, the residual of the costate equation on the cubic through both
      ends of the step (Simpson's rule; what `scipy.integrate.solve_bvp` measures). It falls with the steps;
    - `projected_gradient`: |dJ/dphi| over the parameters of the flow, which training drives to zero;
    - `gradient_norms`: |dH/dtheta(z)| at each depth. Its maximum `unprojected_gradient` does not vanish for a field of
      few modes: it is what a richer field would gain;
    - `hamiltonian`: H_b(z) for each sequence. `drift` is max |H_b(z) - H_b(0)|, zero to solver accuracy where the
      parameters do not depend on depth; elsewhere H may change, dH/dz being its partial derivative.

    Gradients are those within the space of a parameter: along the simplex of head masses up to their constant, on the
    Stiefel manifold of orthonormal kernels the tangent part.
    """

    objective: float
    terminal_mismatch: float
    projected_gradient: float
    depths: Float[np.ndarray, " depths"]
    hamiltonian: Float[np.ndarray, "depths batch"]
    costate_norms: Float[np.ndarray, " depths"]
    """|a(z)| in L2, the root mean square over the batch."""
    gradient_norms: Float[np.ndarray, " depths"]
    defects: Float[np.ndarray, " steps"]
    breaks: tuple[float, ...] = ()
    autonomous: bool = False

    @property
    def defect(self) -> float:
        """The largest defect of the costate equation."""
        return float(self.defects.max())

    @property
    def unprojected_gradient(self) -> float:
        """max_z |dH/dtheta(z)|."""
        return float(self.gradient_norms.max())

    @property
    def drift(self) -> float:
        """max |H_b(z) - H_b(0)| over depths and sequences."""
        return float(np.abs(self.hamiltonian - self.hamiltonian[0]).max())

    @property
    def conditions(self) -> tuple[tuple[str, float, str], ...]:
        """Every condition as a row: its name, its number, and what that means."""
        size = float(np.abs(self.hamiltonian).max())
        why = "do not depend on depth: conserved" if self.autonomous else "move with depth"
        return (
            ("objective J", self.objective, f"{len(self.defects)} steps, {self.hamiltonian.shape[1]} sequences"),
            ("terminal mismatch", self.terminal_mismatch, "|a(Z) − ∂ℓ/∂X(Z)|, relative"),
            ("costate defect", self.defect, "largest |a′ + ∂H/∂X| of a step, in units of the largest |a|"),
            ("projected |dJ/dφ|", self.projected_gradient, "what training drives to zero"),
            ("unprojected |∂H/∂θ|", self.unprojected_gradient, "largest over depth: what a richer field would gain"),
            ("drift of H", self.drift, f"largest |H(z) − H(0)|, of {size:.1e}; the parameters {why}"),
        )

    def __str__(self) -> str:
        return "\n".join(f"{name:<24} {value:>11.3e}   {meaning}" for name, value, meaning in self.conditions)


def pontryagin(
    model: ContinuousTransformer,
    batch: Batch,
    objective: Objective,
    generator: torch.Generator | None = None,
    encoded: Cloud | None = None,
) -> PontryaginReport:
    """The report for a model, on the grid that its own controller accepts and by its own gradient.

    `encoded` is the cloud that cross-attention reads, as for `trace_costates`.
    """
    path = trace_costates(model, batch, objective, generator=generator, encoded=encoded)
    if isinstance(model.solver, Solver) and manifold_of(model.solver.stepper) is not None:
        cure = "Report on the model without projection: model.at(solver=Solver(DormandPrince()))."
        reject("model.solver", model.solver.stepper, "a projected flow has its costates in tangent spaces", cure)
    hamiltonian, gradients, defects = _along(path)
    # mean_b sum_ia w_i v_a a_ia^2 = sum_bia (dJ/dx_bia) a_bia, since a costate is B dJ/dx / (w v)
    costates = (path.cotangents * path.costates).sum((-1, -2, -3)).clamp_min(0.0).sqrt()
    return PontryaginReport(
        objective=float(path.terms.total),
        terminal_mismatch=relative(path.cotangents[-1] - path.terminal_cotangent, path.terminal_cotangent),
        projected_gradient=_size(path.gradients),
        depths=np.array(path.depths),
        hamiltonian=hamiltonian,
        costate_norms=_array(costates),
        gradient_norms=gradients,
        defects=defects,
        breaks=path.setting.bind().breaks,
        autonomous=_autonomous(path),
    )


def _along(path: CostateTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """H and |dH/dtheta| at every depth, and the costate defect of every step."""
    evaluate = path.evaluator()
    values, sizes, defects = [], [], []
    largest = max(float(path.cotangents.flatten(1).norm(dim=-1).max()), torch.finfo(path.cotangents.dtype).tiny)
    for k in range(len(path.depths) - 1):
        # Both ends are read from inside the step: at a jump of the parameters the two sides have different slopes.
        inside, dz = path.side(k), path.depths[k + 1] - path.depths[k]
        start, end = (evaluate(path.depths[i], path.points[i], path.cotangents[i], inside) for i in (k, k + 1))
        # The middle of the cubic through both ends and their slopes, for x and for a. Simpson's rule then gives the
        # mean of da/dz over the step to fourth order: what remains is the defect of the solve, not of the measurement.
        x = 0.5 * (path.points[k] + path.points[k + 1]) + dz / 8.0 * (start.velocity - end.velocity)
        a0, a1 = path.cotangents[k], path.cotangents[k + 1]
        a = 0.5 * (a0 + a1) - dz / 8.0 * (start.by_state - end.by_state)
        middle = evaluate(inside, x, a, inside)
        mean_slope = (start.by_state + 4.0 * middle.by_state + end.by_state) / 6.0
        defects.append(float(((a1 - a0) / dz + mean_slope).norm()) / largest)
        ends = [start] if k < len(path.depths) - 2 else [start, end]
        values += [_array(at.value) for at in ends]
        sizes += [_size(at.by_parameters) for at in ends]
    return np.stack(values), np.array(sizes), np.array(defects)


def _autonomous(path: CostateTrace) -> bool:
    """Whether the parameters are the same at every depth of the grid."""
    flow = path.setting.flow
    if flow.profile is not None:
        return False
    with torch.no_grad():
        first, *others = ([leaf for field in flow.fields for _, leaf in leaves(field(z))] for z in path.depths)
    return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def _size(gradients: dict[str, Tensor]) -> float:
    return float(sum(float(g.square().sum()) for g in gradients.values())) ** 0.5


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy()
