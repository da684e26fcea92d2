"""Models that fit a task: the continuous Transformer, and the standard one of equally many parameters."""

from collections.abc import Callable

from torch import nn

from continua.core.errors import reject
from continua.data import Form
from continua.fields import Expansion
from continua.model import (
    AbstractEmbedding,
    AbstractReadout,
    ContinuousTransformer,
    Flow,
    InterpolatedStem,
    Layers,
    LearnedPositions,
    MeanReadout,
    NormedEmbedding,
    Part,
    SinusoidalPositions,
    Stemmed,
    TokenEmbedding,
    TokenReadout,
    VectorEmbedding,
    encoder,
)
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Rotary
from continua.solve import AbstractStepper, Direct, Euler, Fixed, LieTrotter, Midpoint, Solver
from continua.spaces import CausalTrapezoid, Counting, DampedBasis, Legendre, Trapezoid
from continua.train.presets import Preset, Stepping

_METHODS: dict[Stepping, AbstractStepper] = {
    Stepping.EULER: Euler(),
    Stepping.MIDPOINT: Midpoint(),
    Stepping.SPLITTING: LieTrotter(Euler()),
}
_FASTEST = 2.5
"""Angle by which the fastest rotary pair turns from one token to the next."""
_TINY = 1e-8
"""What the first norm adds to a variance; vectors of tokens are drawn with one of 4e-4."""
_CHANNELS = 4
"""Channels of a signal's feature before a stem."""


def continuous(form: Form, preset: Preset) -> ContinuousTransformer:
    """Pre-normed attention and feed-forward, weights smooth in depth, rotary in real token time.

    Signals pass a continuous local stem, if the preset has one, and are weighed by their times. Tokens start at unit
    variance: the slope of a norm is one over the token's own deviation, so that small ones would make the flow stiff.
    Depth is solved in a few equal steps and differentiated by autograd (`Direct`), as evaluations are what training
    costs.
    """
    check_sizes(preset)
    width, heads = preset.width, preset.heads
    rotary = Rotary(_FASTEST / form.spacing, min(3.0 / form.span, _FASTEST / form.spacing))
    attention = PreNorm(LayerNorm(), Attention(heads, width // heads, causal=form.causal, rotary=rotary))
    feedforward = PreNorm(LayerNorm(), FeedForward(preset.hidden))
    basis = DampedBasis(Legendre(preset.modes), preset.mode_ratio)
    parts = [Part(f, Expansion(f.spec(width), basis, preset.depth)) for f in (attention, feedforward)]
    solver = Solver(_METHODS[preset.stepping], Fixed(preset.steps))
    embedding = NormedEmbedding(_embedding(form, preset), LayerNorm(_TINY, affine=False))
    return ContinuousTransformer(embedding, Flow(parts, preset.depth), _readout(form, width), solver, Direct())


def standard(form: Form, preset: Preset, parameters: int) -> ContinuousTransformer:
    """The discrete Transformer, pre-normed, on the counting measure, with as many parameters within 5 %.

    Its width and heads are those of the preset, its layers as many as there are evaluations of the velocity; the
    hidden size makes up the number. Positions have the usual codes: learned for tokens, sinusoidal for signals.
    """
    check_sizes(preset)
    stages = 2 if preset.stepping is Stepping.MIDPOINT else 1

    def build(layers: int, hidden: int) -> ContinuousTransformer:
        sizes = Layers(layers, preset.width, preset.heads, hidden)
        body = encoder(sizes, _plain_embedding(form, preset), _readout(form, preset.width), norm_first=True,
                       causal=form.causal)  # fmt: skip
        return body

    for layers in range(stages * preset.steps, 0, -1):
        hidden = _fit_hidden(lambda hidden, layers=layers: build(layers, hidden), parameters)
        if hidden >= preset.width // 2 or (layers == 1 and hidden >= 1):
            return build(layers, hidden)
    cure = "Compare a model with more parameters, or train without --compare."
    reject("parameters", parameters, "a single standard layer of this width has more", cure)


def parameters_of(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _fit_hidden(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The hidden size at which the number of parameters, which is affine in it, comes nearest."""
    one, two = parameters_of(build(1)), parameters_of(build(2))
    return round(1 + (parameters - one) / (two - one))


def _embedding(form: Form, preset: Preset) -> AbstractEmbedding:
    if form.vocabulary is not None:
        return TokenEmbedding(form.vocabulary, preset.width, asks=form.queries)
    assert form.features is not None
    rule = CausalTrapezoid() if form.causal else Trapezoid()
    if preset.stem_radius == 0.0:
        return VectorEmbedding(form.features, preset.width, rule=rule, asks=form.queries)
    channels = min(_CHANNELS * form.features, preset.width)
    radius = preset.stem_radius * form.spacing
    stem = InterpolatedStem(
        channels, radius, preset.stem_modes, form.causal, outputs=preset.width, gaps=preset.stem_gaps
    )
    return Stemmed(VectorEmbedding(form.features, channels, rule=rule, asks=form.queries), stem)


def _plain_embedding(form: Form, preset: Preset) -> AbstractEmbedding:
    if form.vocabulary is not None:
        length = round(form.span / form.spacing) + 1
        return TokenEmbedding(form.vocabulary, preset.width, LearnedPositions(length, preset.width), asks=form.queries)
    assert form.features is not None
    code = SinusoidalPositions(preset.width, fastest=_FASTEST / form.spacing, slowest=0.5 / form.span)
    return VectorEmbedding(form.features, preset.width, code, Counting(), asks=form.queries)


def _readout(form: Form, width: int) -> AbstractReadout:
    return TokenReadout(width, form.outputs) if form.per_token else MeanReadout(width, form.outputs)


def check_sizes(preset: Preset) -> None:
    """Refuses sizes that no model can have, whatever the task."""
    for name in ("width", "heads", "hidden", "modes", "steps", "stem_modes"):
        if getattr(preset, name) < 1:
            reject(name, getattr(preset, name), "a model needs at least one", f"Pass {name} >= 1.")
    if preset.width % (2 * preset.heads):
        even = [heads for heads in range(1, preset.width // 2 + 1) if preset.width % (2 * heads) == 0]
        others = f", or heads from {', '.join(map(str, even))}" if even else ""
        cure = f"Pass a width that is a multiple of {2 * preset.heads}{others}."
        reject("heads", preset.heads, f"they do not share the width {preset.width} in equal, even parts", cure)
    if not 0.0 < preset.mode_ratio <= 1.0:
        cure = "Pass 0 < mode_ratio <= 1; 1 is as rough as the modes allow."
        reject("mode_ratio", preset.mode_ratio, "rough modes weigh less, not nothing", cure)
    if not preset.stem_radius >= 0.0:
        reject("stem_radius", preset.stem_radius, "a radius is no less than 0", "Pass 0 for no stem.")
