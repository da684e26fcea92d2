"""Readouts: from the cloud at the end of depth to what the user wants."""

import abc
from typing import Any, final

import torch
from torch import nn

from continua.core.errors import check_size
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Constant, parameter_spaces
from continua.model.embedding import TokenEmbedding
from continua.operators import AbstractNorm, LayerNorm
from continua.spaces import AbstractParameterSpace, Cloud


class AbstractReadout(nn.Module, abc.ABC):
    """The cloud at depth Z -> output."""

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Size of the tokens that it reads."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """How many numbers it gives, for a token or for a sequence."""

    @property
    @abc.abstractmethod
    def per_token(self) -> bool:
        """Whether there is one output for each token, in its place."""

    @abc.abstractmethod
    def forward(self, cloud: Cloud) -> Tensor:
        """The output."""

    @final
    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments that build this readout anew (its values apart)."""


class Normalised(AbstractReadout):
    """The tokens themselves, normalised: what an encoder gives to a decoder.

    With `norm=Unnormalised()` they are given as they are.
    """

    def __init__(self, width: int, norm: AbstractNorm = LayerNorm()) -> None:
        super().__init__()
        check_size("width", width, "a readout")
        self._width, self.norm = width, norm
        self.theta = Constant(norm.spec(width))

    @property
    def width(self) -> int:
        return self._width

    @property
    def outputs(self) -> int:
        return self._width

    @property
    def per_token(self) -> bool:
        return True

    def forward(self, cloud: Cloud) -> Points:
        return self.norm.normalise(self.theta(0.0), cloud.points)

    def arguments(self) -> dict[str, Any]:
        return {"width": self._width, "norm": self.norm}


class TokenReadout(AbstractReadout):
    """One output for each token: logits W norm(x_i) + b."""

    def __init__(self, width: int, outputs: int, norm: AbstractNorm = LayerNorm(), biased: bool = True) -> None:
        super().__init__()
        check_size("outputs", outputs, "a readout")
        self.normalised = Normalised(width, norm)
        self.linear = nn.Linear(width, outputs, bias=biased)

    @classmethod
    def tied(cls, embedding: TokenEmbedding, norm: AbstractNorm = LayerNorm()) -> "TokenReadout":
        """Logits <E_n, norm(x_i)> with the vectors E of the embedding itself, one parameter for both, as in GPT-2."""
        readout = cls(embedding.width, embedding.vocabulary, norm, biased=False)
        readout.linear.weight = embedding.table
        return readout

    @property
    def width(self) -> int:
        return self.normalised.width

    @property
    def outputs(self) -> int:
        return self.linear.out_features

    @property
    def per_token(self) -> bool:
        return True

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch tokens outputs"]:
        return self.linear(self.normalised(cloud))

    def arguments(self) -> dict[str, Any]:
        biased = self.linear.bias is not None
        return {**self.normalised.arguments(), "outputs": self.linear.out_features, "biased": biased}


class MeanReadout(AbstractReadout):
    """One output for each sequence, from the mean of its normalised tokens under their masses.

        W (sum_i w_i norm(x_i) / sum_i w_i) + b

    Differentiable in the masses, where these are.
    """

    def __init__(self, width: int, outputs: int, norm: AbstractNorm = LayerNorm()) -> None:
        super().__init__()
        check_size("outputs", outputs, "a readout")
        self.normalised = Normalised(width, norm)
        self.linear = nn.Linear(width, outputs)

    @property
    def width(self) -> int:
        return self.normalised.width

    @property
    def outputs(self) -> int:
        return self.linear.out_features

    @property
    def per_token(self) -> bool:
        return False

    def forward(self, cloud: Cloud) -> Float[Tensor, "batch outputs"]:
        points, mass = self.normalised(cloud), cloud.measure.mass
        if mass is None:
            return self.linear(points.mean(1))
        weights = mass / mass.sum(-1, keepdim=True)
        return self.linear(torch.einsum("bt,btw->bw", weights, points))

    def arguments(self) -> dict[str, Any]:
        return {**self.normalised.arguments(), "outputs": self.linear.out_features}
