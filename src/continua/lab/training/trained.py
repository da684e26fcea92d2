"""Training, the same for networks and for their limit."""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch

from continua.core.shapes import Tensor
from continua.lab.training.problem import Training

Seen = TypeVar("Seen", covariant=True)


@runtime_checkable
class Trainable(Protocol[Seen]):
    """Parameters, and a pass forward and back that leaves their gradients."""

    @property
    def parameters(self) -> list[Tensor]: ...

    def both(self) -> Seen: ...


def trained(learner: Trainable[Seen], training: Training, updates: int, watch: Callable[[int, Seen], None]) -> None:
    """`updates` updates, of all seeds at once; `watch` sees every pass, the one after the last update included."""
    optimiser = training.optimiser(learner.parameters)
    with torch.no_grad():
        for update in range(updates + 1):
            watch(update, learner.both())
            if update < updates:
                optimiser.step()
