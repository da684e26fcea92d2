"""The one builder: `continua.transformer(width=64, outputs=10, features=1)`, continuous in token
time, embedding, heads and depth.

Each continuum is one argument that takes a number or an object: `time`, `axis` (embedding), `heads`, `depth`.
"""

import dataclasses
from collections.abc import Sequence
from typing import final

from continua.core.arguments import advise
from continua.core.checks import at_least, divides, fraction, is_a, not_negative, positive
from continua.core.errors import reject
from continua.fields.constant import Constant, PiecewiseConstant
from continua.fields.expansion import Expansion
from continua.fields.field import AbstractField
from continua.fields.heads import ContinuousHeads
from continua.fields.hypernetwork import HeadHypernetwork, Hypernetwork
from continua.model.embedding import AbstractEmbedding, CellEmbedding, NormedEmbedding, TokenEmbedding, VectorEmbedding
from continua.model.flow import Flow, Part
from continua.model.positions import AbstractPositionCode, Clock, SinusoidalPositions
from continua.model.profile import AbstractProfile
from continua.model.readout import AbstractReadout, AnalysisReadout, MeanReadout, SynthesisEmbedding, TokenReadout
from continua.model.stem import InterpolatedStem, StemEmbedding
from continua.model.transformer import ContinuousTransformer
from continua.operators.attention import Attention, Rotary
from continua.operators.compose import Dropout, SpectrallyNormed
from continua.operators.feedforward import Damping, FeedForward
from continua.operators.integral import AbstractTokenIntegral, Exact
from continua.operators.kernels import AbstractKernel, Convolution, Dense, Spectral
from continua.operators.norms import LayerNorm, PreNorm
from continua.operators.operator import AbstractOperator, Theta
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
from continua.spaces.samples import AbstractSampleRule, BackwardRectangle, CausalTrapezoid, Counting, Trapezoid

_FASTEST = 2.5
"""Angle by which the fastest rotary pair turns from one sample to the next."""
_TINY = 1e-8
"""What the first norm adds to a variance; vectors of tokens are drawn with one of 4e-4."""
_CHANNELS = 4
"""Channels per feature of a signal before a stem."""


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
    frequency's matrix unitary at every depth. With fewer modes activations alias less. A model is best read at a
    multiple of as many nodes as its kernels have functions (`modes`, of frequencies 2 `modes` + 1), since rotary
    frequencies are constant on so many cells (`Rotary`).
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
    of `field`. `Depth(12.0, field=12)` is twelve layers.

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
        return max(1, round(self.length)) if self.steps is None else self.steps

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
    **dict.fromkeys(("d_model", "n_embd", "embed_dim", "hidden_size", "dim"), "width="),
    **dict.fromkeys(("nhead", "n_head", "n_heads", "num_heads"), "heads="),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "layers"), "depth=Depth(4.0, field=4) for four layers"),
    **dict.fromkeys(("dim_feedforward", "intermediate_size", "d_ff"), "hidden="),
    **dict.fromkeys(("vocab_size", "num_embeddings"), "vocabulary="),
    **dict.fromkeys(("num_classes", "n_classes", "num_labels", "out_features"), "outputs="),
    **dict.fromkeys(("in_features", "input_size", "input_dim", "channels"), "features="),
    **dict.fromkeys(("steps", "rtol", "solver"), "depth=Depth(steps=8) or Depth(rtol=1e-4)"),
    "is_causal": "causal=",
    "nodes": "axis= (nodes of the embedding axis) or heads=HeadMeasure(nodes)",
}
"""What other libraries call the arguments of the builder."""


