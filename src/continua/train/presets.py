"""What a training run does: the model, its flow along depth, its running costs, how long and how fast it learns.

The groups of a preset are the groups of options of `continua train`, one field per option; the string under a field is
its help.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, final

import tyro

from continua.core.checks import at_least, fraction, positive
from continua.optim import CosineDecay

KernelName = Literal["spectral", "fft", "unitary"]
IntegralName = Literal["exact", "subset", "debiased", "nystrom"]
FieldName = Literal["cosine", "legendre", "hypernetwork", "piecewise"]
StepperName = Literal["lie", "strang", "euler", "midpoint", "heun", "rk4", "bosh3", "dopri5", "tsit5"]
GradientName = Literal["direct", "checkpointed", "backsolve"]
OptimizerName = Literal["adamw", "recipe", "soap", "shampoo", "kfac"]


@final
@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The sizes of the model, its embedding axis, its heads, its token integral and its local stem."""

    width: int = 48
    """size of a token's state (d_model)"""
    hidden: int = 96
    """inner size of the feed-forward (d_ff)"""
    axis_nodes: int = 6
    """nodes of the embedding axis: a state is a function sampled at so many points, with width / nodes channels at
    each; 1: a state is a plain vector"""
    axis_kernel: KernelName = "spectral"
    """linear maps along the embedding axis: kernels in cosine modes (spectral), periodic convolutions (fft), or such
    with unitary kernels (unitary)"""
    axis_modes: int = 0
    """cosine modes of spectral kernels, or frequencies of fft and unitary ones; 0: as many as the axis nodes resolve"""
    head_nodes: int = 4
    """attention heads: nodes of a continuous measure of heads, or with --head-modes 0 so many ordinary heads"""
    head_modes: int = 3
    """basis functions along the measure of heads, from which the weights of every head are made; 0: ordinary heads,
    each with weights of its own"""
    integral: IntegralName = "exact"
    """attention as an integral over tokens: exact, or estimated from a few of them (subset: drawn at random, debiased:
    so that the mean is right, nystrom: by landmarks)"""
    integral_tokens: int = 16
    """tokens that such an estimate draws"""
    dropout: float = 0.0
    """dropout rate, on the outputs of attention and feed-forward"""
    stem_radius: float = 0.0
    """reach of the local stem, a convolution over neighbouring samples before the flow, in spacings of samples; 0: no
    stem"""
    stem_modes: int = 7
    """basis functions of the stem's kernel"""
    stem_gaps: bool = False
    """the stem also receives the distance to the nearest sample, for signals with missing samples"""


@final
@dataclasses.dataclass(frozen=True)
class DepthOptions:
    """Parameters along depth, and how depth is solved and differentiated."""

    depth_length: float = 4.0
    """length Z of the depth interval [0, Z] that the flow is solved over; a layer is a step of length 1"""
    field: FieldName = "cosine"
    """how parameters depend on depth: as sums of cosine or Legendre modes, by a hypernetwork, or constant on pieces, as
    layers are (piecewise)"""
    depth_modes: int = 4
    """basis functions along depth, each with weights of its own; of a hypernetwork its frequencies, of pieces their
    number"""
    mode_ratio: float = 0.8
    """scale of each depth mode relative to the one before: smaller values give parameters that vary more smoothly"""
    plateaus: bool = True
    """let parameters in modes vary between the depth steps of training more than within each"""
    depth_steps: int = 4
    """equal solver steps along depth; each costs as much as a layer (lie, euler), or several times that"""
    stagger: bool = True
    """let attention start and end half a training step before the feed-forward, which makes lie steps second-order"""
    rtol: float = 0.0
    """relative tolerance of adaptive steps, by Dormand-Prince unless --stepper estimates an error; 0: equal steps"""
    stepper: StepperName = "lie"
    """the solver's method: lie takes attention and feed-forward in turn, as a layer does (Lie-Trotter), strang does so
    symmetrically, the others are Runge-Kutta methods for their sum"""
    gradient: GradientName = "direct"
    """how gradients are computed: direct (autograd through the solve), checkpointed (the same gradient in less memory,
    for a second forward pass), or backsolve (the adjoint equation, by Dormand-Prince in place of lie and strang)"""
    clip_adjoint: float = 0.0
    """backsolve: clip dJ/dx, per sequence, to this norm in the adjoint equation; 0: no limit"""
    jitter: float = 0.0
    """move the inner depths of the grid at random in each update: 1 by up to half a step, 0 not at all"""
    coarse: float = 0.0
    """fraction of the updates, the first ones, that take half of the depth steps, to save time"""
    refined: float = 0.5
    """fraction of the updates, the last ones, that read a part of the batch with twice the depth steps, head nodes or
    axis nodes, so that the model works at these too"""
    refined_nodes: float = 0.25
    """fraction of the refined updates that have twice the head or axis nodes instead of depth steps"""
    flow_damping: float = 0.0
    """gamma of a term -gamma x in the flow, which pulls every state x towards the origin"""
    spectral_limit: float = 0.0
    """largest spectral norm of a weight matrix of the flow; 0: no limit"""


