"""`depth-limit` and `post-norm`: layers are Euler steps of a flow, at a distance C/L, and what sets the constant."""

from collections.abc import Sequence
from typing import final

import torch

from continua.core.shapes import Float, Points, Tensor
from continua.fields import Expansion
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import attention_flow, in_ball, random_theta, solve_flow
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most, equals
from continua.model import Flow, Part
from continua.operators import Attention, leaves
from continua.runs import Curve, Lines, Scale
from continua.solve import RK4, AbstractStepper, Euler, Fixed, Projected
from continua.spaces import Cloud, Legendre, Sphere

_RADIUS = 1.5


@final
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
            x = self._ascend(flow, x)
        with torch.no_grad():
            exact = after_steps(flow, x, self.fine, RK4())
            gaps = {L: distance(after_steps(flow, x, L, Euler()), exact) for L in self.layers}
        return {
            "tokens": self.tokens,
            "ascent": self.ascent,
            "layers": list(self.layers),
            "worst": [float(gap.max()) for gap in gaps.values()],
            "mean": [float(gap.mean()) for gap in gaps.values()],
        }

    def _ascend(self, flow: Flow, x: Points) -> Points:
        x = x.clone().requires_grad_()
        gap = distance(after_steps(flow, x, 16, Euler()), after_steps(flow, x, 16, RK4()))
        (slope,) = torch.autograd.grad(gap.log().sum(), x)
        moved = x.detach() + 0.1 * slope / slope.norm(dim=(-1, -2), keepdim=True) * x.shape[1] ** 0.5
        return moved * (_RADIUS / moved.norm(dim=-1, keepdim=True).clamp_min(_RADIUS))


def smooth_flow(width: int) -> Flow:
    """Attention with four heads whose parameters are smooth over depth."""
    generator = torch.Generator().manual_seed(5)
    operator = Attention(heads=4, key_size=width, beta=1.0, biased=False, head_masses=True)
    spec = operator.spec(width)
    field = Expansion(spec, Legendre(4), 1.0, generator=generator).double()
    with torch.no_grad():
        for name, _ in leaves(spec):
            if name != "p":  # a density has no directions: it stays as it was built
                c = field.coefficients[name]
                c.copy_(torch.randn(c.shape, generator=generator, dtype=torch.float64) * 0.5 / width**0.5)
    return Flow([Part(operator, field)], 1.0).double().eval().requires_grad_(False)


def after_steps(flow: Flow, x: Points, steps: int, stepper: AbstractStepper) -> Points:
    """The tokens at depth 1 after equal steps."""
    return solve_flow(flow, Cloud(x), stepper, Fixed(steps)).x


def distance(a: Points, b: Points) -> Float[Tensor, " batch"]:
    """max_i |a_i - b_i| of each sequence."""
    return (a - b).norm(dim=-1).amax(-1)


@final
class DepthLimit(AbstractExperiment):
    """Slope in L for the worst of many initial conditions and for adversarial ones; the constant over N."""

    name = "depth-limit"
    claim = (
        "for a smooth field of parameters L layers are at distance O(1/L) from the flow, uniformly over initial "
        "conditions in a ball and with a constant that does not depend on the number of tokens"
    )
    formula = '"sup"_{|x_0| ≤ R} "max"_i |x_L^i - x^i(1)| ≤ C / L'
    source = "docs/mathematics.md, section 3; arXiv 2605.11059, Theorem 7 without sampling"

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
        return Findings(self._figures(drawn, climbed, constants, worst), measured, bound, judgement)

    def _figures(self, drawn: Row, climbed: Row, constants: list[float], worst: list[float]) -> tuple[Lines, Lines]:
        line = [drawn["worst"][0] * self.layers[0] / L for L in self.layers]
        over_layers = Lines(
            title="distance between layers and flow",
            measured="attention with parameters smooth over depth; flow by RK4",
            x=Scale("layers L", log=True),
            y=Scale("largest distance", log=True),
            curves=(
                Curve.of("worst of many initial conditions", self.layers, drawn["worst"], mark="both"),
                Curve.of("after gradient ascent", self.layers, climbed["worst"], mark="both"),
                Curve.of("1/L", self.layers, line, mark="dashed"),
            ),
        )
        over_tokens = Lines(
            title="the constant does not depend on the number of tokens",
            x=Scale("tokens N", log=True),
            y=Scale("32 x distance at 32 layers"),
            curves=(
                Curve.of("largest over tokens, mean over starts", self.tokens, constants, mark="both"),
                Curve.of("largest of all, after gradient ascent", self._climbing, worst, mark="both"),
            ),
        )
        return over_layers, over_tokens


