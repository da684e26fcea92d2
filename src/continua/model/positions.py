"""Codes for positions on the axis of token time, added to the embedded tokens."""

import abc
import math
from typing import Any, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import Float, Points, Positions, Tensor
from continua.fields import parameter_spaces
from continua.spaces import AbstractParameterSpace


class AbstractPositionCode(nn.Module, abc.ABC):
    """t -> a vector of the model's width."""

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Size of the code."""

    @abc.abstractmethod
    def forward(self, positions: Positions) -> Points:
        """The code of every position."""

    @final
    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        """Where every parameter lives, by its name in `named_parameters`; what an optimiser needs to know."""
        return parameter_spaces(self)

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments that build this code anew (its values apart)."""


class LearnedPositions(AbstractPositionCode):
    """One trained vector for each of the positions 0, 1, ..., length - 1, as in GPT-2 and BERT."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        if length < 1:
            reject("length", length, "a table needs at least one position", "Pass length >= 1.")
        self.length = length
        self.table = nn.Parameter(torch.randn(length, width) * 0.02)

    @property
    def width(self) -> int:
        return self.table.shape[1]

    def forward(self, positions: Positions) -> Points:
        index = positions.long()
        between = positions[positions != index]
        if between.numel() > 0:
            cure = "Use SinusoidalPositions, which reads any time."
            reject("positions", between[0].item(), "a learned table knows whole numbers only", cure)
        beyond = index[(index < 0) | (index >= self.length)]
        if beyond.numel() > 0:
            cure = (
                f"Shorten the sequence, or build the model with LearnedPositions(length > {int(beyond.max())}, width)."
            )
            reject("positions", int(beyond[0]), f"the table reaches from 0 to {self.length - 1}", cure)
        return self.table[index]

    def arguments(self) -> dict[str, Any]:
        return {"length": self.length, "width": self.width}


class FourierPositions(AbstractPositionCode):
    """W phi(t) + b with Fourier features phi(t) = (cos(om_k t), sin(om_k t)) / sqrt(features) of real t, W trained.

        om_k = scale sqrt(2) erfinv((k + 1/2) / features) ,   k = 0, ..., features - 1

    The frequencies are quantiles of the normal law of deviation `scale`, so <phi(t), phi(s)> tends to the Gaussian
    kernel e^{-scale^2 (t - s)^2 / 2}: 1/scale is the time over which the code changes. A. Rahimi and B. Recht, Random
    features for large-scale kernel machines (2007), with quantiles in place of draws, as time has one dimension;
    M. Tancik et al., Fourier features let networks learn high frequency functions (2020).
    """

    def __init__(self, width: int, features: int, scale: float) -> None:
        super().__init__()
        for name, size in (("width", width), ("features", features)):
            if size < 1:
                reject(name, size, "a code needs at least one", f"Pass {name} >= 1.")
        if not (scale > 0 and math.isfinite(scale)):
            reject("scale", scale, "frequencies are positive", "Pass scale > 0, about 1 over the time to resolve.")
        self.features, self.scale = features, float(scale)
        self.linear = nn.Linear(2 * features, width)

    @property
    def width(self) -> int:
        return self.linear.out_features

    def frequencies(self) -> Float[Tensor, " features"]:
        """om_k in float64: a buffer would round them to whatever dtype the model passes through."""
        share = (torch.arange(self.features, dtype=torch.float64) + 0.5) / self.features
        return self.scale * math.sqrt(2.0) * torch.erfinv(share)

    def encode(self, positions: Positions) -> Float[Tensor, "batch tokens twice_features"]:
        """phi(t)."""
        phase = positions.unsqueeze(-1) * self.frequencies().to(positions)
        return torch.cat([phase.cos(), phase.sin()], -1) / math.sqrt(self.features)

    def forward(self, positions: Positions) -> Points:
        return self.linear(self.encode(positions))

    def arguments(self) -> dict[str, Any]:
        return {"width": self.width, "features": self.features, "scale": self.scale}


class SinusoidalPositions(AbstractPositionCode):
    """(sin(om_k t), cos(om_k t)) for real t, frequencies om_k spaced geometrically from `fastest` towards `slowest`.

        om_k = fastest (slowest / fastest)^(2k / width) ,   k = 0, ..., width/2 - 1

    The code of A. Vaswani et al., Attention is all you need (2017), has fastest = 1 and slowest = 1e-4 on integer t
    (there sines and cosines alternate).
    """

    def __init__(self, width: int, fastest: float = 1.0, slowest: float = 1e-4) -> None:
        super().__init__()
        if width < 2:
            reject("width", width, "a code needs a sine and a cosine", "Pass width >= 2.")
        if width % 2:
            reject("width", width, "sines and cosines come in pairs", "Pass an even width.")
        if not (0 < slowest <= fastest and math.isfinite(fastest)):
            reject("slowest", slowest, f"fastest = {fastest}: frequencies are ordered", "Pass 0 < slowest <= fastest.")
        self._width, self.fastest, self.slowest = width, fastest, slowest

    @property
    def width(self) -> int:
        return self._width

    def frequencies(self) -> Float[Tensor, " half"]:
        """om_k in float64: a buffer would round them to whatever dtype the model passes through."""
        share = torch.arange(self._width // 2, dtype=torch.float64) / (self._width // 2)
        return self.fastest * (self.slowest / self.fastest) ** share

    def forward(self, positions: Positions) -> Points:
        phase: Float[Tensor, "batch tokens half"] = positions.unsqueeze(-1) * self.frequencies().to(positions)
        return torch.cat([phase.sin(), phase.cos()], -1)

    def arguments(self) -> dict[str, Any]:
        return {"width": self._width, "fastest": self.fastest, "slowest": self.slowest}
