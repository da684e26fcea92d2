"""What every stepper is, and the explicit Runge-Kutta steppers, whose tableaux are data."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch

from continua.core.shapes import DepthValue, Tensor
from continua.solve.vector_field import AbstractVectorField, State, advance


class Step(NamedTuple):
    """One step, from z to z + dz (per sequence: dz = 0 where a sequence does not move)."""

    z: DepthValue
    dz: DepthValue


class StepResult(NamedTuple):
    """One step: the state before it, where it led, and what is known about it.

    - `error`: difference to the embedded solution of lower order, where the stepper has one and it was asked for;
    - `slopes`: those of the stages, the first at the start of the step, where the stepper knows it;
    - `last`: the slope at the end of the step, where the stepper knows it (first same as last).
    """

    step: Step
    before: State
    state: State
    error: State | None = None
    slopes: tuple[State, ...] = ()
    last: State | None = None


class AbstractStepper(abc.ABC):
    """A one-step method: (step, state) -> state. Reads every field inside the step, never beyond a jump."""

    order: int
    """Global error is O(dz^order) on smooth flows whose jumps are on the grid."""
    error_order: int | None = None
    """Order of the embedded error estimate; `None` for a stepper without one (no adaptive steps)."""
    stages: int
    """Evaluations of the velocity in one step."""
    reversible: bool = False
    """Whether the step approximates the flow of one ODE, so that it may be integrated backwards."""
    reads_middle: bool = False
    """Whether a step evaluates the vector field at its middle alone."""

    @abc.abstractmethod
    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        """Depths that the steps may not straddle on a grid that holds `marks`."""

    @abc.abstractmethod
    def step(
        self, f: AbstractVectorField, step: Step, state: State, first: State | None = None, with_error: bool = False
    ) -> StepResult:
        """One step. `first` is the slope at the start if it is known; `with_error` asks for the error estimate."""

    @abc.abstractmethod
    def dense(self, f: AbstractVectorField, result: StepResult, fractions: Sequence[float]) -> list[Tensor]:
        """x at z + fraction dz, inside an accepted step, for each of the fractions."""


def hermite(before: Tensor, after: Tensor, f0: Tensor, f1: Tensor, dz: DepthValue, fraction: float) -> Tensor:
    """The cubic through both ends of a step with the slopes f0, f1 there: error O(dz^4) within the step.

    Reference implementation: `scipy.interpolate.CubicHermiteSpline`.
    """
    assert not isinstance(dz, Tensor), "depths are saved on one grid for all sequences"
    s = fraction
    ends = torch.lerp(before, after, s * s * (3.0 - 2.0 * s))
    ends = torch.add(ends, f0, alpha=dz * s * (1.0 - s) ** 2)
    return torch.add(ends, f1, alpha=-dz * s * s * (1.0 - s))


@dataclasses.dataclass(frozen=True)
class Tableau:
    """Butcher coefficients: k_i = f(z + c_i dz, x + dz sum_j a_ij k_j), x' = x + dz sum_i b_i k_i.

    `e` gives the error estimate dz sum_i e_i k_i of an embedded pair; its last entry belongs to the slope at the new
    point, which is also the first slope of the next step. `dense[i]` are the coefficients (from degree 1) of the
    polynomial b_i(s) of the interpolant x(z + s dz) = x + dz sum_i b_i(s) k_i, the last again for the new point.
    """

    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    e: tuple[float, ...] | None = None
    error_order: int | None = None
    dense: tuple[tuple[float, ...], ...] | None = None


class AbstractRungeKutta(AbstractStepper):
    """x' = x + dz sum_i b_i k_i. A concrete stepper is its tableau."""

    # a class attribute that every concrete class must set
    tableau: ClassVar[Tableau] = property(abc.abstractmethod(lambda _: None))  # pyright: ignore[reportAssignmentType]
    reversible = True

    def __init_subclass__(cls) -> None:
        cls.order, cls.error_order, cls.stages = cls.tableau.order, cls.tableau.error_order, len(cls.tableau.b)

    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        return f.breaks

    def step(
        self, f: AbstractVectorField, step: Step, state: State, first: State | None = None, with_error: bool = False
    ) -> StepResult:
        # every stage of a step reads the fields on the side of its middle: both ends may lie on jumps
        (z, dz), tableau, inside = step, self.tableau, step.z + 0.5 * step.dz
        slopes = [f(z, state, inside) if first is None else first]
        for a, c in zip(tableau.a[1:], tableau.c[1:], strict=True):
            x = advance(state.x, dz, a, [k.x for k in slopes])
            slopes.append(f(z + c * dz, State(x, state.costs), inside))
        after = _advance_state(state, dz, tableau.b, slopes)
        if not with_error or tableau.e is None:
            return StepResult(step, state, after, slopes=tuple(slopes))
        last = f(z + dz, after, inside)
        zero = State(torch.zeros_like(state.x), tuple(torch.zeros_like(c) for c in state.costs))
        with torch.no_grad():
            error = _advance_state(zero, dz, tableau.e, [*slopes, last])
        return StepResult(step, state, after, error, tuple(slopes), last)

    def dense(self, f: AbstractVectorField, result: StepResult, fractions: Sequence[float]) -> list[Tensor]:
        (z, dz), x = result.step, result.before.x
        # on a grid no step was judged, and nobody has evaluated the slope at its end yet
        last = result.last or f(z + dz, result.state, z + 0.5 * dz)
        slopes = [k.x for k in (*result.slopes, last)]
        if self.tableau.dense is None:
            return [hermite(x, result.state.x, slopes[0], slopes[-1], dz, s) for s in fractions]
        weights = [[sum(c * s**k for k, c in enumerate(row, 1)) for row in self.tableau.dense] for s in fractions]
        return [advance(x, dz, w, slopes) for w in weights]


