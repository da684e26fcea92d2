"""The objective: a terminal loss and running costs of one solve, each told apart."""

import dataclasses
import math
from typing import Any, NamedTuple, final

import torch
from torch import nn

from continua.control.costs import AbstractRunningCost
from continua.control.losses import AbstractLoss
from continua.control.setting import Setting
from continua.core.batch import Batch
from continua.core.errors import expect, reject
from continua.core.seeds import fresh_seed
from continua.core.shapes import Float, Tensor
from continua.model import ContinuousTransformer, EncoderDecoder, Rate, axis_of
from continua.solve import Observer, Solution, Stats
from continua.spaces import Cloud


class Terms(NamedTuple):
    """J and what it is made of, each a mean over the batch: total = terminal + sum_c lambda_c running[c]."""

    total: Float[Tensor, ""]
    terminal: Float[Tensor, ""]
    running: dict[str, Tensor]
    """The integral of each running cost by its name, before its weight."""
    stats: Stats
    """Statistics of the solve; of the decoder's, where there are two."""
    output: Tensor
    """What the readout gave, for whoever wants to measure more."""


@final
@dataclasses.dataclass(frozen=True)
class Objective:
    """J = mean_b [ loss(X_b(Z), y_b) + int_0^Z sum_c lambda_c r_c(z, X_b, theta) dz ].

    Loss and costs are objects, `weights` the lambda_c, one a cost. A call solves once and differentiates as the model's
    own gradient has it: `objective(model, batch).total.backward()`. All randomness (dropout, Hutchinson noise) is drawn
    from `generator`, torch's global one by default; the same generator gives the same J.
    """

    loss: AbstractLoss
    costs: tuple[AbstractRunningCost, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        expect("loss", self.loss, AbstractLoss, "Pass an object such as CrossEntropy().")
        for name in ("costs", "weights"):
            expect(name, getattr(self, name), (tuple, list), "Pass costs=(KineticEnergy(),), weights=(0.01,).")
        object.__setattr__(self, "costs", tuple(self.costs))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        for cost in self.costs:
            expect("costs", cost, AbstractRunningCost, "Pass objects such as (KineticEnergy(),).")
        if len(self.weights) != len(self.costs):
            why = f"there are {len(self.costs)} running costs"
            reject("weights", self.weights, why, "Pass one weight a cost, costs=(KineticEnergy(),), weights=(0.01,).")
        for weight in self.weights:
            if not 0.0 <= weight < math.inf:
                cure = "Pass finite weights >= 0; a negative one rewards what the cost is there to prevent."
                reject("weights", weight, "a running cost is paid, not earned", cure)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the running costs; one that occurs again is numbered."""
        plain = [cost.name for cost in self.costs]
        again = [plain[:i].count(name) for i, name in enumerate(plain)]
        return tuple(f"{name}_{n + 1}" if n else name for name, n in zip(plain, again, strict=True))

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Terms:
        """J of the model on the batch, differentiably."""
        expect("batch", batch, Batch, "Pass Batch(inputs, targets).")
        cure = "Pass a ContinuousTransformer or an EncoderDecoder."
        expect("model", model, (ContinuousTransformer, EncoderDecoder), cure)
        seed = self.seed(model, generator)
        if isinstance(model, EncoderDecoder):
            return self._two(model, batch, seed)
        assert isinstance(model, ContinuousTransformer)
        setting = self.setting(model, model.embedding(*batch.inputs), seed)
        return self.read(model, batch, setting, self.solved(model, setting))

    def check(self, optimiser: torch.optim.Optimizer, model: nn.Module | None = None) -> None:
        """Refuses an L2 term in J together with weight decay: both shrink the same parameters, to no common minimum.

        With `model` only weight decay on the parameters of its flow counts, which are those that the term sees.
        """
        terms = [name for cost, name in zip(self.costs, self.names, strict=True) if cost.decays]
        seen = None if model is None else {id(p) for flow in flows(model) for p in flow.parameters()}
        for index, group in enumerate(optimiser.param_groups if terms else ()):
            decay = float(group.get("weight_decay") or 0.0)
            if decay != 0.0 and (seen is None or any(id(p) in seen for p in group["params"])):
                why = f"the objective has an L2 term of the parameters already ({', '.join(terms)})"
                cure = "Set weight_decay=0 for these parameters, or leave the cost out of the objective."
                reject(f"param_groups[{index}]['weight_decay']", decay, why, cure)

    def seed(self, model: nn.Module, generator: torch.Generator | None) -> int:
        """The seed of one solve; nothing is drawn where nothing is random."""
        return fresh_seed(generator) if model.training or any(cost.random for cost in self.costs) else 0

    def setting(self, model: ContinuousTransformer, cloud: Cloud, seed: int, memory: Cloud | None = None) -> Setting:
        """What the costs are bound to for one solve of `model` from `cloud`."""
        return Setting(model.flow, cloud, memory, seed, model.training, axis_of(model.embedding))

    def rates(self, setting: Setting) -> list[Rate]:
        """The rates of all costs, bound."""
        return [cost.bind(setting, place) for place, cost in enumerate(self.costs)]

    def solved(self, model: ContinuousTransformer, setting: Setting, observers: tuple[Observer, ...] = ()) -> Solution:
        """The solve with the running costs beside it."""
        arguments: dict[str, Any] = {"memory": setting.memory, "generator": setting.generator()}
        return model.solve(setting.cloud, observers=observers, rates=self.rates(setting), **arguments)

    def read(self, model: ContinuousTransformer, batch: Batch, setting: Setting, solution: Solution) -> Terms:
        """The terms of a solve, as the model reads it out."""
        cloud = setting.cloud.at(solution.x)
        return self.terms(model.readout(cloud), heard(batch, cloud) if model.readout.per_token else batch, solution)

    def terms(self, output: Tensor, batch: Batch, solution: Solution) -> Terms:
        """The terms of a solve that was read out as `output`."""
        return self._summed(self.loss(output, batch), self._running(solution), solution.stats, output)

    def _two(self, model: EncoderDecoder, batch: Batch, seed: int) -> Terms:
        """Encoder and decoder, each with its running costs; the terminal loss is the decoder's."""
        source, target = source_and_target(batch)
        encoder, decoder = model.encoder, model.decoder
        first = self.setting(encoder, encoder.embedding(*source), seed)
        solution = self.solved(encoder, first)
        memory = first.cloud.at(encoder.readout(first.cloud.at(solution.x)))
        second = self.setting(decoder, decoder.embedding(*target), seed + 1, memory)
        terms = self.read(decoder, batch, second, self.solved(decoder, second))
        own = self._running(solution)
        running = {name: terms.running[name] + own[name] for name in self.names}
        return self._summed(terms.terminal, running, terms.stats, terms.output)

    def _running(self, solution: Solution) -> dict[str, Tensor]:
        return {name: cost.mean() for name, cost in zip(self.names, solution.costs, strict=True)}

    def _summed(self, terminal: Tensor, running: dict[str, Tensor], stats: Stats, output: Tensor) -> Terms:
        total = terminal
        for weight, cost in zip(self.weights, running.values(), strict=True):
            total = total + weight * cost
        return Terms(total, terminal, running, stats, output)


def source_and_target(batch: Batch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What an encoder-decoder reads: the arguments of the encoder's embedding and those of the decoder's."""
    if len(batch.inputs) != 2 or not all(isinstance(x, tuple | list) for x in batch.inputs):
        cure = "Pass Batch(((source, ...), (target, ...)), targets)."
        kinds = tuple(type(x).__name__ for x in batch.inputs)
        reject("batch.inputs", kinds, "an encoder-decoder takes a tuple for the source and one for the target", cure)
    source, target = batch.inputs
    return tuple(source), tuple(target)


def heard(batch: Batch, cloud: Cloud) -> Batch:
    """The batch with masses, times and presence of the cloud wherever it does not have its own."""
    own = {"weights": cloud.mass, "positions": cloud.positions, "present": cloud.present}
    missing = {name: value for name, value in own.items() if getattr(batch, name) is None}
    return dataclasses.replace(batch, **missing)


def flows(model: nn.Module) -> list[nn.Module]:
    """The flows of a model."""
    models = [model.encoder, model.decoder] if isinstance(model, EncoderDecoder) else [model]
    return [m.flow for m in models if isinstance(m, ContinuousTransformer)]
