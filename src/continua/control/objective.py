"""The objective: a terminal loss and running costs of one call of the model, each told apart."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import nn

from continua.control.costs import AbstractRunningCost
from continua.control.losses import AbstractLoss, NextToken
from continua.core.batch import Batch
from continua.core.checks import is_a
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.model import ContinuousTransformer, EncoderDecoder, Result
from continua.solve import Stats


class Terms(NamedTuple):
    """J and what it is made of, each a mean over the batch: total = terminal + sum_c lambda_c running[c]."""

    total: Float[Tensor, ""]
    terminal: Float[Tensor, ""]
    running: dict[str, Tensor]
    """The integral of each running cost by its name, before its coefficient."""
    stats: Stats
    """Statistics of the solve; of the decoder's, where there are two."""
    output: Tensor
    """What the readout gave, for whoever wants to measure more."""


@final
@dataclasses.dataclass(frozen=True)
class Objective:
    """J = mean_b [ loss(X_b(Z), y_b) + int_0^Z sum_c lambda_c r_c(z, X_b, theta) dz ].

    Loss and costs are objects, `coefficients` the lambda_c, one per cost. A call is one call of the model, so that its
    hooks fire and whatever wraps it (`DistributedDataParallel`, `fully_shard`, `torch.compile`) is used, and
    differentiates as the model's own gradient has it: `objective(model, batch).total.backward()`. All randomness
    (dropout, Hutchinson noise) is drawn from `generator`, torch's global one by default; the same generator gives the
    same J.
    """

    loss: AbstractLoss
    costs: tuple[AbstractRunningCost, ...] = ()
    coefficients: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        is_a(AbstractLoss, "Pass an object such as CrossEntropy().", loss=self.loss)
        cure = "Pass costs=(KineticEnergy(),), coefficients=(0.01,)."
        is_a((tuple, list), cure, costs=self.costs, coefficients=self.coefficients)
        object.__setattr__(self, "costs", tuple(self.costs))
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        for cost in self.costs:
            is_a(AbstractRunningCost, "Pass objects such as (KineticEnergy(),).", costs=cost)
        if len(self.coefficients) != len(self.costs):
            why = f"there are {len(self.costs)} running costs"
            reject("coefficients", self.coefficients, why, f"One coefficient per cost: {cure}")
        for coefficient in self.coefficients:
            if not 0.0 <= coefficient < math.inf:
                cure = "Pass finite coefficients >= 0; a negative one rewards what the cost is there to prevent."
                reject("coefficients", coefficient, "a running cost is paid, not earned", cure)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the running costs; one that occurs again is numbered."""
        plain = [cost.name for cost in self.costs]
        again = [plain[:i].count(name) for i, name in enumerate(plain)]
        return tuple([f"{name}_{n + 1}" if n else name for name, n in zip(plain, again, strict=True)])

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        generator: torch.Generator | None = None,
        grid: Sequence[float] | None = None,
    ) -> Terms:
        """J of the model on the batch, differentiably; `grid` are the depths to step on, where they are not its own."""
        is_a(Batch, "Pass Batch(inputs, targets).", batch=batch)
        if isinstance(unwrap(model), EncoderDecoder) and len(batch.inputs) != 2:
            kinds, why = [type(x).__name__ for x in batch.inputs], "an encoder-decoder takes one tuple each"
            reject("batch.inputs", kinds, why, "Pass Batch(((source, ...), (target, ...)), targets).")
        if isinstance(self.loss, NextToken):
            _check_causal(unwrap(model))
        result = call_model(model, batch, self.costs, generator, grid)
        if isinstance(self.loss, NextToken) and result.cloud.measure.tied:
            why = "tokens of one time see each other, so that the model reads the token it is to predict"
            reject("times", "tied", why, "Give tokens times that differ, or leave times out: then time is the index.")
        return self.read(result, batch)

    def read(self, result: Result, batch: Batch) -> Terms:
        """The terms of what a call of the model found."""
        if result.output.ndim == 3 and batch.query_times is None:  # tokens of the cloud are those of the targets
            cloud = result.cloud
            own = {"mass": cloud.mass, "target_times": cloud.positions, "target_present": cloud.present}
            missing = {name: value for name, value in own.items() if getattr(batch, name) is None}
            batch = dataclasses.replace(batch, **missing)
        terminal = self.loss(result.output, batch)
        running = {name: cost.mean() for name, cost in zip(self.names, result.costs, strict=True)}
        total = terminal
        for coefficient, cost in zip(self.coefficients, running.values(), strict=True):
            total = total + coefficient * cost
        return Terms(total, terminal, running, result.solution.stats, result.output)

    def check(self, optimiser: torch.optim.Optimizer, model: nn.Module | None = None) -> None:
        """Refuses a penalty on the parameters in J together with weight decay: both shrink them, to no common minimum.

        With `model` only weight decay on the parameters of its flow counts, which are those that the term sees.
        """
        terms = [name for cost, name in zip(self.costs, self.names, strict=True) if cost.decays]
        flows = [m.flow for m in model.modules() if isinstance(m, ContinuousTransformer)] if model is not None else []
        seen = None if model is None else {id(p) for flow in flows for p in flow.parameters()}
        for index, group in enumerate(optimiser.param_groups if terms else ()):
            decay = float(group.get("weight_decay") or 0.0)
            if decay != 0.0 and (seen is None or any(id(p) in seen for p in group["params"])):
                why = f"the objective has an L2 term of the parameters already ({', '.join(terms)})"
                cure = "Set weight_decay=0 for these parameters, or leave the cost out of the objective."
                reject(f"param_groups[{index}]['weight_decay']", decay, why, cure)


def _check_causal(model: ContinuousTransformer | EncoderDecoder) -> None:
    """Refuses a model that would read the token that it is to predict."""
    if (model.decoder if isinstance(model, EncoderDecoder) else model).flow.reads_ahead:
        why = "its tokens attend to later ones, so that it reads the token it is to predict"
        reject("model", type(model).__name__, why, "Build it with causal=True, or take MaskedToken().")


def unwrap(model: nn.Module) -> ContinuousTransformer | EncoderDecoder:
    """The model inside whatever wraps it: `DistributedDataParallel` and `torch.compile`; `fully_shard` does not."""
    while (inner := getattr(model, "module", getattr(model, "_orig_mod", None))) is not None:
        model = inner
    is_a((ContinuousTransformer, EncoderDecoder), "Pass a ContinuousTransformer or an EncoderDecoder.", model=model)
    return model  # pyright: ignore[reportReturnType]


def call_model(
    model: nn.Module,
    batch: Batch,
    costs: Sequence[AbstractRunningCost] = (),
    generator: torch.Generator | None = None,
    grid: Sequence[float] | None = None,
    **named: Any,
) -> Result:
    """One call of a model on the inputs of a batch, at its query times where it has them, with the full result."""
    if batch.query_times is not None:
        named["query_times"] = batch.query_times
    if grid is not None:
        named["grid"] = grid
    return model(*batch.inputs, costs=costs, generator=generator, full=True, **named)
