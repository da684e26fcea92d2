"""`mean-field`: many tokens sampled from a law follow a limit; causal tokens follow another one."""

import functools
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.lab.experiment import AbstractExperiment, Findings, rms_series
from continua.lab.flows import attention_flow, random_theta, solve_flow
from continua.lab.intervals import Interval, bootstrap_slopes
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, equals
from continua.model import Flow
from continua.operators import Attention
from continua.runs import Curve, Lines, Scale
from continua.solve import RK4, Fixed
from continua.spaces import CausalTrapezoid, Cloud, GaussLegendre

_STEPS = 8
"""RK4 steps: the error of the solve is far below that of sampling, and the same on both sides."""


@final
class SampledTokens(AbstractCell):
    """N tokens at independent uniform times s_i, x_i(0) = curve(s_i), against the limit flow from the same points.

    Tokens that see little when masked (s < 0.3) are left out. `own` and `other` are the mean squared distances to the
    limit of the same kind and to the other one.
    """

    tokens: int
    seeds: int
    causal: bool
    grid: int = 1024

    def measure(self) -> Row:
        s = torch.rand(self.seeds, self.tokens, generator=generator_of(41 + self.tokens), dtype=torch.float64)
        s = s.sort(-1).values
        with torch.no_grad():
            x = _ends(_flow(self.causal), Cloud(curve(s), positions=s))
            limits = {causal: _read(limit_map(causal, self.grid), s) for causal in (False, True)}
        seen = (s >= 0.3).to(s)
        gaps = {kind: ((x - limit).square().sum(-1) * seen).sum(-1) / seen.sum(-1) for kind, limit in limits.items()}
        return {
            "tokens": self.tokens,
            "causal": self.causal,
            "own": gaps[self.causal].tolist(),
            "other": gaps[not self.causal].tolist(),
        }