def _advance_state(state: State, dz: DepthValue, coefficients: Sequence[float], slopes: Sequence[State]) -> State:
    x = advance(state.x, dz, coefficients, [k.x for k in slopes])
    if not state.costs:
        return State(x)
    by_cost = zip(state.costs, zip(*(k.costs for k in slopes), strict=True), strict=True)
    return State(x, tuple(advance(cost, dz, coefficients, rates) for cost, rates in by_cost))


@dataclasses.dataclass(frozen=True)
class Euler(AbstractRungeKutta):
    """x' = x + dz f(z, x), of order 1: with dz = 1 the residual step of every Transformer.

    Reference implementation: torchdiffeq's `euler`.
    """

    tableau = Tableau(order=1, a=((),), b=(1.0,), c=(0.0,))


@dataclasses.dataclass(frozen=True)
class Midpoint(AbstractRungeKutta):
    """x' = x + dz f(z + dz/2, x + dz/2 f(z, x)), of order 2. Reference implementation: torchdiffeq's `midpoint`."""

    tableau = Tableau(order=2, a=((), (0.5,)), b=(0.0, 1.0), c=(0.0, 0.5))


@dataclasses.dataclass(frozen=True)
class Heun(AbstractRungeKutta):
    """x' = x + dz/2 (k_1 + k_2), k_2 taken at the Euler point, of order 2.

    Reference implementation: torchdiffeq's `heun2`.
    """

    tableau = Tableau(order=2, a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class RK4(AbstractRungeKutta):
    """x' = x + dz/6 (k_1 + 2 k_2 + 2 k_3 + k_4), of order 4, without an error estimate.

    W. Kutta, Beitrag zur naeherungsweisen Integration totaler Differentialgleichungen, Z. Math. Phys. 46 (1901); the
    `rk4` of torchdiffeq is his other one, the 3/8 rule.
    """

    tableau = Tableau(
        order=4, a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), b=(1 / 6, 1 / 3, 1 / 3, 1 / 6), c=(0.0, 0.5, 0.5, 1.0)
    )


@dataclasses.dataclass(frozen=True)
class BogackiShampine(AbstractRungeKutta):
    """Three stages of order 3 with an embedded order 2, for loose tolerances and rough fields.

    P. Bogacki and L. F. Shampine, A 3(2) pair of Runge-Kutta formulas, Appl. Math. Lett. 2 (1989). The pair of
    `scipy.integrate.RK23`.
    """

    tableau = Tableau(
        order=3,
        a=((), (1 / 2,), (0.0, 3 / 4)),
        b=(2 / 9, 1 / 3, 4 / 9),
        c=(0.0, 1 / 2, 3 / 4),
        e=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
        error_order=2,
    )


@dataclasses.dataclass(frozen=True)
class DormandPrince(AbstractRungeKutta):
    """Six stages of order 5 with an embedded order 4 and an interpolant of order 4: the default.

    J. R. Dormand and P. J. Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6 (1980);
    interpolant of L. F. Shampine, Some practical Runge-Kutta formulas, Math. Comp. 46 (1986). The pair of
    `scipy.integrate.RK45` and of torchdiffeq's `dopri5`.
    """

    tableau = Tableau(
        order=5,
        a=(
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        ),
        b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
        c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0),
        e=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
        error_order=4,
        dense=(
            (1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
            (0.0, 0.0, 0.0, 0.0),
            (0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
            (0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
            (0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
            (0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
            (0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
        ),
    )


@dataclasses.dataclass(frozen=True)
class Tsitouras(AbstractRungeKutta):
    """Six stages of order 5 with an embedded order 4 and an interpolant of order 4.

    Its error constants are smaller than those of Dormand-Prince.

    Ch. Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption, Comput.
    Math. Appl. 62 (2011), with the sign of the last error coefficient mended. The pair of diffrax's `Tsit5`.
    """

    tableau = Tableau(
        order=5,
        a=(
            (),
            (0.161,),
            (-0.008480655492356989, 0.335480655492357),
            (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
            (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
            (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
        ),
        b=(0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
        c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
        e=(
            0.00178001105222577714,
            0.0008164344596567469,
            -0.007880878010261995,
            0.1447110071732629,
            -0.5823571654525552,
            0.45808210592918697,
            -1 / 66,
        ),
        error_order=4,
        dense=(
            (1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
            (0.0, 0.1317, -0.2234, 0.1017),
            (0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651252793),
            (0.0, -12.411077166933676, 30.338188630282318, -16.54810288924490272),
            (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928122),
            (0.0, -27.896526289197286, 65.09189467479366, -34.87065786149660974),
            (0.0, 1.5, -4.0, 2.5),
        ),
    )
