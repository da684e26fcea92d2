"""A model trained on arrays that fit in memory: updates, and a held-out part that says when to stop."""

import copy
import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import nn

from continua.core.checks import at_least, positive
from continua.core.shapes import Float, Tensor
from continua.optim import CosineDecay, Schedule, adamw, clip_gradients
from continua.train.arrays import SeriesTokens

Loss = Callable[[Tensor, Tensor], Float[Tensor, ""]]
_CHECKS = 20
"""How often the held-out part is read, evenly spread over the updates."""


@final
@dataclasses.dataclass(frozen=True)
class Fitting:
    """AdamW with a cosine schedule for at most `updates` updates; `patience` readings of the held-out part without
    a lower loss end it, and the best parameters are kept."""

    updates: int = 400
    batch_size: int = 64
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    patience: int = 6

    def __post_init__(self) -> None:
        at_least(1, updates=self.updates, batch_size=self.batch_size, patience=self.patience)
        positive(learning_rate=self.learning_rate)

    def run(
        self,
        model: nn.Module,
        tokens: SeriesTokens,
        targets: Tensor,
        held_out: Tensor,
        loss: Loss,
        generator: torch.Generator,
    ) -> tuple[int, list[float]]:
        """Trains the model in place; `held_out` (series,) is true for those that choose, and may be false for all.

        Returns the number of updates and the losses of the held-out part, the first of them before any update.
        """
        optimiser = adamw(model, self.learning_rate, self.weight_decay, (0.9, 0.95))
        schedule = Schedule(optimiser, CosineDecay(warmup=max(1, self.updates // 20), total=self.updates))
        training, choosing = (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
        watch = _Best(model)
        if len(choosing):
            watch.see(_held_out_loss(model, tokens, targets, choosing, loss))
        every = max(1, self.updates // _CHECKS)
        order, update = training.new_empty(0), 0
        for update in range(1, self.updates + 1):
            if len(order) == 0:
                order = training[torch.randperm(len(training), generator=generator)]
            rows, order = order[: self.batch_size], order[self.batch_size :]
            optimiser.zero_grad()
            loss(model(*tokens.rows(rows)), targets[rows]).backward()
            clip_gradients(model, 1.0)
            optimiser.step()
            schedule.step()
            if len(choosing) and (update % every == 0 or update == self.updates):
                watch.see(_held_out_loss(model, tokens, targets, choosing, loss))
                if watch.idle >= self.patience:
                    break
        watch.restore()
        return update, watch.losses


@torch.no_grad()
def _held_out_loss(model: nn.Module, tokens: SeriesTokens, targets: Tensor, rows: Tensor, loss: Loss) -> float:
    model.eval()
    found = loss(model(*tokens.rows(rows)), targets[rows]).item()
    model.train()
    return found


@final
class _Best:
    """The parameters of the lowest loss so far, and for how many readings nothing was lower."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.losses, self.idle = model, list[float](), 0
        self._weights: dict[str, Tensor] | None = None

    def see(self, loss: float) -> None:
        if not self.losses or loss < min(self.losses):
            self.idle, self._weights = 0, copy.deepcopy(self.model.state_dict())
        else:
            self.idle += 1
        self.losses.append(loss)

    def restore(self) -> None:
        if self._weights is not None:
            self.model.load_state_dict(self._weights)
