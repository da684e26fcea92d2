"""`pathwise`: layers against their flow along the whole path, for fixed controls, depth profiles, norms and heads."""

import math
from collections.abc import Sequence
from typing import final

import torch

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Expansion
from continua.lab.experiment import AbstractExperiment, AtMost, Findings, curves
from continua.lab.flows import in_ball, solve_flow
from continua.lab.intervals import slope_interval
from continua.lab.sweep import AbstractCell, Row
from continua.lab.verdicts import all_of, at_most, equals
from continua.model import Flow, LinearProfile, Part
from continua.operators import AbstractOperator, Attention, FeedForward, LayerNorm, PreNorm, leaves
from continua.runs import Curve, Lines
from continua.solve import RK4, AbstractController, AbstractStepper, Euler, Fixed, Given, Projected, State
from continua.spaces import Cloud, Legendre, Sphere

KINDS = {
    "one head": 1,
    "four heads": 4,
    "sixteen heads": 16,
    "profile 1.8 to 0.2": 4,
    "layers denser at the start": 4,
    "pre-norm, feed-forward": 4,
    "on the sphere": 4,
}
"""What is measured, and its number of heads."""


def controlled_flow(kind: str, width: int) -> Flow:
    """Fixed controls, smooth in depth: attention, and where normed a feed-forward beside it."""
    generator, heads = generator_of(61), KINDS[kind]
    attention = Attention(heads, width, beta=1.0, biased=False, head_masses=True)
    operators: list[AbstractOperator] = [attention]
    if kind.startswith("pre-norm"):
        operators = [PreNorm(LayerNorm(), f) for f in (attention, FeedForward(2 * width))]
    parts = []
    for operator in operators:
        spec = operator.spec(width)
        field = Expansion(spec, Legendre(3), 1.0, generator=generator).double()
        with torch.no_grad():
            for name, _ in leaves(spec):
                if not name.endswith(("p", "gain")):  # masses and gains stay as they were built
                    c = field.coefficients[name.replace(".", "_") if name not in field.coefficients else name]
                    c.copy_(torch.randn(c.shape, generator=generator, dtype=torch.float64) * 0.5 / width**0.5)
        parts.append(Part(operator, field))
    profile = LinearProfile(1.8, 0.2) if kind.startswith("profile") else None
    return Flow(parts, 1.0, profile).double().eval().requires_grad_(False)