def curve(s: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 3"]:
    """Where a token of time s begins."""
    return torch.stack([torch.cos(2 * math.pi * s), torch.sin(2 * math.pi * s), 2 * s - 1.0], -1)


def _flow(causal: bool) -> Flow:
    operator = Attention(heads=3, key_size=3, beta=1.0, biased=False, head_masses=True, causal=causal)
    return attention_flow(operator, random_theta(3, 3, 3, 2.0, 43))


def _ends(flow: Flow, cloud: Cloud) -> Points:
    return solve_flow(flow, cloud, RK4(), Fixed(_STEPS)).x


@functools.lru_cache(maxsize=4)
@torch.no_grad()
def limit_map(causal: bool, grid: int) -> Float[Tensor, "depths width"]:
    """Where the flow of the law itself leads from curve(s), s on a grid of [0, 1].

    Unmasked: the law by Gauss-Legendre quadrature, the grid rides along as queries, present without mass. Causal: the
    running integrals over the grid by the trapezoidal rule, second order.
    """
    s = torch.linspace(0.0, 1.0, grid + 1, dtype=torch.float64)[None]
    if causal:
        rule = CausalTrapezoid()
        return _ends(_flow(True), Cloud(curve(s), rule.mass(s), s, rule.own(s)))[0]
    t, w = GaussLegendre().nodes(128)
    riding, where = Cloud(curve(t[None]), w[None], t[None]).with_queries(curve(s), s)
    return _ends(_flow(False), riding)[0, where[0]]


def _read(grid: Float[Tensor, "nodes width"], s: Float[Tensor, "seeds tokens"]) -> Points:
    """Linear interpolation on equal steps of [0, 1]: at 1024 of them off by about 1e-5."""
    place = s * (len(grid) - 1)
    left = place.floor().clamp(0, len(grid) - 2).long()  # s = 1 belongs to the last piece
    return torch.lerp(grid[left], grid[left + 1], (place - left).unsqueeze(-1))


@final
class MeanField(AbstractExperiment):
    """Rates in N, the covariance of two tokens, and the distance between causal tokens and the unmasked limit."""

    name = "mean-field"
    claim = (
        "tokens sampled from a law approach the McKean-Vlasov flow of that law at the rate N^-1/2, any two of them "
        "become independent at the rate 1/N, and causal tokens approach a limit of their own, not the unmasked one"
    )
    formula = 'E[ |x_N^i - x^i|^2 ]^{1/2} ≤ C N^{-1/2} , " " "Cov" ( x_N^1 , x_N^2 ) = O(1/N)'
    source = "arXiv 2605.11059, sections 1 and 3.2, Lemma 20 and Corollary 23"

    tokens: tuple[int, ...] = (32, 64, 128, 256, 512)
    seeds: int = 256
    few: tuple[int, ...] = (4, 8, 16, 32)
    draws: int = 16384

    def quick(self) -> "MeanField":
        return MeanField(tokens=(32, 64, 128, 256), seeds=96, draws=2048)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            *(SampledTokens(n, self.seeds, False) for n in self.tokens),
            *(SampledTokens(n, self.seeds, True) for n in self.tokens),
            *(Pairs(n, self.draws) for n in self.few),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        count = len(self.tokens)
        full, causal, pairs = rows[:count], rows[count : 2 * count], rows[2 * count :]
        sizes = np.array([[n] for n in self.tokens], dtype=float)
        (rate,) = bootstrap_slopes(sizes, np.array([row["own"] for row in full]))
        (masked,) = bootstrap_slopes(sizes, np.array([row["own"] for row in causal]))
        chaos, covariances = _chaos(pairs)
        other = math.sqrt(float(np.mean(causal[-1]["other"])))
        own = math.sqrt(float(np.mean(causal[-1]["own"])))
        judgement = all_of(
            equals("slope in N", rate, -0.5, 0.1),
            equals("slope in N, causal to its own limit", masked, -0.5, 0.1),
            equals("slope of the covariance of two tokens", chaos, -1.0, 0.25),
            at_least("causal tokens: distance to the unmasked limit over that to their own", other / own, 5.0),
        )
        measured = {"slope": rate, "slope, causal": masked, "covariance slope": chaos, "covariances": covariances}
        measured |= {"causal to its own limit": own, "causal to the unmasked limit": other}
        bound = {"slope": -0.5, "slope, causal": -0.5, "covariance slope": -1.0}
        return Findings((self._figure(full, causal),), measured, bound, judgement)

    def _figure(self, full: Sequence[Row], causal: Sequence[Row]) -> Lines:
        def series(name: str, rows: Sequence[Row], kind: str) -> Curve:
            return rms_series(name, self.tokens, np.array([row[kind] for row in rows]))

        return Lines(
            title="sampled tokens against their limit",
            caption="The limit is the flow of the law itself; sampled points ride in it as queries without mass.",
            measured=f"{self.seeds} seeds, RK4, float64",
            x=Scale("tokens N", log=True),
            y=Scale("root mean square distance", log=True),
            curves=(
                series("unmasked", full, "own"),
                series("causal, to the causal limit", causal, "own"),
                series("causal, to the unmasked limit", causal, "other"),
            ),
        )


@final
class Pairs(AbstractCell):
    """The covariance of the first coordinates of two tokens among N, in batches of draws.

    Cov = E[g_1 g_2] - (E g)^2 with g = x_N(1) - x(1), the deviation from the limit: what two tokens have in common is
    the fluctuation of their measure alone.
    """

    tokens: int
    draws: int

    def measure(self) -> Row:
        s = torch.rand(self.draws, self.tokens, generator=generator_of(47 + self.tokens), dtype=torch.float64)
        s = s.sort(-1).values
        with torch.no_grad():
            x = _ends(_flow(False), Cloud(curve(s), positions=s))
            limit = _read(limit_map(False, 1024), s)
        gap = (x - limit)[..., 0]
        n = self.tokens
        together = (gap.sum(-1).square() - gap.square().sum(-1)) / (n * (n - 1))  # mean of g_i g_j, i != j
        return {"tokens": n, "together": together.view(16, -1).mean(-1).tolist(), "mean": float(gap.mean())}


def _chaos(pairs: Sequence[Row]) -> tuple[Interval, list[float]]:
    """The slope of the covariance in N, with an interval from batches of draws."""
    covariances = [float(np.mean(row["together"])) - row["mean"] ** 2 for row in pairs]
    batches = np.array([row["together"] for row in pairs]) - np.array([[row["mean"] ** 2] for row in pairs])
    sizes = np.array([[row["tokens"]] for row in pairs], dtype=float)
    # bootstrap_slopes fits the root of a mean of squares: the slope of the mean is twice that.
    # A batch may have a covariance below zero by chance; a square cannot, so it counts as none.
    (half,) = bootstrap_slopes(sizes, np.maximum(batches, 1e-12))
    return Interval(*(2.0 * value for value in half)), covariances
