"""`gradient-accuracy`: three gradients of one solve against steps, tolerance and contraction."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple, final

import torch

from continua.core.errors import ReconstructionWarning, SolveError
from continua.core.shapes import Tensor
from continua.fields import Constant
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import in_ball, random_theta
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, at_most, equals
from continua.model import Flow, Part
from continua.operators import Attention, Damping
from continua.runs import Curve, Note
from continua.solve import (
    AbstractController,
    AbstractGradient,
    AbstractStepper,
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Fixed,
    Midpoint,
    integrate,
)
from continua.spaces import Cloud

WAYS: dict[str, AbstractGradient] = {"Direct": Direct(), "Checkpointed": Checkpointed(), "Backsolve": Backsolve()}
_WIDTH = 4
_FAR = 1e12
"""What stands for all errors that are as large or larger."""
BROKEN = 0.1
"""A gradient that is off by more than this fraction of itself is of no use."""


class FoundGradient(NamedTuple):
    """The gradient of the loss by all parameters, in one vector, and how exactly `Backsolve` retraced the path."""

    slopes: Tensor
    reconstruction: float
    warned: bool


def differentiate(
    gamma: float, depth: float, stepper: AbstractStepper, controller: AbstractController, way: AbstractGradient
) -> FoundGradient:
    """The gradient of mean |x(Z) - y|^2 for attention with damping: dx/dz = A(x) + b - gamma x.

    The bias keeps tokens away from the origin, where the gradient would vanish with them.
    """
    attention = Attention(2, _WIDTH, beta=1.0, head_masses=True)
    theta = random_theta(2, _WIDTH, _WIDTH, 2.0, 41)
    zeros = theta.q.new_zeros(2, _WIDTH)
    push = (1.0 + gamma) * in_ball((1, _WIDTH), 1.0, 44)[0]
    theta = theta._replace(bq=zeros, bk=zeros, bv=zeros, bo=push)
    field = Constant(attention.spec(_WIDTH)).double().fill(theta)
    damping = Part(Damping(gamma), Constant(Damping(gamma).spec(_WIDTH)))
    flow = Flow([Part(attention, field), damping], depth).double()
    x, y = in_ball((3, 5, _WIDTH), 1.0, 42), in_ball((3, 5, _WIDTH), 1.0, 43)
    bound = flow.bind(Cloud(x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReconstructionWarning)
        solved = integrate(bound, bound.initial(), (0.0, depth), stepper, controller, way)
        slopes = torch.autograd.grad((solved.x - y).square().mean(), list(flow.parameters()))
    warned = any(issubclass(w.category, ReconstructionWarning) for w in caught)
    flat = torch.cat([slope.flatten() for slope in slopes])
    return FoundGradient(flat, solved.stats.reconstruction_error or 0.0, warned)


def exact_gradient(gamma: float, depth: float) -> Tensor:
    """By autograd through steps of a tolerance far below those that are compared."""
    return differentiate(gamma, depth, DormandPrince(), Adaptive(1e-11, 1e-12, max_steps=100_000), Direct()).slopes


def relative_gap(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@final
class GradientOrders(AbstractCell):
    """Errors of the three gradients over equal midpoint steps, and over the tolerance of Dormand-Prince."""

    steps: tuple[int, ...]
    tolerances: tuple[float, ...]
    gamma: float = 0.5

    def measure(self) -> Row:
        exact = exact_gradient(self.gamma, 1.0)
        fixed: dict[str, list[float]] = {}
        adaptive: dict[str, list[float]] = {}
        found = {
            name: [differentiate(self.gamma, 1.0, Midpoint(), Fixed(n), way).slopes for n in self.steps]
            for name, way in WAYS.items()
        }
        apart = max(relative_gap(a, b) for a, b in zip(found["Checkpointed"], found["Direct"], strict=True))
        for name, way in WAYS.items():
            fixed[name] = [relative_gap(g, exact) for g in found[name]]
            solved = (differentiate(self.gamma, 1.0, DormandPrince(), Adaptive(t, t), way) for t in self.tolerances)
            adaptive[name] = [relative_gap(g.slopes, exact) for g in solved]
        return {"fixed": fixed, "adaptive": adaptive, "apart": apart}


@final
class Contraction(AbstractCell):
    """Errors over the rate of contraction, and what `Backsolve` says about itself."""

    rates: tuple[float, ...]
    depth: float = 2.0
    rtol: float = 1e-6

    def measure(self) -> Row:
        errors: dict[str, list[float]] = {name: [] for name in WAYS}
        reconstruction, warned = [], []
        for gamma in self.rates:
            exact = exact_gradient(gamma, self.depth)
            for name, way in WAYS.items():
                controller = Adaptive(self.rtol, self.rtol, max_steps=500)
                try:
                    found = differentiate(gamma, self.depth, DormandPrince(), controller, way)
                except SolveError:  # the way back has diverged
                    found = FoundGradient(_FAR * exact, _FAR, True)
                errors[name].append(min(relative_gap(found.slopes, exact), _FAR))
                if name == "Backsolve":
                    reconstruction.append(min(found.reconstruction, _FAR))
                    warned.append(found.warned)
        return {"errors": errors, "reconstruction": reconstruction, "warned": warned}


@final
class GradientAccuracy(AbstractExperiment):
    """Orders in steps and tolerance; where backsolve breaks, and whether it says so."""

    name = "gradient-accuracy"
    claim = (
        "three gradients of one solve converge at the order of its steps, the discrete adjoint being exact for them; "
        "on contracting flows the path cannot be retraced, backsolve breaks and says so, the others stay"
    )
    formula = '|x_{"back"}(0) - x(0)| ~ e^{gamma Z} "tol"'
    source = "docs/mathematics.md, section 5; seen before by A. Gholami et al., ANODE, IJCAI 2019"

    steps: tuple[int, ...] = (8, 16, 32, 64, 128)
    tolerances: tuple[float, ...] = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
    rates: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0)

    def quick(self) -> "GradientAccuracy":
        return GradientAccuracy(steps=(8, 16, 32, 64), tolerances=(1e-3, 1e-4, 1e-5), rates=(0.0, 2.0, 6.0, 12.0))

    def cells(self) -> Sequence[AbstractCell]:
        return [GradientOrders(self.steps, self.tolerances), Contraction(self.rates)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        orders, contraction = rows
        slopes = {f"slope in steps: {n}": slope_interval(self.steps, e) for n, e in orders["fixed"].items()}
        errors, warned = contraction["errors"], contraction["warned"]
        share = max(e / t for es in orders["adaptive"].values() for e, t in zip(es, self.tolerances, strict=True))
        broken = [rate for rate, e in zip(self.rates, errors["Backsolve"], strict=True) if e > BROKEN]
        silent = [e for e, told in zip(errors["Backsolve"], warned, strict=True) if not told]
        judgement = all_of(
            *(equals(name, slope, -float(Midpoint().order), 0.2) for name, slope in slopes.items()),
            at_most("Checkpointed against Direct", orders["apart"], 1e-12),
            at_most("error over tolerance, all gradients", share, 100.0),
            at_most("Direct and Checkpointed under contraction", max(*errors["Direct"], *errors["Checkpointed"]), 1e-3),
            at_least("rates at which backsolve breaks", float(len(broken)), 1.0),
            at_most("error of backsolve where it does not warn", max(silent, default=0.0), 0.01),
        )
        measured = {
            **slopes,
            "Checkpointed against Direct": orders["apart"],
            "error over tolerance": share,
            "backsolve breaks at gamma Z": 2.0 * broken[0] if broken else math.inf,
            "backsolve, error over rates": errors["Backsolve"],
            "backsolve, reconstruction error over rates": contraction["reconstruction"],
            "others, largest error": max(*errors["Direct"], *errors["Checkpointed"]),
        }
        if not broken:
            del measured["backsolve breaks at gamma Z"]
        fixed = [Curve.of(name, self.steps, e, mark="both") for name, e in orders["fixed"].items()]
        adaptive = [Curve.of(name, self.tolerances, e, mark="both") for name, e in orders["adaptive"].items()]
        over = [Curve.of(name, self.rates, e, mark="both") for name, e in errors.items()]
        over.append(Curve.of("Backsolve, reconstruction of x(0)", self.rates, contraction["reconstruction"]))
        figures = (
            curves("gradients over steps", "midpoint steps", "relative error", fixed, "xy"),
            curves("gradients over tolerance", "rtol = atol", "relative error", adaptive, "xy"),
            curves("gradients over contraction", "rate gamma, depth 2, rtol 1e-6", "relative error", over, "y",
                   notes=(Note(BROKEN, "of no use", "y"),)),
        )  # fmt: skip
        bound = {**dict.fromkeys(slopes, -2.0), "Checkpointed against Direct": AtMost(1e-12)}
        return Findings(figures, measured, bound, judgement)
