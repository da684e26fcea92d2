"""Embeddings around an embedding: its cloud, with the states changed."""

import abc
from typing import Any, final

from continua.core.shapes import Tensor
from continua.model.embedding import AbstractEmbedding
from continua.spaces import Cloud


class AbstractLifted(AbstractEmbedding):
    """X(0) = lift(inner embedding), the same for tokens and for queries."""

    inner: AbstractEmbedding

    @abc.abstractmethod
    def lift(self, cloud: Cloud) -> Cloud:
        """The cloud of the inner embedding in other states."""

    @final
    def forward(self, *inputs: Any, **named: Any) -> Cloud:
        return self.lift(self.inner(*inputs, **named))

    @final
    def ask(self, times: Tensor, *inputs: Any, **named: Any) -> tuple[Cloud, Tensor]:
        cloud, where = self.inner.ask(times, *inputs, **named)
        return self.lift(cloud), where
