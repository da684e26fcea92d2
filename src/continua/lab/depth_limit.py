"""`depth-limit`: layers are Euler steps of a flow, and their distance to it falls like 1/L."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch

from continua.core.intervals import slope_interval
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Expansion
from continua.lab.cells import AbstractCell, Row
from continua.lab.experiment import AbstractExperiment, Findings
from continua.lab.flows import in_ball
from continua.lab.verdicts import all_of, at_most, equals
from continua.model import Flow, Part
from continua.operators import Attention, leaves
from continua.runs import Lines, Scale, Series
from continua.solve import RK4, Direct, Euler, Fixed, integrate
from continua.spaces import Cloud, Legendre

_RADIUS = 1.5


@final
@dataclasses.dataclass(frozen=True)
class EulerGap(AbstractCell):
    """The largest distance between L Euler layers and the flow over many initial conditions in a ball.

    With `ascent` the initial conditions climb the distance first (projected gradient ascent, at 16 layers).
    """

    tokens: int
    layers: tuple[int, ...]
    starts: int
    width: int = 8
    ascent: int = 0
    fine: int = 64

    def measure(self) -> Row:
        flow = smooth_flow(self.width)
        x = in_ball((self.starts, self.tokens, self.width), _RADIUS, 11)
        for _ in range(self.ascent):
            x = self._climbed(flow, x)
        with torch.no_grad():
            exact = solved(flow, x, self.fine, RK4())
            gaps = {L: distance(solved(flow, x, L, Euler()), exact) for L in self.layers}
        return {
            "tokens": self.tokens,
            "ascent": self.ascent,
            "layers": list(self.layers),
            "worst": [float(gap.max()) for gap in gaps.values()],
            "mean": [float(gap.mean()) for gap in gaps.values()],
        }

    def _climbed(self, flow: Flow, x: Points) -> Points:
        x = x.clone().requires_grad_()
        gap = distance(solved(flow, x, 16, Euler()), solved(flow, x, 16, RK4()))
        (slope,) = torch.autograd.grad(gap.log().sum(), x)
        moved = x.detach() + 0.1 * slope / slope.norm(dim=(-1, -2), keepdim=True) * x.shape[1] ** 0.5
        return moved * (_RADIUS / moved.norm(dim=-1, keepdim=True).clamp_min(_RADIUS))


def smooth_flow(width: int) -> Flow:
    """Attention with four heads whose parameters are smooth over depth."""
    torch_state = torch.Generator().manual_seed(5)
    operator = Attention(heads=4, key=width, beta=1.0, biased=False, measured=True)
    spec = operator.spec(width)
    field = Expansion(spec, Legendre(4), 1.0, generator=torch_state).double()
    with torch.no_grad():
        for name, _ in leaves(spec):
            if name != "p":
                c = field.coefficients[name]
                c.copy_(torch.randn(c.shape, generator=torch_state, dtype=torch.float64) * 0.5 / width**0.5)
    return Flow([Part(operator, field)], 1.0).double().eval().requires_grad_(False)


def solved(flow: Flow, x: Points, steps: int, method: Euler | RK4) -> Points:
    """The tokens at depth 1 after equal steps."""
    bound = flow.bind(Cloud(x))
    return integrate(bound, bound.initial(), (0.0, 1.0), method, Fixed(steps), Direct()).x


def distance(a: Points, b: Points) -> Float[Tensor, " batch"]:
    """max_i |a_i - b_i| of each sequence."""
    return (a - b).norm(dim=-1).amax(-1)


@final
@dataclasses.dataclass(frozen=True)
class DepthLimit(AbstractExperiment):
    """Slope in L for the worst of many initial conditions and for adversarial ones; the constant over N."""

    name: ClassVar[str] = "depth-limit"
    claim: ClassVar[str] = (
        "for a smooth field of parameters L layers are at distance O(1/L) from the flow, uniformly over initial "
        "conditions in a ball and with a constant that does not depend on the number of tokens"
    )
    formula: ClassVar[str] = '"sup"_{|x_0| ≤ R} "max"_i |x_L^i - x^i(1)| ≤ C / L'
    source: ClassVar[str] = "docs/mathematics.md, section 3; arXiv 2605.11059, Theorem 7 without sampling"

    layers: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    tokens: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096)
    starts: int = 256
    ascent: int = 40

    def quick(self) -> "DepthLimit":
        return DepthLimit(layers=(16, 32, 64, 128), tokens=(4, 16, 64, 256), starts=64, ascent=8)

    def cells(self) -> Sequence[AbstractCell]:
        return [
            EulerGap(8, self.layers, self.starts, fine=self.layers[-1]),
            EulerGap(8, self.layers, 16, ascent=self.ascent, fine=self.layers[-1]),
            *(EulerGap(n, (32,), max(1, 256 // n)) for n in self.tokens),
            *(EulerGap(n, (32,), max(1, 256 // n), ascent=self.ascent // 4) for n in self._climbing),
        ]

    @property
    def _climbing(self) -> tuple[int, ...]:
        """Numbers of tokens whose initial conditions climb: gradients of longer sequences take too long."""
        return tuple(n for n in self.tokens if n <= 1024)

    def conclude(self, rows: Sequence[Row]) -> Findings:
        drawn, climbed, counts = rows[0], rows[1], rows[2 : 2 + len(self.tokens)]
        worst = [32 * row["worst"][0] for row in rows[2 + len(self.tokens) :]]
        slopes = {
            "slope in L, worst of many": slope_interval(self.layers, drawn["worst"]),
            "slope in L, adversarial": slope_interval(self.layers, climbed["worst"]),
        }
        constants = [32 * row["mean"][0] for row in counts]
        spread = max(constants) / constants[0]
        judgement = all_of(
            *(equals(name, slope, -1.0, 0.1) for name, slope in slopes.items()),
            at_most("constant over N, relative to the fewest tokens", spread, 1.5),
            at_most("adversarial constant over N, relative to the fewest tokens", max(worst) / worst[0], 1.5),
        )
        measured = {
            **slopes,
            "L x error over N": constants,
            "L x error over N, adversarial": worst,
            "adversarial gain": climbed["worst"][-1] / drawn["worst"][-1],
        }
        bound = dict.fromkeys(slopes, -1.0)
        return Findings(rows, self._figures(drawn, climbed, constants, worst), measured, bound, judgement)

    def _figures(self, drawn: Row, climbed: Row, constants: list[float], worst: list[float]) -> tuple[Lines, Lines]:
        line = [drawn["worst"][0] * self.layers[0] / L for L in self.layers]
        over_layers = Lines(
            title="distance between layers and flow",
            measured="attention with parameters smooth over depth; flow by RK4",
            x=Scale("layers L", log=True),
            y=Scale("largest distance", log=True),
            series=(
                Series.of("worst of many initial conditions", self.layers, drawn["worst"], mark="both"),
                Series.of("after gradient ascent", self.layers, climbed["worst"], mark="both"),
                Series.of("1/L", self.layers, line, mark="dashed"),
            ),
        )
        over_tokens = Lines(
            title="the constant does not depend on the number of tokens",
            x=Scale("tokens N", log=True),
            y=Scale("32 x distance at 32 layers"),
            series=(
                Series.of("largest over tokens, mean over starts", self.tokens, constants, mark="both"),
                Series.of("largest of all, after gradient ascent", self._climbing, worst, mark="both"),
            ),
        )
        return over_layers, over_tokens
