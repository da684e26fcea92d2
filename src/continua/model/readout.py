"""Readouts: from the cloud at the end of depth to what the user wants; states as functions, in and out."""

import abc
from typing import Any, final

import torch
from torch import nn

from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.shapes import Bool, Float, Points, Tensor
from continua.fields import Constant
from continua.model.embedding import AbstractEmbedding, AbstractEmbeddingWrapper, NormedEmbedding, TokenEmbedding
from continua.operators import AbstractNorm, LayerNorm, with_nodes
from continua.spaces import AbstractBasis, Axis, Cloud
from continua.spaces.axis import tables


class AbstractReadout(nn.Module, abc.ABC):
    """The cloud at depth Z -> output."""

    width: int
    """Size of the tokens that it reads."""
    outputs: int
    """How many numbers it gives, per token or per sequence."""
    per_token: bool = True
    """Whether there is one output per token, in its place."""

    @abc.abstractmethod
    def forward(self, cloud: Cloud) -> Tensor:
        """The output."""


def flatten_tokens(x: Any, present: Bool[Tensor, "batch tokens"] | None) -> Any:
    """What there is one of per token, (batch, tokens, ...), for present tokens in one row; what is no tensor stays."""
    if not isinstance(x, Tensor):
        return x
    return x.flatten(0, 1) if present is None else x[present]


@final
class NormReadout(AbstractReadout):
    """The tokens themselves, normalised: what an encoder gives to a decoder.

    With `norm=Unnormalised()` they are given as they are.
    """

    def __init__(self, width: int, norm: AbstractNorm = LayerNorm()) -> None:
        super().__init__()
        at_least(1, width=width)
        self.width, self.outputs, self.norm = width, width, norm
        self.theta = Constant(norm.spec(width))

    def forward(self, cloud: Cloud) -> Points:
        return self.norm.normalise(self.theta(0.0), cloud.points)


class AbstractLinearReadout(AbstractReadout):
    """W norm(x) + b of something that is made of normalised tokens."""

    def __init__(self, width: int, outputs: int, norm: AbstractNorm = LayerNorm(), bias: bool = True) -> None:
        super().__init__()
        at_least(1, outputs=outputs)
        self.width, self.outputs, self.norm, self.bias = width, outputs, norm, bias
        self.normalised = NormReadout(width, norm)
        self.linear = nn.Linear(width, outputs, bias=bias)


@final
class TokenReadout(AbstractLinearReadout):
    """One output per token: logits W norm(x_i) + b."""

    @classmethod
    def from_embedding(cls, embedding: TokenEmbedding, norm: AbstractNorm = LayerNorm()) -> "TokenReadout":
        """Logits <E_n, norm(x_i)> with the vectors E of the embedding itself, one parameter for both, as in GPT-2."""
        readout = cls(embedding.width, embedding.vocabulary, norm, bias=False)
        readout.linear.weight = embedding.table
        return readout

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        return self.linear(self.normalised(cloud))


@final
class MeanReadout(AbstractLinearReadout):
    """One output per sequence, from the mean of its normalised tokens under their masses.

        W (sum_i w_i norm(x_i) / sum_i w_i) + b

    Differentiable in the masses, where these are.
    """

    per_token = False

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch outputs"]:
        points, mass = self.normalised(cloud), cloud.measure.mass
        if mass is None:
            return self.linear(points.mean(1))
        weights = mass / mass.sum(-1, keepdim=True)
        return self.linear(torch.einsum("bt,btw->bw", weights, points))


@final
class SynthesisEmbedding(AbstractEmbeddingWrapper):
    """X(0, t, d_a) = sum_i phi_i(d_a) u_i(t): the inner embedding gives coefficients, this the function at the nodes.

    The inner width is modes * channels.
    """

    def __init__(self, inner: AbstractEmbedding, axis: Axis, basis: AbstractBasis) -> None:
        super().__init__()
        _check_modes(inner.width, axis, basis)
        self.inner, self.axis, self.basis, self.width = inner, axis, basis, axis.width
        self._synthesis, _ = tables(axis, basis)

    def wrap(self, cloud: Cloud) -> Cloud:
        coefficients = cloud.points.unflatten(-1, (self.basis.size, -1))
        synthesis = self._synthesis.like(coefficients)
        return cloud.at(torch.einsum("ai,btic->btac", synthesis, coefficients).flatten(2))


@final
class AnalysisReadout(AbstractReadout):
    """The inner readout of the coefficients u_i(t) = sum_a v_a phi_i(d_a) X(Z, t, d_a)."""

    def __init__(self, inner: AbstractReadout, axis: Axis, basis: AbstractBasis) -> None:
        super().__init__()
        _check_modes(inner.width, axis, basis)
        self.inner, self.axis, self.basis = inner, axis, basis
        self.width, self.outputs, self.per_token = axis.width, inner.outputs, inner.per_token
        _, self._analysis = tables(axis, basis)

    def forward(self, cloud: Cloud) -> Tensor:
        functions = cloud.points.unflatten(-1, (self.axis.nodes, -1))
        coefficients = torch.einsum("ia,btac->btic", self._analysis.like(functions), functions)
        return self.inner(cloud.at(coefficients.flatten(2)))


def axis_of(embedding: AbstractEmbedding) -> Axis | None:
    """The axis along which the states of an embedding are functions; `None` where they are plain vectors."""
    if isinstance(embedding, SynthesisEmbedding):
        return embedding.axis
    axis = axis_of(embedding.inner) if isinstance(embedding, AbstractEmbeddingWrapper) else None
    return axis if axis is not None and axis.width == embedding.width else None


def embedding_at(embedding: AbstractEmbedding, nodes: int) -> AbstractEmbedding:
    """The same embedding, parameters shared, at another resolution of the embedding axis."""
    if isinstance(embedding, SynthesisEmbedding):
        at_least(1, axis_nodes=nodes)
        if nodes < (modes := embedding.basis.size):
            why = f"the axis has {modes} modes, and resolves them with at least {modes} nodes only"
            reject("axis_nodes", nodes, why, f"Pass axis_nodes >= {modes}.")
        return SynthesisEmbedding(embedding.inner, embedding.axis.at(nodes), embedding.basis)
    if isinstance(embedding, NormedEmbedding):
        other = NormedEmbedding(embedding_at(embedding.inner, nodes), with_nodes(embedding.norm, nodes))
        other.theta = embedding.theta
        return other
    cure = "Build the model with continua.transformer(..., axis=EmbeddingAxis(...)), whose states are functions."
    reject("axis_nodes", nodes, f"states of this model are vectors ({type(embedding).__name__}), not functions", cure)


def readout_at(readout: AbstractReadout, nodes: int) -> AbstractReadout:
    """The same readout, parameters shared, at another resolution of the embedding axis."""
    if not isinstance(readout, AnalysisReadout):
        cure = "Build the readout with AnalysisReadout(readout, axis, basis)."
        reject("axis_nodes", nodes, f"this model reads vectors ({type(readout).__name__}), not functions", cure)
    return AnalysisReadout(readout.inner, readout.axis.at(nodes), readout.basis)


def _check_modes(width: int, axis: Axis, basis: AbstractBasis) -> None:
    if width != basis.size * axis.channels:
        cure = f"Build it with width = modes * channels = {basis.size * axis.channels}."
        reject("inner", width, f"its width is not that of {basis.size} modes with {axis.channels} channels", cure)
