"""Who is portrayed: a model in evaluation mode, the cloud it moves, and what its cross-attention reads."""

import dataclasses
from typing import Any, final

import torch

from continua.model import ContinuousTransformer
from continua.solve import Solution
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sitter:
    """A model with one embedded batch; `memory` is the encoder's tokens, where the model is a decoder."""

    model: ContinuousTransformer
    cloud: Cloud
    memory: Cloud | None = None

    @classmethod
    def of(cls, model: ContinuousTransformer, inputs: tuple[Any, ...], memory: Cloud | None = None) -> "Sitter":
        """The model as it is seen, in evaluation mode; the one that was given is left in its own."""
        seen = model.at()
        seen.training = False
        with torch.no_grad():
            return cls(seen, seen(*inputs, memory=memory, full=True).cloud, memory)

    def first(self) -> "Sitter":
        """With the first sequence of the batch alone."""
        memory = None if self.memory is None else self.memory.first(1)
        return dataclasses.replace(self, cloud=self.cloud.first(1), memory=memory)

    @torch.no_grad()
    def solve(self, save_at: tuple[float, ...] = ()) -> Solution:
        """Its solve, without a graph."""
        return self.model(self.cloud, save_at=save_at, memory=self.memory, full=True).solution

    def answers(self) -> Cloud:
        """Its tokens at the end, read out: the memory of a decoder."""
        with torch.no_grad():
            return self.cloud.at(self.model(self.cloud, memory=self.memory))
