"""Heights over intervals, such as the steps that a solve took; heights over names."""

import dataclasses
from typing import Any, final

import numpy as np
from jaxtyping import Float

from continua.core.errors import reject
from continua.runs.figures.figure import AbstractFigure, Note, Scale, fits, numbers


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Stairs:
    """heights[i] on [edges[i], edges[i+1]]."""

    name: str
    edges: Float[np.ndarray, " edges"]
    heights: Float[np.ndarray, " steps"]
    colour: int | None = None

    def __post_init__(self) -> None:
        fits(f"stairs {self.name!r}.heights", self.heights, (len(self.edges) - 1,))

    @classmethod
    def of(cls, name: str, edges: Any, heights: Any, colour: int | None = None) -> "Stairs":
        """From lists, tuples or arrays."""
        return cls(name, numbers(edges), numbers(heights), colour)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Steps(AbstractFigure):
    """Stairs on common axes."""

    x: Scale
    y: Scale
    stairs: tuple[Stairs, ...]
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if not self.stairs:
            reject("stairs", self.stairs, "there is nothing to draw", "Pass at least one Stairs.")

    @property
    def kind(self) -> str:
        return "steps"


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Bars(AbstractFigure):
    """values[series, category]: one group of bars for each category, one colour for each name."""

    y: Scale
    categories: tuple[str, ...]
    names: tuple[str, ...]
    values: Float[np.ndarray, "series categories"]
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        fits("values", self.values, (len(self.names), len(self.categories)))

    @property
    def kind(self) -> str:
        return "bars"