@final
class NormedLayers(AbstractCell):
    """L times the distance between L layers and their flow, with steps projected on the sphere and without.

    With `updates`, both are trained first: by Adam, 16 layers, towards what other weights make of the tokens on the
    sphere, so that either can come near.
    """

    scale: float
    layers: int
    starts: int
    width: int = 8
    updates: int = 0

    def measure(self) -> Row:
        operator = Attention(4, self.width, beta=1.0, biased=False, head_masses=True)
        x = Sphere().project(in_ball((self.starts, 8, self.width), 1.0, 52))
        teacher = attention_flow(operator, random_theta(4, self.width, self.width, 3.0, 53))
        targets = after_steps(teacher, x, 16, Projected(RK4(), Sphere(), tangent=True))
        row = {"scale": self.scale, "layers": self.layers, "updates": self.updates}
        # Layers normalise after the step alone. Their limit is the tangential flow, whose stages RK4 must project too.
        pairs = {
            "plain": (Euler(), RK4()),
            "normed": (Projected(Euler(), Sphere()), Projected(RK4(), Sphere(), tangent=True)),
        }
        for name, (coarse, fine) in pairs.items():
            flow = attention_flow(operator, random_theta(4, self.width, self.width, self.scale, 51))
            optimiser = torch.optim.Adam(flow.requires_grad_(True).parameters(), 0.03)
            for _ in range(self.updates):
                optimiser.zero_grad()
                (after_steps(flow, x, 16, coarse) - targets).square().sum(-1).mean().backward()
                optimiser.step()
            with torch.no_grad():
                layers, exact = after_steps(flow, x, self.layers, coarse), after_steps(flow, x, 4 * self.layers, fine)
                row[f"{name}_constant"] = self.layers * float(distance(layers, exact).max())
                row[f"{name}_state"] = float(exact.norm(dim=-1).max())
        return row


@final
class PostNormLimit(AbstractExperiment):
    """Constants and sizes of states over the scale of the weights."""

    name = "post-norm"
    claim = (
        "normalisation after every layer keeps states bounded where they grow without it, and so improves the constant "
        "of the depth limit; what it improves is the size of the states: relative to them the constant stays as it was"
    )
    formula = '|x(1)| ≤ R e^{|O^T V|} " without, " |x(1)| = R " with normalisation"'
    source = "arXiv 2605.11059, section 1.1"

    scales: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    layers: int = 256
    starts: int = 128

    updates: int = 60

    def quick(self) -> "PostNormLimit":
        return PostNormLimit(scales=(1.5, 2.0, 2.5, 3.0), layers=64, starts=32, updates=20)

    def cells(self) -> Sequence[AbstractCell]:
        drawn = [NormedLayers(scale, self.layers, self.starts) for scale in self.scales]
        return [*drawn, NormedLayers(2.0, self.layers, self.starts, updates=self.updates)]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        states = max(abs(row["normed_state"] - 1.0) for row in rows)
        *rows, trained = rows
        ratios = [row["normed_constant"] / row["plain_constant"] for row in rows]
        relative = [ratio * row["plain_state"] for ratio, row in zip(ratios, rows, strict=True)]
        judgement = all_of(
            at_most("normed states, distance from the sphere", states, 1e-12),
            at_most("constant with over constant without, largest weights", ratios[-1], 1.0),
            at_most("the same relative to the states: furthest from 1", max(abs(r - 1.0) for r in relative), 0.1),
        )
        own = trained["normed_constant"] / trained["plain_constant"]
        measured = {"ratio, trained": own, "ratio, trained, relative to the states": own * trained["plain_state"]}
        measured |= {"ratio, relative to the states": relative}
        measured |= {"constants, with": [row["normed_constant"] for row in rows]}
        measured |= {"constants, without": [row["plain_constant"] for row in rows], "ratio": ratios}
        measured |= {"largest state without": [row["plain_state"] for row in rows]}

        def figure(title: str, kind: str, label: str) -> Lines:
            names = {"plain": "without", "normed": "projected on the sphere"}
            found = tuple(
                Curve.of(names[way], self.scales, [row[f"{way}_{kind}"] for row in rows], mark="both") for way in names
            )
            return curves(title, "Frobenius norm of each matrix", label, found, "y")

        figures = (
            figure("constant of the depth limit", "constant", "L x distance"),
            figure("largest state at depth 1", "state", "|x(1)|"),
        )
        return Findings(figures, measured, {"largest ratio": AtMost(1.0)}, judgement)
