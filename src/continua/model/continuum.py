"""The four continua of a model as arguments of `transformer`: `TokenTime`, `EmbeddingAxis`, `HeadMeasure`, `Depth`."""

import dataclasses
from collections.abc import Sequence
from typing import final

from continua.core.arguments import advise
from continua.core.checks import at_least, is_a, not_negative, positive
from continua.core.errors import reject
from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.expansion import Expansion
from continua.fields.field import AbstractField
from continua.fields.heads import ContinuousHeads
from continua.fields.hypernetwork import HeadHypernetwork, Hypernetwork
from continua.model.flow import Flow, Part
from continua.model.positions import AbstractPositionCode, Clock
from continua.model.profile import AbstractProfile
from continua.operators.attention import Rotary
from continua.operators.integral import AbstractTokenIntegral, Exact
from continua.operators.kernels import AbstractKernel, Convolution, Spectral
from continua.operators.operator import Theta
from continua.solve import (
    AbstractGradient,
    AbstractStepper,
    Adaptive,
    Direct,
    DormandPrince,
    Fixed,
    LieTrotter,
    Solver,
    Strang,
)
from continua.spaces.axis import Axis
from continua.spaces.bases import AbstractBasis, Cosine, Fourier, Legendre, PlateauBasis, ScaledBasis
from continua.spaces.quadrature import AbstractNodalRule, GaussLegendre
from continua.spaces.samples import AbstractSampleRule


@final
@dataclasses.dataclass(frozen=True)
class Stem:
    """A continuous local stem before the flow: `radius` in spacings of samples, `modes` of its kernel.

    `InterpolatedStem`, which it becomes, has its radius in token time.

    With `gaps` it also receives the distance to the nearest sample, for signals with missing samples.
    """

    radius: float = 4.0
    modes: int = 7
    gaps: bool = False

    def __post_init__(self) -> None:
        positive(radius=self.radius)
        at_least(1, modes=self.modes)


@final
@dataclasses.dataclass(frozen=True)
class TokenTime:
    """Token time: signals have times from `start` to `end` in any unit, usually `spacing` apart in that unit.

    Samples that come without times are equispaced from `start` to `end`, whatever `spacing` is, which only makes stem
    and frequencies; in a causal model they are `spacing` apart from `start` (a 32nd of the span where it is not given).
    Large times, such as seconds since 1970, come in float64.

    `rule` turns times into masses (trapezoid; a causal one for causal models), `positions` are rotary by default, their
    frequencies made for span and spacing; a position code is added to the embedding instead. Rules, frequencies and
    codes that you pass read token time, 0 at `start` and 1 at `end`: `BackwardRectangle(start=-1 / 48)` is one hour
    before 48, `SinusoidalPositions(width, fastest=120)` turns by 2.5 per sample of 48. `Rotary()` and
    `SinusoidalPositions(width)` get frequencies for span and spacing. Signals pass a local `stem`. Without stem and
    positions (`None`) and with the rule `Uniform()` tokens are a set, in any order. The time of whole numbers is their
    index, and times that are given with them are taken as they are: span, spacing and stem are for signals. With
    `queries` outputs may be asked for at times without a sample, `model(values, times, query_times=...)`. With
    `channels` samples are cells of so many sensors, at times of their own: a value, the channel by a 1 among 0s, then
    static numbers (`CellEmbedding`). `integral` evaluates the token integral: exactly, or by an estimate for long
    sequences.
    """

    start: float = 0.0
    end: float = 1.0
    spacing: float | None = None
    rule: AbstractSampleRule | None = None
    positions: Rotary | AbstractPositionCode | None = Rotary()
    stem: Stem | None = Stem()
    queries: bool = False
    integral: AbstractTokenIntegral = Exact()
    channels: int = 0

    def __post_init__(self) -> None:
        positive(spacing=self.spacing)
        at_least(0, channels=self.channels)
        Clock(self.start, self.end)  # refuses a span that is none
        if self.queries and self.positions is None and self.stem is None:
            why = "a query has only its time, which nothing reads without positions and stem"
            cure = "Pass positions=Rotary(), or give such places as tokens, with a feature that says so."
            reject("queries", True, why, cure)
        kinds = {"rule": AbstractSampleRule, "positions": (Rotary, AbstractPositionCode), "stem": Stem}
        for name, kind in kinds.items():
            if (value := getattr(self, name)) is not None:
                is_a(kind, "Pass an object, such as Trapezoid(), Rotary() or Stem().", **{name: value})

    @property
    def relative_spacing(self) -> float:
        """The spacing of samples as a fraction of the span; 1/32 where it is not known."""
        return 1 / 32 if self.spacing is None else self.spacing / (self.end - self.start)


