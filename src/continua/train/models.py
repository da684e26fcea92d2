"""Models that fit a task: the continuous Transformer, and the standard one of equally many parameters."""

from collections.abc import Callable

from torch import nn

from continua.core.errors import reject
from continua.data import Form
from continua.model import (
    AbstractPositionCode,
    ContinuousTransformer,
    Depth,
    LearnedPositions,
    SinusoidalPositions,
    Stem,
    TokenTime,
    transformer,
)
from continua.operators import Rotary
from continua.solve import AbstractStepper, Euler, LieTrotter, Midpoint
from continua.spaces import Counting, DampedBasis, Legendre
from continua.train.presets import Preset, Stepping

_STEPPERS: dict[Stepping, AbstractStepper] = {
    Stepping.EULER: Euler(),
    Stepping.MIDPOINT: Midpoint(),
    Stepping.SPLITTING: LieTrotter(),
}
_FASTEST = 2.5
"""Angle by which the fastest pair of a position code turns from one token to the next."""


def continuous(form: Form, preset: Preset) -> ContinuousTransformer:
    """The builder's model in the sizes of a preset: weights smooth in depth, rotary in real token time.

    Depth is solved in a few equal steps and differentiated by autograd (`Direct`), as evaluations are what training
    costs.
    """
    check_sizes(preset)
    weights = DampedBasis(Legendre(preset.modes), preset.mode_ratio)
    depth = Depth(preset.depth, weights, preset.steps, stepper=_STEPPERS[preset.stepping])
    stem = Stem(preset.stem_radius, preset.stem_modes, preset.stem_gaps) if preset.stem_radius > 0.0 else None
    rotary = None  # the builder's own for signals
    if form.vocabulary is not None:
        rotary = Rotary(_FASTEST / form.spacing, min(3.0 / form.span, _FASTEST / form.spacing))
    time = TokenTime(0.0, form.span, form.spacing, positions=rotary, stem=stem, queries=form.queries)
    return _build(form, preset, preset.hidden, time, depth)


def standard(form: Form, preset: Preset, parameters: int) -> ContinuousTransformer:
    """The discrete Transformer, pre-normed, on the counting measure, with as many parameters within 5 %.

    Its width and heads are those of the preset, its layers as many as there are evaluations of the velocity; the
    hidden size makes up the number. Positions have the usual codes: learned for tokens, sinusoidal for signals.
    """
    check_sizes(preset)
    stages = 2 if preset.stepping is Stepping.MIDPOINT else 1

    def build(layers: int, hidden: int) -> ContinuousTransformer:
        time = TokenTime(0.0, form.span, form.spacing, Counting(), _position_code(form, preset), None, form.queries)
        return _build(form, preset, hidden, time, Depth(float(layers), layers))

    for layers in range(stages * preset.steps, 0, -1):
        hidden = _fit_hidden(lambda hidden, layers=layers: build(layers, hidden), parameters)
        if hidden >= preset.width // 2 or (layers == 1 and hidden >= 1):
            return build(layers, hidden)
    cure = "Compare a model with more parameters, or train without --compare."
    reject("parameters", parameters, "a single standard layer of this width has more", cure)


def _build(form: Form, preset: Preset, hidden: int, time: TokenTime, depth: Depth) -> ContinuousTransformer:
    sizes = {"vocabulary": form.vocabulary, "features": form.features, "causal": form.causal, "hidden": hidden}
    plain = {"axis": 1, "heads": preset.heads, "per_token": form.per_token}
    return transformer(preset.width, form.outputs, **sizes, **plain, time=time, depth=depth)


def _position_code(form: Form, preset: Preset) -> AbstractPositionCode:
    if form.vocabulary is not None:
        return LearnedPositions(round(form.span / form.spacing) + 1, preset.width)
    return SinusoidalPositions(preset.width, fastest=_FASTEST * form.span / form.spacing, slowest=0.5)


def parameters_of(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _fit_hidden(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The hidden size at which the number of parameters, which is affine in it, comes nearest."""
    one, two = parameters_of(build(1)), parameters_of(build(2))
    return round(1 + (parameters - one) / (two - one))


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
