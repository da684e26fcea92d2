"""Tokens that move in a plane."""

import dataclasses
from typing import final

import numpy as np
from jaxtyping import Float

from continua.runs.figures.figure import AbstractFigure, Scale, fits


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Paths(AbstractFigure):
    """points[depth, token, 0..1]: where each token is at each depth; a slider moves all of them.

    `tokens` gives every path its colour, such as the token's time, and `hue` says what that number is.
    """

    x: Scale
    y: Scale
    depths: Float[np.ndarray, " depths"]
    points: Float[np.ndarray, "depths tokens 2"]
    tokens: Float[np.ndarray, " tokens"]
    hue: str
    slider: str = "depth z"

    def __post_init__(self) -> None:
        fits("points", self.points, (len(self.depths), len(self.tokens), 2))

    @property
    def kind(self) -> str:
        return "paths"
