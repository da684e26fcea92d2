"""What fits a task: the continuous Transformer, layered networks of equally many parameters, and the objective."""

import dataclasses
from typing import Literal

import torch
from torch import nn

from continua.control import (
    L2,
    AbstractLoss,
    AbstractRunningCost,
    AtRandomDepth,
    CrossEntropy,
    FieldSize,
    HeadNegentropy,
    JacobianFrobenius,
    JacobianSpectral,
    KineticEnergy,
    MeanSquaredError,
    NextToken,
    Objective,
    PathLength,
    RelativeL2,
    SeriesScore,
)
from continua.core.checks import at_least, fraction, not_negative, positive
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.data import Form, Question
from continua.model import (
    AbstractLinearReadout,
    AnalysisReadout,
    ContinuousTransformer,
    Depth,
    EmbeddingAxis,
    HeadMeasure,
    HypernetworkField,
    LearnedPositions,
    SinusoidalPositions,
    Stem,
    TokenTime,
    transformer,
)
from continua.operators import AbstractTokenIntegral, Debiased, Exact, Nystrom, Rotary, Subset
from continua.solve import (
    RK4,
    AbstractGradient,
    AbstractStepper,
    Backsolve,
    BogackiShampine,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Heun,
    LieTrotter,
    Midpoint,
    Strang,
    Tsitouras,
)
from continua.spaces import AbstractBasis, Cosine, Counting, Legendre, PlateauBasis, ScaledBasis, Uniform
from continua.train.grids import TrainingGrids
from continua.train.presets import CostOptions, DepthOptions, ModelOptions, Preset, StepperName

STEPPERS: dict[StepperName, AbstractStepper] = {
    "lie": LieTrotter(),
    "strang": Strang(),
    "euler": Euler(),
    "midpoint": Midpoint(),
    "heun": Heun(),
    "rk4": RK4(),
    "bosh3": BogackiShampine(),
    "dopri5": DormandPrince(),
    "tsit5": Tsitouras(),
}
_LOSSES: dict[Question, AbstractLoss] = {
    Question.LABEL: CrossEntropy(),
    Question.TOKEN: NextToken(shifted=True),
    Question.VALUE: MeanSquaredError(),
    Question.SERIES: SeriesScore(),
    Question.FUNCTION: RelativeL2(),
}
_FASTEST = 2.5
"""Angle by which the fastest pair of a sinusoidal code turns from one token to the next."""

BaselineName = Literal["layers", "layers-regularized", "textbook", "deep", "deep-regularized"]


def build_continuous(form: Form, preset: Preset) -> ContinuousTransformer:
    """The model of a preset for a task: a call of the one builder."""
    check_sizes(preset)
    sizes, axis = preset.model, _axis(preset.model)
    heads = HeadMeasure(sizes.head_nodes, sizes.head_modes) if sizes.head_modes else sizes.head_nodes
    return _build(form, sizes, axis, heads, _time(form, sizes), _depth(preset.depth))


def _axis(sizes: ModelOptions) -> int | EmbeddingAxis:
    if sizes.axis_nodes == 1:
        return 1
    periodic, unitary = sizes.axis_kernel != "spectral", sizes.axis_kernel == "unitary"
    return EmbeddingAxis(sizes.axis_nodes, sizes.axis_modes or None, periodic, unitary)