@final
class PathGap(AbstractCell):
    """sup_j max_i |X_j^i - x^i(z_j)| over all layers, and at the last one; with plain attention what bounds it.

        sup_j |X_j - x(z_j)| <= eps (M/2) int_0^1 e^{int_s^1 Lip} ds ,   M = sup |x''| along the flow

    Lip is measured along the path, as the largest row of norms of the blocks d f_i / d x_j. With the operator's own
    `lipschitz_bound` in the ball that holds all states it is an a-priori bound, and beyond any measurement.
    """

    kind: str
    layers: tuple[int, ...]
    starts: int
    tokens: int = 6
    width: int = 6
    fine: int = 256

    def measure(self) -> Row:
        flow = controlled_flow(self.kind, self.width)
        x = in_ball((self.starts, self.tokens, self.width), 1.5, 62)
        x = Sphere().project(x) if self.kind == "on the sphere" else x
        row: dict = {"kind": self.kind, "layers": list(self.layers), "path": [], "end": []}
        depths = self._depths(self.layers[-1])
        with torch.no_grad():
            exact = self._states(flow, x, RK4(), Fixed(self.fine), depths)
            for L in self.layers:
                own = self._depths(L)
                gap = self._states(flow, x, Euler(), Given(tuple(own)), own) - exact[:: self.layers[-1] // L]
                row["path"].append(float(gap.norm(dim=-1).max()))
                row["end"].append(float(gap[-1].norm(dim=-1).max()))
        if self.kind.endswith(("head", "heads")):
            row["bound"], row["lipschitz"], row["prior"] = self._bounds(flow, depths, exact)
        return row

    def _depths(self, layers: int) -> list[float]:
        power = 1.5 if self.kind.startswith("layers denser") else 1.0
        return [(j / layers) ** power for j in range(layers + 1)]

    def _states(
        self, flow: Flow, x: Points, stepper: AbstractStepper, controller: AbstractController, depths: list[float]
    ) -> Float[Tensor, "depths batch tokens width"]:
        if self.kind == "on the sphere":
            stepper = Projected(stepper, Sphere(), tangent=isinstance(stepper, RK4))
        xs = solve_flow(flow, Cloud(x), stepper, controller, depths).xs
        assert xs is not None
        return xs

    def _bounds(
        self, flow: Flow, depths: list[float], path: Float[Tensor, "depths batch tokens width"]
    ) -> tuple[float, float, float]:
        """The bound on L x distance by measured Lipschitz constants, the largest of these, and the operator's own."""
        bound = flow.bind(Cloud(path[0]))
        slopes = torch.stack([bound(z, State(x)).x for z, x in zip(depths, path, strict=True)])
        M = float((slopes[1:] - slopes[:-1]).norm(dim=-1).max()) * (len(depths) - 1)
        rows = []
        for z, x in zip(depths[:: len(depths) // 8], path[:: len(depths) // 8], strict=True):
            blocks = torch.autograd.functional.jacobian(lambda x, z=z: bound(z, State(x)).x.sum(0), x)
            assert isinstance(blocks, Tensor)  # (tokens width batch tokens width)
            rows.append(float(torch.linalg.matrix_norm(blocks.permute(2, 0, 3, 1, 4), ord=2).sum(-1).max()))
        left = [sum(rows[k:]) / len(rows) for k in range(len(rows))]
        operator, field = flow.parts[0].operator, flow.parts[0].field
        assert isinstance(operator, Attention)
        radius = float(path.norm(dim=-1).max())
        own = max(float(operator.lipschitz_bound(field(z), radius)) for z in depths)  # pyright: ignore
        return 0.5 * M * sum(map(math.exp, left)) / len(left), max(rows), own


@final
class Pathwise(AbstractExperiment):
    """Slope in L of the distance along the path, the constant beside its bound, over profiles, norms and heads."""

    name = "pathwise"
    claim = (
        "for fixed controls finite-depth trajectories stay within O(eps) of the flow along their whole path, with "
        "uniform and non-uniform depth profiles; with norms and several heads too, which the source leaves open"
    )
    formula = '"sup"_j |X_j - x(z_j)| ≤ C epsilon , " " C ≤ frac{M}{2} int_0^1 e^{int_s^1 Lip} ds'
    source = "arXiv 2606.23235; docs/mathematics.md, section 9"

    layers: tuple[int, ...] = (16, 32, 64, 128, 256)
    starts: int = 64

    def quick(self) -> "Pathwise":
        return Pathwise(layers=(16, 32, 64, 128), starts=8)

    def cells(self) -> Sequence[AbstractCell]:
        return [PathGap(kind, self.layers, self.starts) for kind in KINDS]

    def conclude(self, rows: Sequence[Row]) -> Findings:
        slopes = {f"slope in L: {row['kind']}": slope_interval(self.layers, row["path"]) for row in rows}
        constants = {row["kind"]: [L * e for L, e in zip(self.layers, row["path"], strict=True)] for row in rows}
        settles = max(abs(c[-1] / c[-2] - 1.0) for c in constants.values())
        shares = {row["kind"]: max(constants[row["kind"]]) / row["bound"] for row in rows if "bound" in row}
        judgement = all_of(
            *(equals(name, slope, -1.0, 0.2) for name, slope in slopes.items()),
            at_most("change of L x distance over the last doubling", settles, 0.1),
            at_most("largest share of the bound", max(shares.values()), 1.0),
        )
        measured = {**slopes, **{f"constant: {kind}": c[-1] for kind, c in constants.items()}}
        measured |= {f"share of the bound: {kind}": share for kind, share in shares.items()}
        measured["path over end"] = _ratios(rows)
        measured["Lipschitz constants measured"] = [row["lipschitz"] for row in rows if "bound" in row]
        measured["a priori (slack: its exponential is the bound)"] = [row["prior"] for row in rows if "bound" in row]
        bound = {**dict.fromkeys(slopes, -1.0), **{f"share of the bound: {kind}": AtMost(1.0) for kind in shares}}
        return Findings((self._figure(rows),), measured, bound, judgement)

    def _figure(self, rows: Sequence[Row]) -> Lines:
        series = [Curve.of(row["kind"], self.layers, row["path"], mark="both") for row in rows]
        series.append(Curve.of("1/L", self.layers, [rows[0]["path"][0] * self.layers[0] / L for L in self.layers],
                                mark="dashed"))  # fmt: skip
        return curves("distance along the whole path", "layers L", "largest distance", series, "xy")


def _ratios(rows: Sequence[Row]) -> list[float]:
    return [row["path"][-1] / row["end"][-1] for row in rows]
