"""`lions-derivative`: the derivative of attention with respect to the measure, in closed form."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.derivatives import Tilted, radial
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import Queries, softmax_mean
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most
from continua.operators import Exact
from continua.runs import Curve
from continua.spaces import Cloud


@final
class LionsGap(AbstractCell):
    """Closed forms of d_mu Gamma and D_q Gamma against N autograd, differences, and a change of mass."""

    tokens: int
    width: int
    beta: float
    radius: float
    seed: int

    def measure(self) -> Row:
        generator = generator_of(self.seed)
        x = 1.5 * torch.randn(1, self.tokens, self.width, generator=generator, dtype=torch.float64)
        # On the sphere |x| = R itself P_R has no derivative: differences must not straddle it.
        x = torch.where((x.norm(dim=-1, keepdim=True) - self.radius).abs() < 0.01, 1.05 * x, x)
        q = torch.randn(1, 1, self.width, generator=generator, dtype=torch.float64)
        tilted = Tilted(Cloud(x), q, self.beta, self.radius)
        closed = tilted.lions(x)[0, 0]  # (tokens width width)
        own = self.tokens * _jacobian(lambda points: self._gamma(q, points), x).transpose(0, 1)
        slope = _jacobian(lambda query: self._gamma(query, x), q)[:, 0]
        size = closed.abs().max()
        return dataclasses.asdict(self) | {
            "autograd": float((closed - own).abs().max() / size),
            "differences": float((closed - self._differences(q, x)).abs().max() / size),
            "mass": self._mass(q, x),
            "slope": float((tilted.slope[0, 0] - slope).abs().max() / slope.abs().max()),
            "outside": float((x.norm(dim=-1) > self.radius).double().mean()),
            **self._curvature(tilted, q),
            **self._mixed_gap(tilted, q, x),
            "slope_norm": float(torch.linalg.matrix_norm(tilted.slope[0, 0], ord=2)),
            "slope_bound": self.beta * self.radius**2,
        }

    def _curvature(self, tilted: Tilted, q: Queries) -> Row:
        """D_q^2 Gamma = beta^2 E[ (y - Gamma)^{x3} ] against autograd of D_q Gamma, and its Hilbert-Schmidt norm.

        By |y - Gamma| <= 2R and E|y - Gamma|^2 <= R^2 under the tilted measure the norm is at most 2 beta^2 R^3.
        """
        away = (radial(tilted.cloud.points, self.radius) - tilted.mean)[0]
        closed = self.beta**2 * torch.einsum("t,ti,tj,tk->ijk", tilted.weights[0, 0], away, away, away)

        def slope(query: Queries) -> Tensor:
            return Tilted(tilted.cloud, query, self.beta, self.radius).slope[0, 0]

        own = torch.autograd.functional.jacobian(slope, q)
        assert isinstance(own, Tensor)
        return {
            "curvature": float((closed - own[..., 0, 0, :]).abs().max() / closed.abs().max()),
            "curvature_of_bound": float(closed.norm()) / (2.0 * self.beta**2 * self.radius**3),
        }

    def _mixed_gap(self, tilted: Tilted, q: Queries, x: Points) -> Row:
        """D_q d_mu Gamma against autograd of d_mu Gamma in q, and against N autograd of D_q Gamma in the tokens.

        Both contracted with random tensors. Beside it the norm, contracted with test directions of q, of its bound.
        """
        closed = tilted.query_slope_of_lions(x)[0, 0]  # (tokens width width width)
        generator, gaps = generator_of(self.seed + 1), list[float]()
        for _ in range(4):
            a, b = (
                torch.randn(shape, generator=generator, dtype=x.dtype)
                for shape in (closed.shape[:3], closed.shape[1:3])
            )
            query, points = q.clone().requires_grad_(), x.clone().requires_grad_()
            lions = Tilted(tilted.cloud, query, self.beta, self.radius).lions(x)[0, 0]
            slope = Tilted(Cloud(points), q, self.beta, self.radius).slope[0, 0]
            (by_query,) = torch.autograd.grad((a * lions).sum(), query)
            (by_tokens,) = torch.autograd.grad((b * slope).sum(), points)
            wanted = (torch.einsum("tijh,tij->h", closed, a), torch.einsum("tijh,ih->tj", closed, b) / self.tokens)
            gaps += [
                float((own - other).abs().max() / own.abs().max())
                for own, other in zip(wanted, (by_query[0, 0], by_tokens[0]), strict=True)
            ]
        tests = torch.cat([radial(x, self.radius)[0] - tilted.mean[0], q[0], torch.eye(self.width, dtype=x.dtype)])
        units = tests / tests.norm(dim=-1, keepdim=True)
        norms = torch.linalg.matrix_norm(torch.einsum("tijh,nh->tnij", closed, units), 2)
        size = self.beta * self.radius * (4.0 + 5.0 * self.beta * self.radius * float(q.norm()))
        of_bound = float((norms.amax(-1) / tilted.density(x)[0, 0]).max()) / size
        return {"mixed": max(gaps), "mixed_of_bound": of_bound}

    def _gamma(self, q: Queries, x: Points, mass: Float[Tensor, "batch tokens"] | None = None) -> Queries:
        """Gamma(q, P# mu)."""
        return softmax_mean(q, Cloud(radial(x, self.radius), mass), self.beta, Exact(materialised=True))

    def _differences(self, q: Queries, x: Points) -> Float[Tensor, "tokens width width"]:
        """Central differences of fourth order, all tokens and coordinates at once."""
        h, count = 1e-4, self.tokens * self.width
        steps = h * torch.eye(count, dtype=torch.float64).view(count, self.tokens, self.width)
        queries = q.expand(count, 1, -1)
        at = [self._gamma(queries, x + k * steps)[:, 0] for k in (-2, -1, 1, 2)]
        slopes = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h)  # (tokens*width, width)
        return self.tokens * slopes.view(self.tokens, self.width, self.width).mT

    def _mass(self, q: Queries, x: Points) -> float:
        """d_mu Gamma(v) is the gradient in v of the derivative when a little mass is put at v (first variation)."""
        v = 0.5 * x[:, :1].clone().requires_grad_()
        more, eps = torch.cat([x, v], 1), 1e-6
        weights = torch.full((1, self.tokens + 1), 1.0 / self.tokens, dtype=torch.float64)

        def with_mass(e: float) -> Tensor:
            return self._gamma(q, more, torch.cat([(1 - e) * weights[:, :-1], weights.new_full((1, 1), e)], 1))[0, 0]

        # Mass cannot be negative: a one-sided difference of third order.
        # No mass at all would mean that the token is absent, and its gradient with it.
        at = [with_mass(k * eps * 100 + 1e-300) for k in (0, 1, 2, 3)]
        variation = (-11 * at[0] + 18 * at[1] - 9 * at[2] + 2 * at[3]) / (6 * eps * 100)
        rows = [torch.autograd.grad(part, v, retain_graph=True)[0][0, 0] for part in variation]
        closed = Tilted(Cloud(x), q, self.beta, self.radius).lions(v.detach())[0, 0, 0]
        return float((torch.stack(rows) - closed).abs().max() / closed.abs().max())


