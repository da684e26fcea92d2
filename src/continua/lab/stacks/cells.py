"""One stack of layers, trained on character text in one of several ways."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import final

import torch

from continua.control import L2, KineticEnergy, NextToken, Objective
from continua.core.batch import Batch
from continua.core.shapes import Float, Tensor
from continua.data import AbstractTask, Split, Text
from continua.fields import PiecewiseConstant
from continua.lab.stacks.language import Lexicon
from continua.lab.stacks.smoothness import (
    count_clusters,
    distance_to_smooth,
    extremality,
    layer_weights,
    roughness,
    turning,
    velocities,
)
from continua.lab.sweep import AbstractCell, Row
from continua.model import ContinuousTransformer, Depth, TokenTime, transformer
from continua.operators import Rotary
from continua.optim import adamw
from continua.train import Learner, Plan

DEPTH = 4.0
"""The length of depth that scaled layers share: four layers are the same network with and without scaling."""
_MEASURED = 4
"""Sequences along whose path states and residuals are measured."""


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """How a stack is built and trained: x' = x + dz f_l(x), with dz = 4/L where it is `scaled`, else 1."""

    scaled: bool = False
    price: float = 0.0
    """lambda of lambda int |f|^2 dz, a mean over tokens and channels"""
    decay: float = 0.1
    rate: float = 1.0
    """times the learning rate of the experiment"""
    small: bool = False
    """outputs of both branches begin 1/sqrt(2 L) times as large: the start of GPT-2"""
    equal: bool = False
    """all layers begin as the first"""


WAYS: Mapping[str, Way] = {
    "layers": Way(),
    "regularised": Way(price=0.1),
    "scaled": Way(scaled=True),
    "scaled, regularised": Way(scaled=True, price=0.1),
    "scaled, equal start": Way(scaled=True, equal=True),
    "small outputs": Way(small=True),
    "small outputs, regularised": Way(small=True, price=0.1),
    "more decay": Way(decay=0.5),
    "half the rate": Way(rate=0.5),
    "twice the rate": Way(rate=2.0),
    "twice the rate, regularised": Way(rate=2.0, price=0.1),
}


@final
class TrainedStack(AbstractCell):
    """Trains L layers in one way with one seed: loss, smoothness in depth, and how tokens move."""

    way: str
    layers: int
    seed: int
    updates: int
    width: int
    context_length: int
    batch_size: int
    windows: int
    text: str = ""
    rate: float = 4e-3

    def measure(self) -> Row:
        way, task = WAYS[self.way], self.task()
        model = self.build(task)
        begun = layer_weights(model)
        energy = KineticEnergy(L2(mean=True))
        objective = Objective(NextToken(shifted=True), (energy,), (way.price,))
        optimiser = adamw(model, way.rate * self.rate, way.decay, (0.9, 0.99))
        learner = Learner(self.way, model, objective, optimiser)
        plan = Plan(self.updates, self.batch_size, self.seed, min_lr_ratio=0.1)
        losses = [
            learner.update(task.training_batch(self.batch_size, number, self.seed), number, plan).loss
            for number in range(self.updates)
        ]
        batch = task.batch(Split.VALIDATION, torch.arange(self.windows))
        with torch.no_grad():
            terms = objective(model.in_eval_mode(), batch)
        depth = model.flow.depth
        # in the units of depth 4, whatever the steps: |x' - x|^2 L/4 of every layer
        moved = float(terms.running["kinetic_energy"]) * depth / DEPTH
        found = {"way": self.way, "layers": self.layers, "seed": self.seed, "loss": float(terms.terminal)}
        return found | {"energy": moved, "losses": losses, **self._look(model, begun, batch)}

    def task(self) -> AbstractTask:
        """The text of a file, or the language that needs none."""
        return (
            Text(FilePath(self.text), self.context_length) if self.text else Lexicon(context_length=self.context_length)
        )

    def build(self, task: AbstractTask) -> ContinuousTransformer:
        """The stack as it begins; the same seed gives every way the same draws."""
        torch.manual_seed(self.seed)
        way, form, L = WAYS[self.way], task.form, self.layers
        depth = Depth(DEPTH if way.scaled else float(L), L, L)
        time = TokenTime(positions=Rotary(2.5, 3.0 / form.span))
        sizes = {"vocabulary": form.vocabulary, "causal": True, "hidden": 2 * self.width, "axis": 1, "heads": 4}
        model = transformer(self.width, form.outputs, time=time, depth=depth, **sizes)  # pyright: ignore
        with torch.no_grad():
            for field in model.flow.fields:
                assert isinstance(field, PiecewiseConstant)
                for piece in field.pieces:
                    for name, w in piece.items():
                        if way.equal:
                            w.copy_(field.pieces[0][name])
                        if way.small and name in ("inner_o", "inner_w2"):
                            w.mul_(1.0 / math.sqrt(2.0 * L))
        return model

    def _look(self, model: ContinuousTransformer, begun: Float[Tensor, "layers numbers"], batch: Batch) -> Row:
        """What the layers and the paths through them look like, in float64."""
        model = model.double().in_eval_mode().requires_grad_(False)
        flow, weights = model.flow, layer_weights(model)
        depths = [flow.depth * k / self.layers for k in range(self.layers + 1)]
        states = model(batch.inputs[0][:_MEASURED], save_at=depths, full=True).solution.xs
        assert states is not None
        near, permuted = distance_to_smooth(weights)
        places = (0, self.layers // 2, self.layers)
        moves = (states[1:] - states[:-1]).square().mean((-1, -2, -3)) * self.layers**2 / DEPTH**2
        return {
            "weights": roughness(weights),
            "changes": roughness(weights - begun),
            "moved": float((weights - begun).norm() / begun.norm()),
            "fields": sum(roughness(velocities(flow, states[k], self.layers)) for k in places) / len(places),
            "gains": float(_gains(model).sub(1.0).square().mean().sqrt()),
            "distance": near,
            "permuted": permuted,
            "turning": turning(states),
            "extremality": extremality(flow, states[:, :1]),
            "clusters": count_clusters(states),
            "speed": moves.tolist(),
        }


def _gains(model: ContinuousTransformer) -> Float[Tensor, " numbers"]:
    """The gains of all norms in the flow."""
    return torch.cat([w.flatten() for name, w in model.flow.named_parameters() if name.endswith("norm_gain")])
