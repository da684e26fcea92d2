"""`sde-scaling`: residuals of size 1/sqrt(L) instead of 1/L lead to a diffusion."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Tensor
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.flows import in_ball, random_theta
from continua.lab.intervals import Interval, bootstrap_slopes
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_least, equals
from continua.operators import Attention, AttentionTheta
from continua.runs import Curve, Lines, Scale
from continua.spaces import Cloud

_ATOMS, _WIDTH, _TOKENS = 3, 4, 4


@final
class Walk(AbstractCell):
    """x_{r+1} = x_r + L^-power s_r A(x_r, theta_r), s_r = +-1 by chance, theta_r one of a few atoms: O has mean zero.

    With `gaussian`, the Euler-Maruyama steps of the diffusion instead, dx = sum_m M^-1/2 A(x, theta^m) dW_m. Kept: the
    squared displacement, and a bounded function of the end, of every seed.
    """

    layers: int
    seeds: int
    power: float
    gaussian: bool = False

    def measure(self) -> Row:
        # Every size draws from a stream of its own: the bootstrap of the slopes takes cells as independent.
        generator = generator_of(61 + self.layers + (7 if self.gaussian else 0))
        law = random_theta(_ATOMS, _WIDTH, _WIDTH, 1.5, 62)
        start = x = in_ball((1, _TOKENS, _WIDTH), 1.0, 63).repeat(self.seeds, 1, 1)
        operator = Attention(_ATOMS, _WIDTH, beta=1.0, biased=False, head_masses=True)
        measure = Cloud(x).measure
        with torch.no_grad():
            for _ in range(self.layers):
                masses = self._masses(generator)
                theta = AttentionTheta(
                    *(w.expand(self.seeds, *w.shape) for w in (law.q, law.k, law.v, law.o)), p=masses
                )
                x = x + self.layers**-self.power * operator.velocity(theta, Cloud.on(x, measure))
        moved = (x - start).square().sum(-1).mean(-1)
        seen = torch.tanh(x[..., 0]).mean(-1) + torch.exp(-x.square().sum(-1)).mean(-1)  # bounded and smooth
        return {"layers": self.layers, "moved": moved.tolist(), "seen": seen.tolist()}

    def _masses(self, generator: torch.Generator) -> Tensor:
        """What multiplies the atoms in one layer: a sign at one of them, or M^-1/2 times independent normal numbers."""
        if self.gaussian:
            return torch.randn(self.seeds, _ATOMS, generator=generator, dtype=torch.float64) / math.sqrt(_ATOMS)
        chosen = torch.randint(_ATOMS, (self.seeds, 1), generator=generator)
        signs = 2.0 * torch.randint(2, (self.seeds, 1), generator=generator).double() - 1.0
        return torch.zeros(self.seeds, _ATOMS, dtype=torch.float64).scatter_(1, chosen, signs)


@final
class SDEScaling(AbstractExperiment):
    """Displacements under both scalings, and the law of the end against the diffusion's."""

    name = "sde-scaling"
    claim = (
        "with heads of mean zero a residual of size 1/L leaves tokens where they are as L grows (displacement L^-1/2), "
        "while one of size 1/sqrt(L) moves them by a diffusion, dx = sum_m M^-1/2 A(x, theta^m) dW_m"
    )
    formula = "x_{r+1} = x_r + L^{-1/2} A(x_r, m_r, theta_r) → d x = Sigma(x, m)^{1/2} d W"
    source = "beyond the source; arXiv 2605.11059, section 1.1 names the regime (arXiv 2601.21942)"

    layers: tuple[int, ...] = (32, 64, 128, 256, 512)
    seeds: int = 8192

    def quick(self) -> "SDEScaling":
        return SDEScaling(layers=(16, 32, 64, 128), seeds=4096)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            *(Walk(L, self.seeds // 4, 1.0) for L in self.layers),
            *(Walk(L, self.seeds, 0.5) for L in self.layers),
            Walk(2 * self.layers[-1], self.seeds, 0.5, gaussian=True),
        ]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        count = len(self.layers)
        still, moving, limit = rows[:count], rows[count : 2 * count], rows[-1]
        sizes = np.array([[L] for L in self.layers], dtype=float)
        (fall,) = bootstrap_slopes(sizes, np.array([row["moved"] for row in still]))
        (stay,) = bootstrap_slopes(sizes, np.array([row["moved"] for row in moving]))
        spread = [_difference(row["moved"], limit["moved"]) for row in moving]
        seen = [_difference(row["seen"], limit["seen"]) for row in moving]
        judgement = all_of(
            equals("slope of the displacement, 1/L", fall, -0.5, 0.1),
            equals("slope of the displacement, 1/sqrt(L)", stay, 0.0, 0.1),
            equals("squared displacement minus the diffusion's", spread[-1], 0.0, 0.1 * float(np.mean(limit["moved"]))),
            equals("bounded function minus the diffusion's", seen[-1], 0.0, 0.1 * float(np.std(limit["seen"]))),
            at_least("displacement of the diffusion", float(np.sqrt(np.mean(limit["moved"]))), 0.1),
        )
        measured = {
            "slope, 1/L": fall,
            "slope, 1/sqrt(L)": stay,
            "squared displacement gap": spread,
            "function gap": seen,
        }
        bound = {"slope, 1/L": -0.5, "slope, 1/sqrt(L)": 0.0}
        return Findings((self._figure(still, moving, limit),), measured, bound, judgement)

    def _figure(self, still: Sequence[Row], moving: Sequence[Row], limit: Row) -> Lines:
        def size(row: Row) -> float:
            return math.sqrt(float(np.mean(row["moved"])))

        return Lines(
            title="how far tokens move",
            measured=f"{self.seeds} seeds, {_ATOMS} atoms with random sign",
            x=Scale("layers L", log=True),
            y=Scale("root mean square displacement", log=True),
            curves=(
                Curve.of("residual 1/L", self.layers, [size(row) for row in still], mark="both"),
                Curve.of("residual 1/sqrt(L)", self.layers, [size(row) for row in moving], mark="both"),
                Curve.of("diffusion", self.layers, [size(limit)] * len(self.layers), mark="dashed"),
            ),
        )


def _difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """The difference of two means with its interval of 95%."""
    x, y = np.array(a), np.array(b)
    gap, half = float(x.mean() - y.mean()), 1.96 * math.sqrt(float(x.var() / len(x) + y.var() / len(y)))
    return Interval(gap, gap - half, gap + half)
