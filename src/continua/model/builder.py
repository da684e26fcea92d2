"""The one builder: `continua.transformer(width=64, outputs=10, features=1)`, continuous in token
time, embedding, heads and depth.

Each continuum is one argument that takes a number or an object: `time`, `axis` (embedding), `heads`, `depth`.
"""

import dataclasses
from typing import final

from continua.core.arguments import advise
from continua.core.checks import at_least, divides, fraction, is_a
from continua.core.errors import reject
from continua.fields.constant import Constant
from continua.model.continuum import Depth, EmbeddingAxis, HeadMeasure, Stem, TokenTime
from continua.model.embedding import AbstractEmbedding, CellEmbedding, NormedEmbedding, TokenEmbedding, VectorEmbedding
from continua.model.flow import Part
from continua.model.positions import AbstractPositionCode, Clock, SinusoidalPositions
from continua.model.readout import AbstractReadout, AnalysisReadout, MeanReadout, SynthesisEmbedding, TokenReadout
from continua.model.stem import InterpolatedStem, StemEmbedding
from continua.model.transformer import ContinuousTransformer
from continua.operators.attention import Attention, Rotary
from continua.operators.compose import Dropout, SpectrallyNormed
from continua.operators.feedforward import Damping, FeedForward
from continua.operators.integral import AbstractTokenIntegral
from continua.operators.kernels import AbstractKernel, Dense
from continua.operators.norms import LayerNorm, PreNorm
from continua.operators.operator import AbstractOperator
from continua.spaces.axis import Axis
from continua.spaces.bases import AbstractBasis, Cosine
from continua.spaces.samples import BackwardRectangle, CausalTrapezoid, Counting, Trapezoid

_FASTEST = 2.5
"""Angle by which the fastest rotary pair turns from one sample to the next."""
_TINY = 1e-8
"""What the first norm adds to a variance; vectors of tokens are drawn with one of 4e-4."""
_CHANNELS = 4
"""Channels per feature of a signal before a stem."""
_ELSEWHERE = {
    **dict.fromkeys(("d_model", "n_embd", "embed_dim", "hidden_size", "dim"), "width="),
    **dict.fromkeys(("nhead", "n_head", "n_heads", "num_heads"), "heads="),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "layers"), "depth=Depth(4.0, field=4) for four layers"),
    **dict.fromkeys(("dim_feedforward", "intermediate_size", "d_ff"), "hidden="),
    **dict.fromkeys(("vocab_size", "num_embeddings"), "vocabulary="),
    **dict.fromkeys(("num_classes", "n_classes", "num_labels", "out_features"), "outputs="),
    **dict.fromkeys(("in_features", "input_size", "input_dim", "channels", "in_channels"), "features="),
    **dict.fromkeys(("steps", "rtol", "solver"), "depth=Depth(steps=8) or Depth(rtol=1e-4)"),
    **dict.fromkeys(("block_size", "max_seq_len", "n_positions"), "nothing: a sequence may have any length"),
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