def _vector_sizes(sizes: ModelOptions) -> ModelOptions:
    """The sizes of plain vectors with as many numbers as a state has coefficients: a finer axis makes none wider."""
    axis = _axis(sizes)
    if isinstance(axis, int):
        return sizes
    modes = axis.basis().size
    width, hidden = (max(1, modes * size // axis.nodes) for size in (sizes.width, sizes.hidden))
    return dataclasses.replace(sizes, width=width, hidden=hidden)


def build_baseline(form: Form, preset: Preset, parameters: int, name: BaselineName = "layers") -> ContinuousTransformer:
    """The layered network to compare with: as many layers as evaluations, parameters within 5 %, plain vectors.

    A vector has as many numbers as a state of the continuous model has coefficients along its embedding axis.

    Embedding, stem, positions and readout are those of the continuous model, heads are counted; the hidden size makes
    up the number of parameters. The `textbook` one has no stem, and the textbook's positions: learned codes for tokens,
    sinusoidal ones for signals. The `deep` ones have the textbook's hidden size, four times the width, in every layer,
    and so more parameters.
    """
    check_sizes(preset)
    vectors = _vector_sizes(preset.model)
    heads = _even_heads(vectors)
    time = _textbook_time(form, vectors.width) if name == "textbook" else _time(form, vectors)

    def build(layers: int, hidden: int) -> ContinuousTransformer:
        sizes = dataclasses.replace(vectors, hidden=hidden)
        return _build(form, sizes, 1, heads, time, Depth(float(layers), layers))

    evaluations = evaluations_of(preset.depth)
    if name in ("deep", "deep-regularized"):
        return build(evaluations, 4 * vectors.width)
    for layers in range(evaluations, 0, -1):
        one, two = (count_parameters(build(layers, hidden)) for hidden in (1, 2))
        hidden = round(1 + (parameters - one) / (two - one))  # the number of parameters is affine in it
        if hidden >= vectors.width // 2 or (layers == 1 and hidden >= 1):
            return build(layers, hidden)
    cure = "Compare a model with more parameters, or train without --compare."
    reject("parameters", parameters, "a single layer of this width has more", cure)


def _build(
    form: Form, sizes: ModelOptions, axis: int | EmbeddingAxis, heads: int | HeadMeasure, time: TokenTime, depth: Depth
) -> ContinuousTransformer:
    inputs = {"vocabulary": form.vocabulary, "features": form.features, "causal": form.causal}
    inner = {"hidden": sizes.hidden, "dropout": sizes.dropout, "per_token": form.per_token}
    parts = {"time": time, "axis": axis, "heads": heads, "depth": depth}
    model = transformer(sizes.width, form.outputs, **inputs, **inner, **parts)
    if form.added:  # what is added to the reference is nothing at first
        scale_outputs(model, torch.zeros(form.outputs))
    return model


def scale_outputs(
    model: ContinuousTransformer, factors: Float[Tensor, " outputs"], shift: Tensor | float = 0.0
) -> None:
    """Multiplies every output by a factor and adds a shift, both by changing the linear readout."""
    readout = model.readout
    while isinstance(readout, AnalysisReadout):
        readout = readout.inner
    assert isinstance(readout, AbstractLinearReadout)
    with torch.no_grad():
        readout.linear.weight.mul_(factors.to(readout.linear.weight)[:, None])
        readout.linear.bias.mul_(factors.to(readout.linear.weight)).add_(torch.as_tensor(shift).to(readout.linear.bias))


def _time(form: Form, sizes: ModelOptions) -> TokenTime:
    stem = None
    if sizes.stem_radius > 0.0:
        stem = Stem(sizes.stem_radius, sizes.stem_modes, sizes.stem_gaps or form.gaps)
    integrals: dict[str, AbstractTokenIntegral] = {
        "exact": Exact(), "subset": Subset(sizes.integral_tokens), "debiased": Debiased(sizes.integral_tokens),
        "nystrom": Nystrom(sizes.integral_tokens),
    }  # fmt: skip
    integral = integrals[sizes.integral]
    if form.causal and not integral.serves_causal:
        why = "its landmarks would carry later tokens into earlier rows of a causal model"
        reject("--integral", sizes.integral, why, "Pass exact, subset or debiased.")
    if not form.ordered:
        if stem is not None:
            why = "tokens of this task have no order, so no neighbours in time that a stem would read"
            reject("stem_radius", sizes.stem_radius, why, "Leave it out.")
        return TokenTime(rule=Uniform(), positions=None, stem=None, integral=integral)
    if form.vocabulary is not None:  # times are the index
        rotary = Rotary(_FASTEST / form.spacing, min(3.0 / form.span, _FASTEST / form.spacing))
        return TokenTime(positions=rotary, stem=None, queries=form.queries, integral=integral)
    return TokenTime(0.0, form.span, form.spacing, stem=stem, queries=form.queries, integral=integral,
                     channels=form.channels)  # fmt: skip


def _textbook_time(form: Form, width: int) -> TokenTime:
    if not form.ordered:
        return TokenTime(rule=Counting(), positions=None, stem=None)
    if form.vocabulary is not None:
        code = LearnedPositions(round(form.span / form.spacing) + 1, width)
        return TokenTime(rule=Counting(), positions=code, stem=None, queries=form.queries)
    code = SinusoidalPositions(width, fastest=_FASTEST * form.span / form.spacing, slowest=0.5)
    return TokenTime(0.0, form.span, form.spacing, Counting(), code, None, form.queries)


def evaluations_of(how: DepthOptions) -> int:
    """Evaluations of the velocity in `depth_steps` equal steps; those of adaptive ones are not known beforehand."""
    stepper = stepper_of(how)
    each = 3 if isinstance(stepper, Strang) else stepper.stages  # one part of Strang's takes half-steps
    return each * how.depth_steps


def stepper_of(how: DepthOptions) -> AbstractStepper:
    """The stepper that options ask for, or Dormand-Prince's where theirs cannot adapt or be retraced as they ask."""
    stepper = STEPPERS[how.stepper]
    unfit = how.rtol > 0.0 or (how.gradient == "backsolve" and not stepper.reversible)
    return DormandPrince() if stepper.error_order is None and unfit else stepper


def _depth(how: DepthOptions) -> Depth:
    stepper, adaptive = stepper_of(how), how.rtol > 0.0

    def modes(kind: type[Cosine | Legendre]) -> AbstractBasis:
        basis = ScaledBasis(kind(how.depth_modes), how.mode_ratio)
        return PlateauBasis(basis, how.depth_steps) if how.plateaus and isinstance(stepper, LieTrotter) else basis

    bases: dict[str, AbstractBasis | HypernetworkField | int] = {
        "cosine": modes(Cosine),
        "legendre": modes(Legendre),
        "hypernetwork": HypernetworkField(how.depth_modes),
        "piecewise": how.depth_modes,
    }
    gradients: dict[str, AbstractGradient] = {
        "direct": Direct(), "checkpointed": Checkpointed(), "backsolve": Backsolve(clip=how.clip_adjoint or None)
    }  # fmt: skip
    steps, rtol = (None, how.rtol) if adaptive else (how.depth_steps, None)
    return Depth(how.depth_length, bases[how.field], steps, rtol, stepper, gradient=gradients[how.gradient],
                 damping=how.flow_damping, spectral_limit=how.spectral_limit or None, stagger=how.stagger)  # fmt: skip


def _even_heads(sizes: ModelOptions) -> int:
    """As many counted heads as share the width in parts of even size, at most those of the preset."""
    return max(heads for heads in range(1, sizes.head_nodes + 1) if sizes.width % (2 * heads) == 0)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def check_sizes(preset: Preset) -> None:
    """Refuses sizes that no model can have, whatever the task."""
    sizes, depth = preset.model, preset.depth
    at_least(
        1,
        width=sizes.width,
        hidden=sizes.hidden,
        axis_nodes=sizes.axis_nodes,
        head_nodes=sizes.head_nodes,
        integral_tokens=sizes.integral_tokens,
    )
    at_least(1, stem_modes=sizes.stem_modes, depth_modes=depth.depth_modes, depth_steps=depth.depth_steps)
    at_least(0, axis_modes=sizes.axis_modes, head_modes=sizes.head_modes)
    not_negative(stem_radius=sizes.stem_radius, rtol=depth.rtol, flow_damping=depth.flow_damping,
                 clip_adjoint=depth.clip_adjoint, spectral_limit=depth.spectral_limit,
                 **dataclasses.asdict(preset.costs))  # fmt: skip
    positive(depth_length=depth.depth_length)
    fraction(none=False, mode_ratio=depth.mode_ratio)
    fraction(all=False, dropout=sizes.dropout)
    TrainingGrids.of(depth)  # refuses what is no fraction
    if sizes.width % (2 * sizes.axis_nodes):
        even = [n for n in range(1, sizes.width // 2 + 1) if sizes.width % (2 * n) == 0]
        cure = f"Pass a multiple of {2 * sizes.axis_nodes}"
        cure += f", or --axis-nodes from {', '.join(map(str, even))}." if even else "."
        why = f"it does not split into parts of even size over {sizes.axis_nodes} axis nodes"
        reject("width", sizes.width, why, cure)
    if sizes.axis_kernel == "spectral" and sizes.axis_modes > sizes.axis_nodes > 1:
        why = f"so many nodes do not resolve {sizes.axis_modes} axis modes"
        reject("axis_nodes", sizes.axis_nodes, why, f"Pass --axis-modes {sizes.axis_nodes} as well, or more nodes.")
    if sizes.axis_kernel != "spectral" and sizes.axis_nodes > 1 and sizes.axis_nodes < 2 * sizes.axis_modes + 1:
        why = f"so many nodes do not resolve {sizes.axis_modes} frequencies"
        cure = f"Pass --axis-modes {(sizes.axis_nodes - 1) // 2} or fewer, or {2 * sizes.axis_modes + 1} nodes or more."
        reject("axis_nodes", sizes.axis_nodes, why, cure)
    channels = sizes.width // sizes.axis_nodes
    if sizes.head_modes == 0 and channels % (2 * sizes.head_nodes):
        even = [heads for heads in range(1, channels // 2 + 1) if channels % (2 * heads) == 0]
        others = f", or --head-nodes from {', '.join(map(str, even))}" if even else ""
        cure = f"Pass a --width that is a multiple of {2 * sizes.head_nodes * sizes.axis_nodes}{others}."
        whole = f"{channels} channels per axis node" if sizes.axis_nodes > 1 else f"width of {channels}"
        reject("head_nodes", sizes.head_nodes, f"they do not split the {whole} into parts of even size", cure)
    if sizes.head_modes and depth.field == "piecewise":
        cure = "Pass --head-modes 0, or another --field."
        reject("head_modes", sizes.head_modes, "a field that is constant on pieces of depth has counted heads", cure)


def objective_of(form: Form, model: ContinuousTransformer | None = None, preset: Preset | None = None) -> Objective:
    """The objective that a task's question asks for: its loss, and what the preset pays for when `model` is trained.

    Only a trained density of heads pays its negentropy. Norms of the Jacobian need second derivatives, so attention
    forms its matrix of weights there; they are paid at one random step per update. A validation reads the loss alone:
    `objective_of(form)`.
    """
    paid = CostOptions(0.0, head_negentropy_cost=0.0) if preset is None else preset.costs
    share_of_step = 1.0 if preset is None else 1.0 / preset.depth.depth_steps
    mean = L2(mean=True)
    weighted: list[tuple[AbstractRunningCost, float]] = [
        (KineticEnergy(mean), paid.energy_cost),
        (PathLength(mean), paid.path_length_cost),
        (AtRandomDepth(JacobianSpectral(), share_of_step), paid.jacobian_cost),
        (AtRandomDepth(JacobianFrobenius(), share_of_step), paid.jacobian_frobenius_cost),
        (FieldSize(), paid.field_size_cost),
    ]
    if model is not None and HeadNegentropy.applies(model.flow):
        weighted.append((HeadNegentropy(), paid.head_negentropy_cost))
    costs = [(cost, weight) for cost, weight in weighted if weight != 0.0]
    loss = CrossEntropy(alone=True) if form.alone else _LOSSES[form.question]
    return Objective(loss, tuple(c for c, _ in costs), tuple(w for _, w in costs))
