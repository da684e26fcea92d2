"""A matrix in colours, and a stack of matrices that a slider moves through."""

import dataclasses
from typing import final

import numpy as np
from jaxtyping import Float

from continua.runs.figures.figure import AbstractFigure, Scale, fits


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Heat(AbstractFigure):
    """values[panel, frame, row, column] over y = rows and x = columns.

    A reader chooses the panel by its name (such as a head) and moves a slider through the frames (such as depth); one
    of either has no control. Colours have one range for all frames of a panel, even around zero where `diverging`. NaN
    stays empty.
    """

    x: Scale
    y: Scale
    columns: Float[np.ndarray, " columns"]
    rows: Float[np.ndarray, " rows"]
    values: Float[np.ndarray, "panels frames rows columns"]
    value: str
    frames: Float[np.ndarray, " frames"] = dataclasses.field(default_factory=lambda: np.zeros(1))
    slider: str = ""
    panels: tuple[str, ...] = ("",)
    diverging: bool = False

    def __post_init__(self) -> None:
        fits("values", self.values, (len(self.panels), len(self.frames), len(self.rows), len(self.columns)))

    @property
    def kind(self) -> str:
        return "heat"