@final
@dataclasses.dataclass(frozen=True)
class CostOptions:
    """Running costs, integrated along depth and added to the loss: the coefficient of each; 0: not used."""

    energy_cost: float = 0.1
    """kinetic energy of the states as they move along depth: larger values give a smoother flow, which needs fewer
    steps"""
    path_length_cost: float = 0.0
    """length of the path of the states along depth"""
    jacobian_cost: float = 0.0
    """spectral norm of the flow's Jacobian, at one random step per update, for flows that need too many steps"""
    jacobian_frobenius_cost: float = 0.0
    """squared Frobenius norm of the flow's Jacobian, at one random step per update"""
    head_negentropy_cost: float = 1e-3
    """negentropy of the density of heads: larger values keep it from collapsing on few heads"""
    field_size_cost: float = 0.0
    """squared norm of the parameters, integrated along depth; it takes the place of weight decay (--weight-decay 0)"""


@final
@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How long and how fast it learns."""

    updates: int = 1000
    """optimiser updates, one batch each; the schedule of the learning rate spans all of them"""
    token_budget: float = 0.0
    """train for so many tokens, such as 1e6, instead of --updates; 0: not used"""
    time_budget: float = 0.0
    """train for about so many seconds instead of --updates (a few updates are timed first); test and report come after
    it, and can take longer than a short training; 0: not used"""
    batch_size: int = 50
    """sequences in a batch (csv: at most the windows of the file)"""
    optimizer: OptimizerName = "adamw"
    """adamw; recipe: AdamW for plain parameters, steps on their manifolds for others; soap, shampoo (extra `optim`) and
    kfac: the recipe with these for the weight matrices of the flow"""
    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 3e-3
    """peak learning rate"""
    kernel_learning_rate: float = 0.0
    """peak learning rate of the flow's weight matrices under soap, shampoo and kfac; 0: 0.003, of kfac 0.3"""
    weight_decay: float = 0.05
    """decoupled weight decay of matrices, times --learning-rate, under soap, shampoo and kfac too"""
    beta2: float = 0.98
    """beta2 of adamw and recipe: the decay rate of second moments"""
    warmup_ratio: float = 0.1
    """fraction of the updates in which the learning rate rises linearly; then it falls by a cosine"""
    min_lr_ratio: float = 0.0
    """learning rate at the end, as a fraction of the peak"""
    clip: float = 1.0
    """clip the norm of the gradient to this"""
    validations: int = 5
    """how often to evaluate on the validation split, evenly spread over the training"""
    patience: int = 0
    """stop early after so many validations in a row without a lower loss; 0: never"""
    best: bool = True
    """keep the parameters of the lowest validation loss, not the last ones; has no effect where validation reads the
    test (mnist1d, and text without --validation-fraction)"""


@final
@dataclasses.dataclass(frozen=True)
class Preset:
    """A model and its training that suit a task."""

    model: ModelOptions = ModelOptions()
    depth: DepthOptions = DepthOptions()
    costs: CostOptions = CostOptions()
    training: TrainingOptions = TrainingOptions()

    def replace(self, **values: Any) -> "Preset":
        """The same with other values, by the names of the options, whatever group they are in."""
        groups = {}
        for group in dataclasses.fields(self):
            own = getattr(self, group.name)
            names = {field.name for field in dataclasses.fields(own)} & set(values)
            groups[group.name] = dataclasses.replace(own, **{name: values.pop(name) for name in sorted(names)})
        if values:
            raise TypeError(f"a preset has no {', '.join(values)}")
        return Preset(**groups)


def _demo(**values: Any) -> Preset:
    return Preset().replace(**values)


