"""`attention-lipschitz`: how much attention stretches Wasserstein distances, searched for the worst case."""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch

from continua.core.extras import extra
from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.ball_bounds import MAPS, BallStretch
from continua.lab.derivatives import radial, wasserstein_bound
from continua.lab.experiment import AbstractExperiment, AtMost, Findings
from continua.lab.flows import Queries, in_ball, random_theta, softmax_mean
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most
from continua.operators import Attention
from continua.runs import Curve, Lines, Scale
from continua.spaces import Cloud

_JUDGED = 0.1
"""The t at which the constants of derivatives, adjoint and gradient are judged."""


@final
class Stretch(AbstractCell):
    """The largest |Gamma(q, mu) - Gamma(q, mu')| / W_p(mu, mu') that gradient ascent finds, for pairs in a ball.

    Distances that are reported come from POT (p finite) or from all couplings of equal masses (p infinite). During the
    ascent tokens are coupled as they are numbered, which bounds the distance from above and the ratio from below.
    Pairs begin close to each other, and half of them with some tokens on one side of the ball and the others opposite:
    for p = 1 the constant is that of one light token that moves far away from all others.
    """

    p: float
    beta: float
    radius: float
    query: float
    tokens: int
    pairs: int
    ascent: int
    width: int = 2

    def measure(self) -> Row:
        q = torch.zeros(self.pairs, 1, self.width, dtype=torch.float64)
        q[..., 0] = self.query
        shape = (self.pairs, self.tokens, self.width)
        x = in_ball(shape, self.radius, 21)
        x[self.pairs // 2 :] = self._opposite(x)[self.pairs // 2 :]
        y = radial(x + in_ball(shape, 0.01 * self.radius, 22), self.radius)
        drawn = self._ratios(q, x, y)
        for step in range(self.ascent):
            x, y = self._ascend(q, x, y, 0.1 * self.radius * 0.95**step)
        found = self._ratios(q, x, y)
        bound = wasserstein_bound(self.beta, self.radius, self.query, self.p)
        # JSON has no infinity: 1e9 stands for it in rows.
        sizes = {"p": min(self.p, 1e9), "beta": self.beta, "radius": self.radius, "query": self.query}
        return {**sizes, "drawn": float(drawn.max()), "found": float(max(drawn.max(), found.max())), "bound": bound}

    def _opposite(self, x: Points) -> Points:
        """1, 2, ... tokens near the query's direction, the others opposite."""
        ahead = torch.arange(self.pairs) % (self.tokens - 1) + 1
        side = torch.where(torch.arange(self.tokens) < ahead[:, None], self.radius, -self.radius).double()
        moved = 0.2 * x
        moved[..., 0] += side
        return radial(moved, self.radius)

    def _change(self, q: Queries, x: Points, y: Points) -> Float[Tensor, " batch"]:
        means = (softmax_mean(q, Cloud(points), self.beta) for points in (x, y))
        return torch.sub(*means).norm(dim=-1)[:, 0]

    def _ascend(self, q: Queries, x: Points, y: Points, length: float) -> tuple[Points, Points]:
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        moved = (x - y).norm(dim=-1)
        distance = moved.amax(-1) if math.isinf(self.p) else moved.pow(self.p).mean(-1).pow(1.0 / self.p)
        slopes = torch.autograd.grad((self._change(q, x, y) / distance).log().sum(), (x, y))

        def climb(points: Points, slope: Points) -> Points:
            return radial(points.detach() + _step(slope, length), self.radius)

        return climb(x, slopes[0]), climb(y, slopes[1])

    def _ratios(self, q: Queries, x: Points, y: Points) -> Float[Tensor, " batch"]:
        return self._change(q, x, y) / wasserstein(x, y, self.p).clamp_min(1e-9)


def _step(slope: Points, length: float = 1.0) -> Points:
    """Uphill, by one length for every sequence, however steep its ratio."""
    return length * slope / slope.norm(dim=(-1, -2), keepdim=True).clamp_min(1e-12)


def wasserstein(x: Points, y: Points, p: float) -> Float[Tensor, " batch"]:
    """W_p between uniform clouds of the same size: `ot.emd2`, or every coupling of a few tokens where p is infinite."""
    costs = torch.cdist(x, y)
    if math.isinf(p):
        rows = torch.arange(x.shape[1])
        orders = torch.tensor(list(itertools.permutations(range(x.shape[1]))))
        return costs[:, rows, orders].amax(-1).amin(-1)
    ot = extra("ot", "peers")
    return torch.tensor(
        [float(ot.emd2([], [], cost.pow(p).numpy())) ** (1.0 / p) for cost in costs], dtype=torch.float64
    )


@final
class VelocityStretch(AbstractCell):
    """The largest change of velocity for each unit that tokens move, against `operator.lipschitz_bound`."""

    heads: int
    width: int
    radius: float
    pairs: int
    ascent: int

    def measure(self) -> Row:
        operator = Attention(self.heads, self.width, beta=1.0, biased=False, head_masses=True)
        theta = random_theta(self.heads, self.width, self.width, 1.5, 31)
        x = in_ball((self.pairs, 6, self.width), self.radius, 32)
        d = torch.randn(x.shape, generator=generator_of(33), dtype=torch.float64)
        best = 0.0
        for _ in range(self.ascent + 1):
            x, d = x.detach().requires_grad_(), d.detach().requires_grad_()
            y = radial(x + 1e-2 * d / d.norm(dim=-1, keepdim=True).amax(-2, keepdim=True), self.radius)
            change = operator.velocity(theta, Cloud(x)) - operator.velocity(theta, Cloud(y))
            ratio = change.norm(dim=-1).amax(-1) / (x - y).norm(dim=-1).amax(-1)
            best = max(best, float(ratio.detach().max()))
            slopes = torch.autograd.grad(ratio.log().sum(), (x, d))
            x, d = radial(x.detach() + 0.1 * _step(slopes[0]), self.radius), d.detach() + 0.5 * _step(slopes[1])
        return {"radius": self.radius, "found": best, "bound": float(operator.lipschitz_bound(theta, self.radius))}


@final
class AttentionLipschitz(AbstractExperiment):
    """Corollary 2 under adversarial search, for several p; the operator's own bound; derivatives, adjoint, gradient.

    Constants of the last ones are judged at t = beta M^2 R^2 = 0.1, where a search comes near; at larger t they have an
    exponential of their own, cannot be missed, and are told as slack.
    """

    name = "attention-lipschitz"
    claim = (
        "on a ball attention is Lipschitz in the measure for every Wasserstein distance, without an exponential at "
        "p = infinity; the operator's own bound on the whole velocity holds; derivatives in token and measure, the "
        "adjoint's slope and the gradient map are Lipschitz on balls"
    )
    formula = "|Gamma(q,mu) - Gamma(q,mu')| ≤ (1 + 2 beta R |q|) e^{2 beta R |q| / p} W_p(mu, mu')"
    source = "arXiv 2605.11059, Corollaries 2, 12, 15 and 19, Lemmas 17, 18 and 30, Remark 3"

    powers: tuple[float, ...] = (1.0, 2.0, 4.0, math.inf)
    tilts: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0)
    pairs: int = 128
    ascent: int = 150
    tokens: int = 64

    def quick(self) -> "AttentionLipschitz":
        return AttentionLipschitz(tilts=(0.1, 0.5, 2.0), pairs=64, ascent=60, tokens=32)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            *(
                # All couplings of more tokens than a few are too many to try: two serve p = infinity best.
                Stretch(p, 1.0, 1.0, t, 2 if math.isinf(p) else self.tokens, self.pairs, self.ascent)
                for p in self.powers
                for t in self.tilts
            ),
            *(VelocityStretch(4, 4, r, self.pairs, self.ascent) for r in (0.5, 1.0, 2.0)),
            *(BallStretch(kind, t, self.pairs, self.ascent) for kind in MAPS for t in (_JUDGED, 1.0)),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        cut = len(rows) - 2 * len(MAPS)
        measures, velocities, balls = rows[: cut - 3], rows[cut - 3 : cut], rows[cut:]
        worst = {"W_p stretch of its bound": max(row["found"] / row["bound"] for row in measures)}
        worst["velocity stretch of its bound"] = max(row["found"] / row["bound"] for row in velocities)
        words = {kind: word for kind, (_, _, word) in MAPS.items()}
        worst |= {f"{words[row['kind']]}, of its bound": row["found"] for row in balls if row["tilt"] == _JUDGED}
        judgement = all_of(*(at_most(name, value, 1.0) for name, value in worst.items()))
        series: list[Curve] = []
        for colour, p in enumerate(self.powers):
            own = [row for row in measures if row["p"] == min(p, 1e9)]
            tilt = [row["query"] for row in own]
            name = "p infinite" if math.isinf(p) else f"p = {p:g}"
            series += [
                Curve.of(f"{name}, {kind}", tilt, [row[kind] for row in own], mark=mark, colour=colour)
                for kind, mark in (("found", "both"), ("bound", "dashed"))
            ]
        figure = Lines(
            title="how much attention stretches W_p",
            measured=f"{self.pairs} pairs of {self.tokens} tokens (2 for p infinite), {self.ascent} steps; POT",
            x=Scale("beta R |q|"),
            y=Scale("largest ratio", log=True),
            curves=tuple(series),
        )
        found = {
            f"found / bound, p = {row['p']:g}, tilt {row['query']:g}": row["found"] / row["bound"] for row in measures
        }
        slack = {f"slack: {words[r['kind']]}, t = {r['tilt']:g}": r["found"] for r in balls if r["tilt"] != _JUDGED}
        return Findings((figure,), {**worst, **slack, **found}, dict.fromkeys(worst, AtMost(1.0)), judgement)
