"""A sweep: all cells of an experiment, those that were measured before taken from the shelf."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from continua.lab.cells import AbstractCell, Row, Shelf
from continua.lab.engines import AbstractEngine

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told the name of the experiment, how many cells are done, and of how many."""


def silent(name: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def swept(
    name: str, cells: Sequence[AbstractCell], engine: AbstractEngine, shelf: Shelf, progress: Progress
) -> list[Row]:
    """The rows of all cells, in their order. Each is kept as soon as it is there: a killed sweep goes on from it."""
    rows = [shelf.read(cell) for cell in cells]
    missing = [place for place, row in enumerate(rows) if row is None]
    done = len(cells) - len(missing)
    progress(name, done, len(cells))
    for index, row in engine.rows([cells[place] for place in missing]) if missing else ():
        place = missing[index]
        shelf.write(cells[place], row)
        rows[place] = row
        done += 1
        progress(name, done, len(cells))
    return [row for row in rows if row is not None]


def measured(cells: Sequence[AbstractCell], shelf: Shelf) -> int:
    """How many of the cells are on the shelf, measured by this very code."""
    return sum(shelf.read(cell) is not None for cell in cells)
