"""Embeddings whose tokens are normalised before they enter the flow."""

from typing import Any

from continua.fields import Constant
from continua.model.embedding import AbstractEmbedding
from continua.model.lifted import AbstractLifted
from continua.operators import AbstractNorm, LayerNorm
from continua.spaces import AbstractManifold, Cloud


class NormedEmbedding(AbstractLifted):
    """X(0) = norm(inner embedding), with trained gain and bias, as in BERT."""

    def __init__(self, inner: AbstractEmbedding, norm: AbstractNorm = LayerNorm()) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm
        self.theta = Constant(norm.spec(inner.width))

    @property
    def width(self) -> int:
        return self.inner.width

    def lift(self, cloud: Cloud) -> Cloud:
        return cloud.at(self.norm.normalise(self.theta(0.0), cloud.points))

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "norm": self.norm}


class ProjectedEmbedding(AbstractLifted):
    """X(0) = P(inner embedding): tokens start on a manifold."""

    def __init__(self, inner: AbstractEmbedding, manifold: AbstractManifold) -> None:
        super().__init__()
        self.inner, self.manifold = inner, manifold

    @property
    def width(self) -> int:
        return self.inner.width

    def lift(self, cloud: Cloud) -> Cloud:
        return cloud.at(self.manifold.project(cloud.points))

    def arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "manifold": self.manifold}