@final
@dataclasses.dataclass(frozen=True)
class EmbeddingAxis:
    """The embedding axis: states are functions on [0, 1], known at `nodes` nodes, with width / nodes channels.

    Kernels along it are spectral, with `modes` cosine modes (default: as many as nodes). If `periodic` they are
    convolutions by FFT with `modes` frequencies (default: those that the nodes resolve), and `unitary` keeps every
    frequency's matrix unitary at every depth. With fewer modes than nodes activations alias less: with half as many
    a trained model hardly changes at more nodes, since attention is exact for the modes at any number of them.
    """

    nodes: int = 8
    modes: int | None = None
    periodic: bool = False
    unitary: bool = False

    def __post_init__(self) -> None:
        at_least(1, nodes=self.nodes, modes=self.modes)
        if self.unitary and not self.periodic:
            reject("unitary", True, "only multipliers of a convolution are unitary", "Pass periodic=True as well.")

    def basis(self) -> AbstractBasis:
        """The basis of the coefficients that the embedding gives and the readout takes."""
        if self.periodic:
            return Fourier(2 * self._frequencies + 1)
        return Cosine(self.nodes if self.modes is None else self.modes)

    def kernel(self, axis: Axis) -> AbstractKernel:
        if self.periodic:
            return Convolution(axis, self._frequencies, self.unitary)
        return Spectral(axis, self.basis())

    @property
    def _frequencies(self) -> int:
        return max(1, (self.nodes - 1) // 2) if self.modes is None else self.modes


@final
@dataclasses.dataclass(frozen=True)
class HeadMeasure:
    """Heads as a measure: parameters theta(h, z) in `modes` Legendre modes of h, evaluated at `nodes` nodes of a rule.

    Their density is trained, a polynomial of `degree` in h. `key_size` is the size of a head's query and key vectors,
    per axis node (default: as if the heads shared the channels of an axis node).
    """

    nodes: int = 4
    modes: int = 4
    degree: int = 3
    key_size: int | None = None
    rule: AbstractNodalRule = GaussLegendre()

    def __post_init__(self) -> None:
        at_least(1, nodes=self.nodes, modes=self.modes, key_size=self.key_size)
        at_least(0, degree=self.degree)
        is_a(AbstractNodalRule, "Pass a rule with nodes of its own, such as GaussLegendre().", rule=self.rule)


@final
@dataclasses.dataclass(frozen=True)
class HypernetworkField:
    """Parameters along depth made by a hypernetwork (`Hypernetwork`)."""

    frequencies: int = 4
    hidden: int = 32
    rank: int | None = None


@final
@dataclasses.dataclass(frozen=True)
class Depth:
    """Depth: a flow of `length` Z, solved in `steps` equal steps (default: of length 1), or adaptively at `rtol`.

    `transformer(depth=12)` is `Depth(12.0)`: twelve steps, and as many parameters as four layers, since they are those
    of `field`. `Depth(12.0, field=12)` is twelve layers: n of them have depth n, as a step of layers has length 1. With
    a length that they do not share evenly into such steps, each layer is one step.

    `field` says how the parameters vary along it: in a basis (an `AbstractBasis`; by default four cosines that weigh
    0.8^k, with plateaus in the middles of equal steps), made by a hypernetwork (`HypernetworkField`), or constant on so
    many layers (a whole number; 1 shares one set over all depths), whose heads are counted. Equal steps are split,
    attention before feed-forward, adaptive ones Dormand-Prince's, unless `stepper` is another. With `stagger` the flow
    of split steps is one for which they are leapfrog (`Flow`), so that finer steps change less. `damping` is the gamma
    of -gamma x, `profile` a velocity profile zeta(z); with `spectral_limit` no kernel of the flow stretches a state by
    more than that (`SpectrallyNormed`).
    """

    length: float = 4.0
    field: AbstractBasis | HypernetworkField | int | None = None
    steps: int | None = None
    rtol: float | None = None
    stepper: AbstractStepper | None = None
    gradient: AbstractGradient = Direct()
    damping: float = 0.0
    profile: AbstractProfile | None = None
    spectral_limit: float | None = None
    stagger: bool = True

    def __post_init__(self) -> None:
        positive(length=self.length, rtol=self.rtol, spectral_limit=self.spectral_limit)
        at_least(1, steps=self.steps)
        not_negative(damping=self.damping)
        is_a(bool, "Pass True or False; steps says for how many.", stagger=self.stagger)
        if isinstance(self.field, int):
            at_least(1, field=self.field)
        halves = 2 if isinstance(self.stepper, Strang) else 1
        if isinstance(self.field, int) and self.steps is not None and halves * self.steps % self.field:
            why = f"field = {self.field} layers, and no step crosses the end of one"
            reject("steps", self.steps, why, f"Pass a multiple of {self.field}.")
        if self.steps is not None and self.rtol is not None:
            why = f"steps = {self.steps} are equal, and do not adapt"
            reject("rtol", self.rtol, why, "Pass one of steps and rtol.")

    def solver(self) -> Solver:
        if self.rtol is not None:
            return Solver(self.stepper or DormandPrince(), Adaptive(self.rtol, self.rtol))
        return Solver(self.stepper or LieTrotter(), Fixed(self._equal_steps))

    @property
    def _equal_steps(self) -> int:
        if self.steps is not None:
            return self.steps
        usual, layers = max(1, round(self.length)), self.field if isinstance(self.field, int) else 1
        return layers if usual % layers else usual  # no step crosses the end of a layer

    @property
    def _split(self) -> bool:
        return self.rtol is None and isinstance(self.stepper or LieTrotter(), LieTrotter)

    def build_flow(self, parts: Sequence[Part]) -> Flow:
        """The flow of these parts, staggered where its equal steps are split."""
        staggered = self.stagger and self._split and self.profile is None
        return Flow(parts, self.length, self.profile, self._equal_steps if staggered else None)

    def build_field(self, spec: Theta, heads: HeadMeasure | None) -> AbstractField:
        """The parameters of an operator along depth; `heads` where they are a measure."""
        field, depth = self.field, self.length
        if field is None:
            modes = ScaledBasis(Cosine(4), 0.8)
            field = PlateauBasis(modes, self._equal_steps) if self._split else modes
        if isinstance(field, HypernetworkField):
            sizes = field.frequencies, field.hidden, field.rank
            if heads is None:
                return Hypernetwork(spec, depth, *sizes)
            return HeadHypernetwork(spec, depth, *sizes, Legendre(heads.modes), heads.degree, heads.rule)
        if isinstance(field, int):
            edges = [depth * layer / field for layer in range(field + 1)]
            return Constant(spec) if field == 1 else PiecewiseConstant(spec, edges)
        is_a(
            AbstractBasis,
            "Pass a basis such as Cosine(4), a HypernetworkField(), or a number of layers.",
            field=field,
        )
        if heads is None:
            return Expansion(spec, field, depth)
        return ContinuousHeads(spec, depth, Legendre(heads.modes), field, heads.degree, heads.rule)


_ELSEWHERE = {
    **dict.fromkeys(("layers", "n_layer", "n_layers", "num_layers"), "Depth(4.0, field=4) for four layers"),
    **dict.fromkeys(("solver", "method"), "stepper="),
    "modes": "field=ScaledBasis(Cosine(4), 0.8)",
}
Depth.__init__ = advise("continua.Depth", _ELSEWHERE)(Depth.__init__)
