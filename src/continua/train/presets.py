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
    """size of a token's state"""
    hidden: int = 96
    """inner size of the feed-forward"""
    axis_nodes: int = 6
    """nodes of the embedding axis, along which states are functions; 1: states are plain vectors"""
    axis_kernel: KernelName = "spectral"
    """kernels along the embedding axis: in cosine modes, periodic convolutions by FFT, or these unitary"""
    axis_modes: int = 0
    """cosine modes of the kernels, of fft and unitary their frequencies; 0: as many as the axis nodes resolve"""
    head_nodes: int = 4
    """attention heads in training: nodes of the measure of heads, or with --head-modes 0 as many counted heads"""
    head_modes: int = 3
    """basis functions of the parameters along a measure of heads, whose density is trained; 0: heads are counted"""
    integral: IntegralName = "exact"
    """the integral over tokens: exact, or estimated from a few of them"""
    integral_tokens: int = 16
    """tokens that an estimate draws"""
    dropout: float = 0.0
    """rate of dropout on both branches"""
    stem_radius: float = 0.0
    """reach of the local stem in spacings of samples; 0: no stem"""
    stem_modes: int = 7
    """basis functions of the stem's kernel"""
    stem_gaps: bool = False
    """the stem also receives the distance to the nearest sample, for signals with missing samples"""


@final
@dataclasses.dataclass(frozen=True)
class DepthOptions:
    """Parameters along depth, and how depth is solved and differentiated."""

    depth_length: float = 4.0
    """length Z of the depth interval [0, Z] that the flow is solved over"""
    field: FieldName = "cosine"
    """parameters as functions of depth: in cosine or Legendre modes, by a hypernetwork, or constant on pieces"""
    depth_modes: int = 4
    """basis functions of the parameters along depth; of a hypernetwork its frequencies, of pieces their number"""
    mode_ratio: float = 0.8
    """scale of each depth mode relative to the one before: smaller values give parameters that vary more smoothly"""
    plateaus: bool = True
    """parameters in modes vary between the equal depth steps of training more than within each"""
    depth_steps: int = 4
    """equal steps of the solve along depth, each one evaluation of the flow (lie, euler) or several"""
    stagger: bool = True
    """attention starts and ends half a training step before the feed-forward, which makes split steps second-order"""
    rtol: float = 0.0
    """tolerance of adaptive steps, by Dormand-Prince unless --stepper estimates an error; 0: equal steps"""
    stepper: StepperName = "lie"
    """how a step of depth is taken; lie: attention and feed-forward in turn (Lie-Trotter), strang: symmetrically"""
    gradient: GradientName = "direct"
    """autograd through the solve, the checkpointed adjoint (less memory), or the adjoint equation solved backwards, by
    Dormand-Prince unless --stepper can be retraced (split steps cannot)"""
    clip_adjoint: float = 0.0
    """largest norm of dJ/dx, per sequence, that enters the adjoint equation of backsolve; 0: no limit"""
    jitter: float = 0.0
    """random shift of the inner depths of the grid in each update: 1 by up to half a step, 0 none"""
    coarse: float = 0.0
    """fraction of the updates, the first ones, with half of the depth steps: for less time where there are many"""
    refined: float = 0.5
    """fraction of the updates, the last ones, with twice the depth steps, head or axis nodes on a part of the batch"""
    refined_nodes: float = 0.25
    """fraction of the refined updates with twice the head or axis nodes, not depth steps, where the model has them"""
    flow_damping: float = 0.0
    """gamma of the term -gamma x of the flow, which pulls every token towards the origin"""
    spectral_limit: float = 0.0
    """largest spectral norm of a kernel of the flow; 0: no limit"""


@final
@dataclasses.dataclass(frozen=True)
class CostOptions:
    """Running costs, integrated along depth: what each is multiplied by in the objective; 0: not used."""

    energy_cost: float = 0.1
    """kinetic energy, a mean over tokens and channels: larger values give a smoother flow, which needs fewer steps"""
    path_length_cost: float = 0.0
    """length of the path of all tokens, speeds as root mean squares over tokens and channels"""
    jacobian_cost: float = 0.0
    """spectral norm of the flow's Jacobian, at one random step per update, for flows that steps do not resolve"""
    jacobian_frobenius_cost: float = 0.0
    """squared Frobenius norm of the flow's Jacobian, at one random step per update"""
    head_negentropy_cost: float = 1e-3
    """negentropy of the density of heads: larger values keep it from collapsing on few heads"""
    field_size_cost: float = 0.0
    """squared norm of the parameters, integrated along depth; needs --weight-decay 0, which has the same effect"""


@final
@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How long and how fast it learns."""

    updates: int = 1000
    """updates of the optimiser; the learning rate rises and falls over all of them"""
    token_budget: float = 0.0
    """the length of the training in tokens instead, such as 1e6; 0: --updates"""
    time_budget: float = 0.0
    """the length of the training in seconds instead, as a few updates take; test and report come after it, and can take
    longer than a short training; 0: --updates"""
    batch_size: int = 50
    """sequences in a batch (csv: at most the windows of the file)"""
    optimizer: OptimizerName = "adamw"
    """adamw; recipe: each parameter by its space; or that with soap, shampoo (extra `optim`) or kfac for the kernels of
    the flow"""
    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 3e-3
    """highest learning rate"""
    kernel_learning_rate: float = 0.0
    """highest learning rate of the kernels of the flow under soap, shampoo and kfac; 0: 0.003, of kfac 0.3"""
    weight_decay: float = 0.05
    """weight decay of matrices at the learning rate; kernels under soap, shampoo and kfac shrink by as much"""
    beta2: float = 0.98
    """decay rate of the second moments of adamw and recipe"""
    warmup_ratio: float = 0.1
    """fraction of the updates in which the learning rate rises"""
    min_lr_ratio: float = 0.0
    """learning rate at the end, as a fraction of the highest"""
    clip: float = 1.0
    """largest norm of a gradient"""
    validations: int = 5
    """how often the validation split is read"""
    patience: int = 0
    """training ends after so many validations in a row without a lower loss; 0: never early"""
    best: bool = True
    """use the parameters of the lowest validation loss; where validation reads the test (mnist1d, and text without
    --validation-fraction), the last"""


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