def _jacobian(function: Callable[[Points], Tensor], x: Points) -> Float[Tensor, "width tokens width"]:
    """The derivative of the first token of a first sequence with respect to all tokens of another."""
    found = torch.autograd.functional.jacobian(lambda points: function(points)[0, 0], x)
    assert isinstance(found, Tensor)
    return found[:, 0]


@final
class LionsDerivative(AbstractExperiment):
    """Closed form against three other ways, tokens outside the ball included."""

    name = "lions-derivative"
    claim = (
        "attention is differentiable in the measure; its Lions derivative has a closed form, equal to N times the "
        "derivative in one token; derivatives in the query are a covariance and a third moment, of norm at most "
        "beta R^2 and 2 beta^2 R^3, and the mixed one has a closed form with a bound of its own"
    )
    formula = "del_mu Gamma(q, mu)(v) = frac{e^{beta ⟨q, P_R v⟩}}{Z} [ I + beta (P_R v - Gamma) q^T ] DP_R(v)"
    source = "arXiv 2605.11059, Lemmas 1, 10, 11 and 13"

    sizes: tuple[tuple[int, int, float], ...] = ((4, 2, 0.5), (16, 3, 1.0), (32, 8, 1.0), (64, 4, 3.0), (128, 16, 0.5))
    seeds: int = 4

    def quick(self) -> "LionsDerivative":
        return LionsDerivative(sizes=self.sizes[:4], seeds=2)

    def cells(self) -> Sequence[AbstractCell]:
        return [LionsGap(n, d, beta, 2.0, seed) for n, d, beta in self.sizes for seed in range(self.seeds)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        limits = {
            "autograd": 1e-12,
            "slope": 1e-12,
            "curvature": 1e-12,
            "mixed": 1e-12,
            "differences": 1e-8,
            "mass": 1e-5,
        }
        worst = {name: max(row[name] for row in rows) for name in limits}
        bent = max(row["curvature_of_bound"] for row in rows)
        ratio = max(row["slope_norm"] / row["slope_bound"] for row in rows)
        joint = max(row["mixed_of_bound"] for row in rows)
        judgement = all_of(
            *(at_most(f"closed form against {name}", worst[name], limits[name]) for name in worst),
            at_most("|D_q Gamma| of its bound beta R^2", ratio, 1.0),
            at_most("|D_q^2 Gamma| of its bound 2 beta^2 R^3", bent, 1.0),
            at_most("|D_q d_mu Gamma| of its bound rho beta R (4 + 5 beta R |q|)", joint, 1.0),
        )
        measured = {
            **worst,
            "slope_of_bound": ratio,
            "curvature_of_bound": bent,
            "mixed_of_bound": joint,
            "tokens_outside": max(row["outside"] for row in rows),
        }
        found = tuple(Curve.of(n, range(len(rows)), [row[n] for row in rows], mark="points") for n in limits)
        figure = curves("relative gaps of the closed form", "cell", "largest relative gap", found, "y")
        claimed = {**limits, "slope_of_bound": 1.0, "curvature_of_bound": 1.0, "mixed_of_bound": 1.0}
        bound = {name: AtMost(limit) for name, limit in claimed.items()}
        return Findings((figure,), measured, bound, judgement)
