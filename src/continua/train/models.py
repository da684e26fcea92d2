"""What fits a task: the continuous Transformer, the standard one of equally many parameters, and the objective."""

from torch import nn

from continua.control import (
    L2,
    AbstractLoss,
    AbstractRunningCost,
    AtRandomDepth,
    CrossEntropy,
    HeadNegentropy,
    JacobianSpectral,
    KineticEnergy,
    MeanSquaredError,
    NextToken,
    Objective,
    RelativeL2,
)
from continua.core.checks import not_negative, share
from continua.core.errors import reject
from continua.data import Form, Question
from continua.model import (
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
from continua.train.presets import Preset, StepperKind

_STEPPERS: dict[StepperKind, AbstractStepper] = {
    StepperKind.EULER: Euler(),
    StepperKind.MIDPOINT: Midpoint(),
    StepperKind.SPLITTING: LieTrotter(),
}
_LOSSES: dict[Question, AbstractLoss] = {
    Question.LABEL: CrossEntropy(),
    Question.TOKEN: NextToken(shifted=True),
    Question.VALUE: MeanSquaredError(),
    Question.FUNCTION: RelativeL2(),
}
_FASTEST = 2.5
"""Angle by which the fastest pair of a position code turns from one token to the next."""
HEADS = 1e-3
"""The weight of `HeadNegentropy` wherever a density of heads is trained."""
STIFF = 1e-2
"""The weight of `JacobianSpectral`, at one random stretch of depth per update, where a flow is said to be stiff."""


def build_continuous(form: Form, preset: Preset) -> ContinuousTransformer:
    """The builder's model in the sizes of a preset: weights smooth in depth, rotary in real token time.

    Depth is solved in a few equal steps and differentiated by autograd (`Direct`), as evaluations are what training
    costs.
    """
    check_sizes(preset)
    weights = DampedBasis(Legendre(preset.modes), preset.mode_ratio)
    depth = Depth(preset.depth, weights, preset.steps, stepper=_STEPPERS[preset.stepper])
    stem = Stem(preset.stem_radius, preset.stem_modes, preset.stem_gaps) if preset.stem_radius > 0.0 else None
    rotary = None  # the builder's own for signals
    if form.vocabulary is not None:
        rotary = Rotary(_FASTEST / form.spacing, min(3.0 / form.span, _FASTEST / form.spacing))
    time = TokenTime(0.0, form.span, form.spacing, positions=rotary, stem=stem, queries=form.queries)
    return _build(form, preset, preset.hidden, time, depth)


def build_standard(form: Form, preset: Preset, parameters: int) -> ContinuousTransformer:
    """The discrete Transformer, pre-normed, on the counting measure, with as many parameters within 5 %.

    Its width and heads are those of the preset, its layers as many as there are evaluations of the velocity; the
    hidden size makes up the number. Positions have the usual codes: learned for tokens, sinusoidal for signals.
    """
    check_sizes(preset)
    stages = 2 if preset.stepper is StepperKind.MIDPOINT else 1

    def build(layers: int, hidden: int) -> ContinuousTransformer:
        if form.vocabulary is not None:
            code = LearnedPositions(round(form.span / form.spacing) + 1, preset.width)
        else:
            code = SinusoidalPositions(preset.width, fastest=_FASTEST * form.span / form.spacing, slowest=0.5)
        time = TokenTime(0.0, form.span, form.spacing, Counting(), code, None, form.queries)
        return _build(form, preset, hidden, time, Depth(float(layers), layers))

    for layers in range(stages * preset.steps, 0, -1):
        one, two = (count_parameters(build(layers, hidden)) for hidden in (1, 2))
        hidden = round(1 + (parameters - one) / (two - one))  # the number of parameters is affine in it
        if hidden >= preset.width // 2 or (layers == 1 and hidden >= 1):
            return build(layers, hidden)
    cure = "Compare a model with more parameters, or train without --compare."
    reject("parameters", parameters, "a single standard layer of this width has more", cure)


def _build(form: Form, preset: Preset, hidden: int, time: TokenTime, depth: Depth) -> ContinuousTransformer:
    sizes = {"vocabulary": form.vocabulary, "features": form.features, "causal": form.causal, "hidden": hidden}
    plain = {"axis": 1, "heads": preset.heads, "per_token": form.per_token}
    return transformer(preset.width, form.outputs, **sizes, **plain, time=time, depth=depth)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


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
    share(none=False, mode_ratio=preset.mode_ratio)
    not_negative(stem_radius=preset.stem_radius)


def objective_of(
    form: Form, model: ContinuousTransformer | None = None, energy: float = 0.0, stiff: bool = False
) -> Objective:
    """The objective that a task's question asks for: its loss, and the running costs that training `model` needs.

    `energy` is the price of the tokens' mean kinetic energy. A trained density of heads pays its negentropy with the
    weight `HEADS`. With `stiff` the spectral norm of the Jacobian is paid with the weight `STIFF`; it needs second
    derivatives, so attention forms its kernel there. A validation reads the loss alone: `objective_of(form)`.
    """
    priced: list[tuple[AbstractRunningCost, float]] = []
    if energy != 0.0:
        priced.append((KineticEnergy(L2(mean=True)), energy))
    if model is not None and HeadNegentropy.applies(model.flow):
        priced.append((HeadNegentropy(), HEADS))
    if stiff:
        priced.append((AtRandomDepth(JacobianSpectral()), STIFF))
    return Objective(_LOSSES[form.question], tuple(c for c, _ in priced), tuple(w for _, w in priced))
