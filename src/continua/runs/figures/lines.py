"""Curves over a common axis."""

import dataclasses
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float

from continua.core.errors import reject
from continua.runs.figures.figure import AbstractFigure, Note, Scale, fits, numbers


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """One named curve y(x), with a band low..high around it where there is one (both empty otherwise).

    Series of one `colour` belong together, such as training and validation of one model; by default each has its own.
    """

    name: str
    x: Float[np.ndarray, " points"]
    y: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " band"] = dataclasses.field(default_factory=lambda: np.empty(0))
    high: Float[np.ndarray, " band"] = dataclasses.field(default_factory=lambda: np.empty(0))
    mark: Literal["line", "faint", "dashed", "points", "both"] = "line"
    colour: int | None = None

    def __post_init__(self) -> None:
        fits(f"series {self.name!r}.y", self.y, self.x.shape)
        for band in (self.low, self.high):
            if band.size:
                fits(f"series {self.name!r}.low", band, self.x.shape)

    @classmethod
    def of(cls, name: str, x: Any, y: Any, low: Any = None, high: Any = None, **look: Any) -> "Series":
        """From lists, tuples or arrays; `None` and NaN are gaps."""
        return cls(name, numbers(x), numbers(y), numbers(low), numbers(high), **look)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Lines(AbstractFigure):
    """Several curves on common axes, with notes at values a reader should see."""

    x: Scale
    y: Scale
    series: tuple[Series, ...]
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if not self.series:
            reject("series", self.series, "there is nothing to draw", "Pass at least one Series.")

    @property
    def kind(self) -> str:
        return "lines"