@advise("continua.transformer", _ELSEWHERE)
def transformer(  # noqa: PLR0913 - one argument per choice that a user makes; the continua are objects
    width: int,
    outputs: int,
    *,
    vocabulary: int | None = None,
    features: int | None = None,
    causal: bool = False,
    hidden: int | None = None,
    dropout: float = 0.0,
    per_token: bool | None = None,
    time: float | TokenTime = TokenTime(),
    axis: int | EmbeddingAxis = EmbeddingAxis(),
    heads: int | HeadMeasure = HeadMeasure(),
    depth: float | Depth = Depth(),
) -> ContinuousTransformer:
    """A Transformer continuous in token time, embedding, heads and depth: pre-normed attention and feed-forward.

    Give `features` for signals over real time (one output per sequence unless `per_token`) or `vocabulary` for whole
    numbers (one output per token unless `per_token=False`). In a `causal` model a token sees those of earlier times and
    of its own. Each continuum takes a number or an object:

    - `time`: the end of the span that times come from, or `TokenTime(...)`;
    - `axis`: nodes of the embedding axis, or `EmbeddingAxis(...)`; 1 makes states plain vectors;
    - `heads`: a number makes plain, counted heads; `HeadMeasure(...)` a measure with a trained density;
    - `depth`: the length of the flow, solved in steps of 1, or `Depth(...)`.

    `hidden` is the inner size of the feed-forward, 4 width by default, which the axis nodes share, so that print(model)
    shows hidden / nodes; `dropout` is the rate on both branches in training.
    A trained model runs at other resolutions, `model.at(steps=8)`, `.at(head_nodes=12)`, `.at(axis_nodes=16)`, and at
    any sample times.
    """
    at_least(1, width=width, outputs=outputs, hidden=hidden)
    fraction(all=False, dropout=dropout)
    if (vocabulary is None) == (features is None):
        cure = "Pass features=... for signals, or vocabulary=... for whole numbers: one of the two."
        reject("features", features, f"with vocabulary = {vocabulary} the input is not decided", cure)
    is_a((TokenTime, int, float), "Pass the end of the span, or TokenTime(start, end).", time=time)
    when = time if isinstance(time, TokenTime) else TokenTime(end=float(time))
    if vocabulary is not None:
        _refuse_units(when)
    is_a((Depth, int, float), "Pass a length, or Depth(...).", depth=depth)
    is_a((HeadMeasure, int), "Pass a number, or HeadMeasure(...).", heads=heads)
    is_a((EmbeddingAxis, int), "Pass a number of nodes, or EmbeddingAxis(...).", axis=axis)
    how = depth if isinstance(depth, Depth) else Depth(float(depth))
    state = _State.of(width, axis)
    measure = heads if isinstance(heads, HeadMeasure) else None
    token_wise = vocabulary is not None if per_token is None else per_token
    attention = _attention(state, heads, causal, _rotary(when, vocabulary), when.integral)
    feedforward = FeedForward(max(1, (hidden or 4 * width) // state.kernel.nodes), kernel=state.kernel)
    branches = ((attention, measure), (feedforward, None))
    parts = [_part(PreNorm(state.norm(), f), width, dropout, how, nodes) for f, nodes in branches]
    if how.damping > 0.0:
        parts.append(Part(Damping(how.damping), Constant(Damping(how.damping).spec(width))))
    embedding = _embedding(state, vocabulary, features, causal, when)
    readout = _readout(state, outputs, token_wise)
    return ContinuousTransformer(embedding, how.build_flow(parts), readout, how.solver(), how.gradient)


@final
@dataclasses.dataclass(frozen=True)
class _State:
    """What a token's state is: a vector, or a function along the embedding axis."""

    width: int
    kernel: AbstractKernel = Dense()
    axis: Axis | None = None
    basis: AbstractBasis | None = None

    @classmethod
    def of(cls, width: int, axis: int | EmbeddingAxis) -> "_State":
        along = axis if isinstance(axis, EmbeddingAxis) else EmbeddingAxis(axis) if axis != 1 else None
        if along is None:
            return cls(width)
        if width % along.nodes:
            low = width - width % along.nodes
            near = f"{low} or {low + along.nodes}" if low else f"{along.nodes}"
            cure = f"Pass a multiple, such as {near}, or axis={_divisor_near(width, along.nodes)}."
            reject("width", width, f"it does not split over {along.nodes} axis nodes", cure)
        functions = Axis(along.nodes, width // along.nodes)
        return cls(width, along.kernel(functions), functions, along.basis())

    @property
    def inner(self) -> int:
        """The width that embedding and readout see: the coefficients of a function, or the vector itself."""
        return self.width if self.axis is None or self.basis is None else self.basis.size * self.axis.channels

    def norm(self, eps: float = 1e-5, affine: bool = True) -> LayerNorm:
        return LayerNorm(eps, affine, axis=self.axis, basis=self.basis or Cosine(1))


def _divisor_near(width: int, nodes: int) -> int:
    """The number of axis nodes that divides the width and is nearest to the one that was wanted."""
    return min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - nodes))


def _attention(
    state: _State, heads: int | HeadMeasure, causal: bool, rotary: Rotary | None, integral: AbstractTokenIntegral
) -> Attention:
    nodes = state.kernel.nodes
    channels = state.width // nodes
    if isinstance(heads, HeadMeasure):
        count, key = heads.nodes, heads.key_size or max(2, 2 * (channels // heads.nodes // 2))
    else:
        divides(channels, "the width" if nodes == 1 else "the width per axis node", heads=heads)
        count, key = heads, channels // heads
    if rotary is not None and key % 2:
        where = f"they share {channels} channels" + (" of an axis node" if nodes > 1 else "")
        fitting = [n for n in range(1, channels // 2 + 1) if channels % (2 * n) == 0]
        cures = [*(["axis=1 for plain vectors"] if nodes > 1 else []), *([f"heads={fitting[-1]}"] if fitting else [])]
        cure = f"Pass {', '.join([*cures, 'HeadMeasure(key_size=2)'])}, or another width."
        reject("heads", count, f"{where}: queries of size {key}, of which rotary positions turn pairs", cure)
    measured = isinstance(heads, HeadMeasure)
    return Attention(
        count, key, causal=causal, head_masses=measured, rotary=rotary, kernel=state.kernel, integral=integral
    )


def _part(operator: AbstractOperator, width: int, dropout: float, depth: Depth, measure: HeadMeasure | None) -> Part:
    field = depth.build_field(operator.spec(width), measure)
    if depth.spectral_limit is not None:
        operator = SpectrallyNormed(operator, depth.spectral_limit)
    return Part(Dropout(operator, dropout) if dropout > 0.0 else operator, field)


def _refuse_units(time: TokenTime) -> None:
    """Refuses what says how times of signals are scaled and smoothed, which nothing does for whole numbers."""
    usual, named = TokenTime(), ("start", "end", "spacing", "channels")
    given = [name for name in named if getattr(time, name) != getattr(usual, name)]
    given += [] if time.stem in (None, Stem()) else ["stem"]
    if given:
        why = "times of whole numbers are taken as they are, 1 from one token to the next, and pass no stem"
        cure = "Leave it out, and divide your times by their usual spacing."
        reject(f"time.{given[0]}", getattr(time, given[0]), why, cure)


def _rotary(time: TokenTime, vocabulary: int | None) -> Rotary | None:
    positions = time.positions
    if not isinstance(positions, Rotary):
        return None
    return positions if vocabulary is not None or positions != Rotary() else Rotary(*_frequencies(time))


def _frequencies(time: TokenTime) -> tuple[float, float]:
    """The fastest and the slowest for signals: those that turn by `_FASTEST` per sample, and by 3 over the span."""
    fastest = _FASTEST / time.relative_spacing
    return fastest, min(3.0, fastest)


def _embedding(
    state: _State, vocabulary: int | None, features: int | None, causal: bool, time: TokenTime
) -> AbstractEmbedding:
    """Tokens start at unit variance: the slope of a norm is one over the token's own deviation, so small ones would
    make the flow stiff."""
    if vocabulary is not None:
        code, rule = _code(time, vocabulary), time.rule or Counting()
        embedding: AbstractEmbedding = TokenEmbedding(vocabulary, state.inner, code, rule, time.queries)
    else:
        assert features is not None
        embedding = _signal_embedding(features, state.inner, causal, time)
    if state.axis is not None and state.basis is not None:
        embedding = SynthesisEmbedding(embedding, state.axis, state.basis)
    return NormedEmbedding(embedding, state.norm(_TINY, affine=False))


def _signal_embedding(features: int, width: int, causal: bool, time: TokenTime) -> AbstractEmbedding:
    # own masses of the causal trapezoid would tell a query of the next sample's time
    causal_rule = BackwardRectangle(-time.relative_spacing) if time.queries else CausalTrapezoid()
    code, rule = _code(time), time.rule or (causal_rule if causal else Trapezoid())
    # equispaced over the span, samples would tell a causal model how many are still to come
    spacing = time.relative_spacing * (time.end - time.start) if causal else None
    clock = Clock(time.start, time.end, spacing, time.spacing)
    if time.stem is None:
        return VectorEmbedding(features, width, code, rule, time.queries, clock)
    if code is not None:
        cure = "Pass stem=None, or rotary positions."
        reject("positions", type(code).__name__, "a code would be added before the stem, which is narrower", cure)
    radius = time.stem.radius * time.relative_spacing
    if time.channels:
        if features < 1 + time.channels:
            why = f"a cell is a value, {time.channels} numbers that name its channel, and static numbers"
            reject("features", features, why, f"Pass features={1 + time.channels}, or more with static numbers.")
        cells = CellEmbedding(time.channels, features - 1 - time.channels, rule, time.queries, clock)
        how = (cells.width, radius, time.stem.modes, causal, width, time.stem.gaps, time.channels)
        return StemEmbedding(cells, InterpolatedStem(*how))
    narrow = min(_CHANNELS * features, width)
    stem = InterpolatedStem(narrow, radius, time.stem.modes, causal, outputs=width, gaps=time.stem.gaps)
    return StemEmbedding(VectorEmbedding(features, narrow, None, rule, time.queries, clock), stem)


def _code(time: TokenTime, vocabulary: int | None = None) -> AbstractPositionCode | None:
    code = time.positions
    if vocabulary is None and isinstance(code, SinusoidalPositions) and code.is_default:
        return SinusoidalPositions(code.width, *_frequencies(time))
    return code if isinstance(code, AbstractPositionCode) else None


def _readout(state: _State, outputs: int, per_token: bool) -> AbstractReadout:
    readout = TokenReadout(state.inner, outputs) if per_token else MeanReadout(state.inner, outputs)
    if state.axis is None or state.basis is None:
        return readout
    return AnalysisReadout(readout, state.axis, state.basis)
