"""What every figure is: plain data with a title, a caption, and a word on how it was measured."""

import abc
import dataclasses
from typing import Any, Literal, final

import numpy as np

from continua.core.errors import reject


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AbstractFigure(abc.ABC):
    """A picture before it is drawn. Whoever has measured something writes one; `report` alone draws.

    - `title`: what is seen, in a few words; `caption`: how to read it;
    - `measured`: on what and how the numbers were taken, so that a reader can judge them.
    """

    title: str
    caption: str = ""
    measured: str = ""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The word for this sort of figure on disk and in the page."""


@final
@dataclasses.dataclass(frozen=True)
class Scale:
    """One direction of a figure: its label, and whether equal ratios have equal lengths."""

    label: str
    log: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Note:
    """A thin line across the figure at one value of x (or of y), with its reason: a jump, a limit, a known score."""

    at: float
    text: str
    along: Literal["x", "y"] = "x"


def numbers(value: Any) -> np.ndarray:
    """A list, tuple or array as an array of real numbers; what is missing is NaN."""
    return np.asarray([] if value is None else value, dtype=np.float64)


def fits(name: str, array: np.ndarray, wanted: tuple[int, ...]) -> None:
    """Rejects an array of another shape."""
    if array.shape != wanted:
        reject(name, array.shape, f"the other parts of the figure ask for {wanted}", "Pass arrays that fit each other.")
