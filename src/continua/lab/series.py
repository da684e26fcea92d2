"""Errors of many seeds as one curve."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from continua.runs import Series

Places: TypeAlias = Sequence[int] | Sequence[float] | np.ndarray


def rms_series(name: str, x: Places, squares: np.ndarray, colour: int | None = None) -> Series:
    """Root mean square over seeds, with a band from 10 % to 90 %; `squares` has a row for each x, a column a seed."""
    low, high = np.sqrt(np.quantile(squares, [0.1, 0.9], axis=1))
    return Series.of(name, x, np.sqrt(squares.mean(-1)), low, high, mark="both", colour=colour)
