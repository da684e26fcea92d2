"""Lipschitz constants on balls, of attention, its derivatives, its adjoint and its gradient; how nearly they are met.

The source proves that constants exist. Those here follow its own steps, for a head f(x, mu) = O^T V Gamma(K^T Q x, mu),
tokens in the ball of R, matrices of Frobenius norm at most M, costates of at most P, and t = beta M^2 R^2, from

    |Gamma| <= R , |D_q Gamma| <= beta R^2 , |D_q^2 Gamma| <= 2 beta^2 R^3 , rho <= e^{2t} , E rho = 1 ,
    |d_mu Gamma(v)| <= rho(v) (1 + 2t) , |D_q d_mu Gamma(v)| <= rho(v) beta R (4 + 5t)

with measures compared in W_infinity.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, final

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.derivatives import Tilted, pullback, radial
from continua.lab.flows import in_ball
from continua.lab.sweep import AbstractCell, Row
from continua.operators import Attention, AttentionTheta
from continua.spaces import Cloud

_HEAD = 3
"""Width and key of the head that is searched."""
_Matrices: TypeAlias = Float[Tensor, "four batch key width"]
"""Q, K, V, O."""


class Constants(NamedTuple):
    """|F - F'| <= x max_i |x_i - x_i'| + p max_i |p_i - p_i'| + theta |theta - theta'|."""

    x: float
    p: float
    theta: float


@final
@dataclasses.dataclass(frozen=True)
class Ball:
    """The set on which constants hold."""

    beta: float
    R: float
    M: float
    P: float

    @property
    def t(self) -> float:
        """beta M^2 R^2."""
        return self.beta * self.M**2 * self.R**2

    def velocity(self) -> Constants:
        """Lemma 17, (45)."""
        M, R, t = self.M, self.R, self.t
        return Constants(M**2 * (1.0 + 3.0 * t), 0.0, math.sqrt(2.0 * (1.0 + t**2)) * M * R)

    def slope(self) -> Constants:
        """Lemma 17, (46): D_x f, by Corollary 15."""
        M, R, t = self.M, self.R, self.t
        return Constants(M**2 * t / R * (4.0 + 7.0 * t), 0.0, M * t * math.sqrt(2.0 * (1.0 + (1.0 + 2.0 * t) ** 2)))

    def lions(self) -> Constants:
        """Lemma 17, (47): d_mu f(x)(v), by Corollary 15, x and v both of the tokens."""
        M, R, t, e = self.M, self.R, self.t, math.exp(2.0 * self.t)
        x = M**2 * e * t / R * (6.0 + 7.0 * t + (1.0 + 2.0 * t) * (e + 1.0))
        return Constants(x, 0.0, M * e * math.sqrt(2.0 * ((1.0 + 2.0 * t) ** 2 + (t * (4.0 + 5.0 * t)) ** 2)))

    def adjoint(self) -> Constants:
        """Corollary 19: Psi."""
        own, other, t = self.slope(), self.lions(), self.t
        p = self.M**2 * (t + (1.0 + 2.0 * t) * math.exp(2.0 * t))
        return Constants(self.P * (own.x + other.x), p, self.P * (own.theta + other.theta))

    def gradient(self) -> Constants:
        """Lemmas 18 and 30: the gradient map of the head, a mean over tokens."""
        M, R, P, t = self.M, self.R, self.P, self.t
        x = M * P * math.sqrt(2.0 * (1.0 + 3.0 * t) ** 2 + 2.0 * (t * (5.0 + 7.0 * t)) ** 2)
        rows = [[t, t, 1, 0], [t, t, 0, 1], [2 * t**2, t + 2 * t**2, t, t], [t + 2 * t**2, 2 * t**2, t, t]]
        theta = float(torch.linalg.matrix_norm(torch.tensor(rows, dtype=torch.float64), 2))
        return Constants(x, M * R * math.sqrt(2.0 * (1.0 + t**2)), R * P * theta)


class _Point(NamedTuple):
    """Tokens, costates and a head, one after another for every pair that is searched."""

    x: Points
    p: Points
    theta: _Matrices


def _derivatives(beta: float, at: _Point) -> tuple[Tilted, Tensor, Tensor]:
    q, k, v, o = at.theta
    ask = k.mT @ q
    return Tilted(Cloud(at.x), at.x @ ask.mT, beta), o.mT @ v, ask


def _velocity(beta: float, at: _Point) -> Tensor:
    tilted, carry, _ = _derivatives(beta, at)
    return tilted.mean @ carry.mT


def _slope(beta: float, at: _Point) -> Tensor:
    tilted, carry, ask = _derivatives(beta, at)
    return carry[:, None] @ tilted.slope @ ask[:, None]


def _lions(beta: float, at: _Point) -> Tensor:
    tilted, carry, _ = _derivatives(beta, at)
    return carry[:, None, None] @ tilted.lions(at.x)


def _pull_back(beta: float, at: _Point) -> tuple[Points, AttentionTheta]:
    masses = at.x.new_ones(len(at.x), 1)
    theta = AttentionTheta(*(w[:, None] for w in at.theta), p=masses)
    return pullback(Attention(1, _HEAD, beta=beta, biased=False, head_masses=True), theta, Cloud(at.x), at.p)


def _adjoint(beta: float, at: _Point) -> Tensor:
    return _pull_back(beta, at)[0]


def _gradient(beta: float, at: _Point) -> Tensor:
    theta = _pull_back(beta, at)[1]
    return torch.stack([theta.q, theta.k, theta.v, theta.o], 1)


MAPS: dict[str, tuple[Callable[[float, _Point], Tensor], int, str]] = {
    "velocity": (_velocity, 1, "Lemma 17, velocity"),
    "slope": (_slope, 2, "Corollary 15 and Lemma 17, D_x"),
    "lions": (_lions, 2, "Corollary 15 and Lemma 17, d_mu"),
    "adjoint": (_adjoint, 1, "Corollary 19, Psi"),
    "gradient": (_gradient, 0, "Lemmas 18 and 30, gradient map"),
}
"""What is stretched, the axes of one value of it (none: all), and where the source claims it."""


@final
class BallStretch(AbstractCell):
    """The largest |F - F'| of its bound that projected gradient ascent on both points finds."""

    kind: str
    tilt: float
    """t = beta M^2 R^2, with M = P = 1 and R = 1"""
    pairs: int
    ascent: int
    tokens: int = 4

    def measure(self) -> Row:
        ball = Ball(self.tilt, 1.0, 1.0, 1.0)
        here = self._draw(ball, 71)
        # a step away, of tokens, costates or the head by turns: distances that are not travelled cost nothing
        there = [a + 0.05 * mask * b for a, b, mask in zip(here, self._draw(ball, 72), self._masks(), strict=True)]
        best = drawn = 0.0
        for step in range(self.ascent + 1):
            both = [w.detach().clone().requires_grad_() for w in (*here, *there)]
            ratio = self._ratio(ball, _Point(*both[:3]), _Point(*both[3:]))
            best = max(best, float(ratio.detach().max()))
            drawn = best if step == 0 else drawn
            slopes = torch.autograd.grad(ratio.clamp_min(1e-12).log().sum(), both)
            length = 0.1 * 0.96**step
            moved = [_climb(w.detach(), g, length) for w, g in zip(both, slopes, strict=True)]
            # what began equal stays so: its slope is that of a distance of zero
            here, there = _project(ball, moved[:3]), _project(ball, moved[3:])
            there = [torch.where(mask > 0, b, a) for a, b, mask in zip(here, there, self._masks(), strict=True)]
        return {"kind": self.kind, "tilt": self.tilt, "drawn": drawn, "found": best, "bound": 1.0}

    def _draw(self, ball: Ball, seed: int) -> list[Tensor]:
        shape = (self.pairs, self.tokens, _HEAD)
        theta = torch.randn(4, self.pairs, _HEAD, _HEAD, generator=generator_of(seed + 2), dtype=torch.float64)
        return _project(ball, [in_ball(shape, ball.R, seed), in_ball(shape, ball.P, seed + 1), theta])

    def _masks(self) -> list[Tensor]:
        """A third of the pairs differ in tokens, a third in costates, a third in the head."""
        turn = torch.arange(self.pairs) % 3
        x, p, theta = ((turn == k).double() for k in range(3))
        return [x[:, None, None], p[:, None, None], theta[None, :, None, None]]

    def _ratio(self, ball: Ball, a: _Point, b: _Point) -> Float[Tensor, " pairs"]:
        function, axes, _ = MAPS[self.kind]
        gap = function(ball.beta, a) - function(ball.beta, b)
        if axes == 2:
            change = torch.linalg.matrix_norm(gap, 2).flatten(1).amax(-1)
        else:
            change = _norm(gap, (-1,)).amax(-1) if axes == 1 else _norm(gap.flatten(1), (-1,))
        constants: Constants = getattr(ball, self.kind)()
        far = [_norm(a.x - b.x, (-1,)).amax(-1), _norm(a.p - b.p, (-1,)).amax(-1), _norm(a.theta - b.theta, (0, 2, 3))]
        bound = constants.x * far[0] + constants.p * far[1] + constants.theta * far[2]
        return change / bound.clamp_min(1e-9)


def _norm(gap: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A norm whose slope at zero is zero."""
    squares = gap.square().sum(axes)
    return torch.where(squares > 0, squares.clamp_min(1e-30).sqrt(), 0.0)


def _climb(w: Tensor, slope: Tensor, length: float) -> Tensor:
    batch = 0 if w.ndim == 3 else 1
    axes = tuple(axis for axis in range(w.ndim) if axis != batch)
    return w + length * slope / slope.square().sum(axes, keepdim=True).sqrt().clamp_min(1e-12)


def _project(ball: Ball, at: list[Tensor]) -> list[Tensor]:
    """Back to the set: tokens and costates in their balls, every matrix of norm at most M."""
    x, p, theta = at
    size = theta.square().sum((-1, -2), keepdim=True).sqrt()
    return [radial(x, ball.R), radial(p, ball.P), theta * (ball.M / size.clamp_min(ball.M))]