_DEMO = {
    "mnist1d": _demo(refined_nodes=0.5, stem_radius=5.5, stem_modes=11, updates=2200, learning_rate=5e-3),
    # the budget of nanoGPT's CPU recipe, width 128, 4 heads, 2,000 updates of 12 windows, about 0.8 M numbers, and its
    # AdamW: a rate that falls to a tenth, a rise over the first twentieth, betas (0.9, 0.99), decay 0.1. Its rate 1e-3
    # is too low here: layers gain 0.034 nats by 2e-3, the continuous model 0.017 (docs/logbook.md, 2026-11-17)
    "text": _demo(width=128, hidden=512, axis_nodes=8, head_modes=4, refined=0.1, refined_nodes=0.1, updates=2000,
                  batch_size=12, learning_rate=2e-3, weight_decay=0.1, warmup_ratio=0.05, min_lr_ratio=0.1, beta2=0.99),
    "digits": _demo(width=32, hidden=64, axis_nodes=4, updates=1000, learning_rate=5e-3),
    "spirals": _demo(stem_radius=6.0, stem_gaps=True, updates=1000),
    # Twice as many axis nodes as modes: activations hardly alias, and twice the nodes again are the same operator. The
    # rate is the best of layers beside it: 0.032, 0.028, 0.026, 0.026 with 3e-3, 5e-3, 8e-3, 12e-3 on Burgers. Half of
    # the updates are refined, so that plateaus and staggering gain nothing: 0.0243 with them, 0.0235 without (of an
    # attention that read all axis nodes)
    "burgers": _demo(width=64, hidden=128, axis_nodes=8, axis_modes=4, head_modes=4, stem_radius=3.0, stem_modes=5,
                     plateaus=False, stagger=False, updates=1500, batch_size=16, learning_rate=8e-3, weight_decay=0.0),
    "darcy": _demo(width=64, hidden=128, axis_nodes=8, axis_modes=4, head_modes=4, plateaus=False, stagger=False,
                   updates=600, batch_size=8, learning_rate=8e-3, weight_decay=0.0),
    "uea": _demo(stem_radius=5.0, stem_modes=9, updates=500, batch_size=16),
    # small: a file of the user's has a few thousand rows, and a linear reference has taken what is linear in them
    "csv": _demo(width=32, hidden=64, axis_nodes=4, depth_steps=3, refined=0.0, stem_radius=6.0, stem_gaps=True,
                 updates=150, batch_size=32, validations=10, patience=4),
}  # fmt: skip
_LONGER = {"mnist1d": 10_000, "text": 10_000, "digits": 4000, "spirals": 6000, "burgers": 6000, "darcy": 6000,
           "uea": 5000, "csv": 1000}  # fmt: skip

PRESETS: Mapping[str, Mapping[str, Preset]] = {
    task: {"demo": demo, "full": demo.replace(updates=_LONGER[task])} for task, demo in _DEMO.items()
}
"""The presets of every task, by name: the first, `demo`, is the default, `full` trains longer."""


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """Updates of `batch_size` sequences; the rate rises linearly over the first `warmup_ratio` and falls by a cosine.

    - `clip`: the largest norm of a gradient, longer ones are shortened to it;
    - `validations`: how often, evenly spread and at the end, the validation split is read;
    - `save_seconds`, `save_every`: a checkpoint is written before so many seconds of work would be lost, and after so
      many updates (0: by time alone); the `keep` latest stay, and the best by validation;
    - `max_skipped`: so many updates in a row without a finite loss and gradient end the run;
    - `min_lr_ratio`: the fraction of the highest rate that the cosine falls to;
    - `patience`: so many validations in a row without a lower loss end the run (0: none do);
    - `best`: the parameters of the lowest validation loss are those that are used, else the last.
    """

    updates: int
    batch_size: int
    seed: int = 0
    warmup_ratio: float = 0.1
    clip: float = 1.0
    validations: int = 5
    min_lr_ratio: float = 0.0
    save_seconds: float = 30.0
    save_every: int = 0
    keep: int = 2
    max_skipped: int = 10
    patience: int = 0
    best: bool = True

    def __post_init__(self) -> None:
        at_least(0, patience=self.patience)
        at_least(1, updates=self.updates, batch_size=self.batch_size)
        at_least(1, validations=self.validations, keep=self.keep, max_skipped=self.max_skipped)
        at_least(0, save_every=self.save_every)
        fraction(all=False, warmup_ratio=self.warmup_ratio)
        fraction(min_lr_ratio=self.min_lr_ratio)
        positive(clip=self.clip, save_seconds=self.save_seconds)

    @property
    def curve(self) -> CosineDecay:
        """The learning rate over updates, 1 the highest: linear to 1, then a cosine to `min_lr_ratio`."""
        rise = self.warmup_ratio * self.updates
        return CosineDecay(rise, self.updates, self.min_lr_ratio, first=1.0 / (rise + 1.0))

    def validates(self, update: int) -> bool:
        """Whether the validation split is read after this many updates: at evenly spread moments, and at the end."""
        return (update * self.validations) // self.updates > ((update - 1) * self.validations) // self.updates

    def saves(self, update: int, seconds: float) -> bool:
        """Whether a checkpoint is written after this many updates, where else `seconds` of work could be lost.

        Validations, whose results belong to a checkpoint, and the end have one each.
        """
        regular = self.save_every > 0 and update % self.save_every == 0
        return regular or seconds >= self.save_seconds or self.validates(update)
