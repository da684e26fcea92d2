"""Sweeps: cells that measure, the store that keeps their rows, and the engines that run them."""

import abc
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, dataclass_transform, final

import torch

import continua
from continua.core.checks import at_least
from continua.core.extras import extra
from continua.runs import write_whole

Row: TypeAlias = Mapping[str, Any]
"""Plain data: what one cell measured."""
Progress: TypeAlias = Callable[[str, int, int], None]
"""Receives the name of the experiment, how many cells are done, and of how many."""


@dataclass_transform(frozen_default=True)
class AbstractCell(abc.ABC):
    """One measurement, given by its fields (plain numbers) alone: the same fields give the same row.

    A class of cells is a frozen dataclass by itself.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    @abc.abstractmethod
    def measure(self) -> Row:
        """Measures; plain data, as JSON can hold it."""

    @final
    def key(self) -> str:
        """A name that changes with the fields and with any line of the package."""
        fields = json.dumps(dataclasses.asdict(self), sort_keys=True)  # pyright: ignore[reportArgumentType]
        content = f"{type(self).__qualname__}{fields}{code_digest()}"
        return f"{type(self).__name__.lower()}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@functools.cache
def code_digest() -> str:
    """A digest of every source file of the package: results of other code are not taken up again."""
    total = hashlib.sha256()
    # All files, not those of the lab alone: a change of a solver or an operator changes what a cell measures.
    for root in continua.__path__:
        for path in sorted(Path(root).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()


@final
@dataclasses.dataclass(frozen=True)
class CellStore:
    """Rows in a folder, one file per cell, each there whole or not at all; without a folder nothing is kept."""

    folder: Path | None = None

    def read(self, cell: AbstractCell) -> Row | None:
        """The row of a cell that was measured before; a damaged file is as good as none."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / f"{cell.key()}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def write(self, cell: AbstractCell, row: Row) -> None:
        """Keeps a row."""
        if self.folder is not None:
            write_whole(self.folder / f"{cell.key()}.json", json.dumps(dict(row)).encode())

    def count(self, cells: Sequence[AbstractCell]) -> int:
        """How many of the cells are here, measured by this very code."""
        return sum(self.read(cell) is not None for cell in cells)


class AbstractEngine(abc.ABC):
    """Runs independent cells and yields each row, with the place of its cell, as soon as it is there."""

    @abc.abstractmethod
    def rows(self, cells: Sequence[AbstractCell]) -> Iterator[tuple[int, Row]]:
        """The rows in whatever order they are ready."""


@final
@dataclasses.dataclass(frozen=True)
class LocalProcesses(AbstractEngine):
    """Processes on this machine, one thread each (`None`: as many as there are cores); a single one is this one."""

    processes: int | None = None

    def __post_init__(self) -> None:
        at_least(1, processes=self.processes)

    def rows(self, cells: Sequence[AbstractCell]) -> Iterator[tuple[int, Row]]:
        count = min(self.processes or os.cpu_count() or 1, len(cells))
        if count <= 1:
            for place, cell in enumerate(cells):
                yield place, measure_cell(cell)
            return
        # Fresh processes: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(count, context) as pool:
            waiting = {pool.submit(measure_cell, cell): place for place, cell in enumerate(cells)}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield waiting[done], done.result()
            finally:
                # After an error or an interrupt `with` alone would first run every cell that still waits.
                pool.shutdown(wait=True, cancel_futures=True)


@final
@dataclasses.dataclass(frozen=True)
class Ray(AbstractEngine):
    """A Ray cluster: the one at `address`, the one that RAY_ADDRESS names, or a new one on this machine."""

    address: str | None = None

    def rows(self, cells: Sequence[AbstractCell]) -> Iterator[tuple[int, Row]]:
        ray = extra("ray", "scale")
        if not ray.is_initialized():
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False)
        remote = ray.remote(measure_cell)
        waiting = {remote.remote(cell): place for place, cell in enumerate(cells)}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(ready), ray.get(ready)


def measure_cell(cell: AbstractCell) -> Row:
    """The row of one cell, on one thread: tensors this small are slower on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cell.measure()
    finally:
        torch.set_num_threads(threads)


def silent(name: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def sweep(
    name: str, cells: Sequence[AbstractCell], engine: AbstractEngine, store: CellStore, progress: Progress
) -> list[Row]:
    """The rows of all cells, in their order. Each is kept as soon as it is there: a killed sweep goes on from it."""
    rows = [store.read(cell) for cell in cells]
    missing = [place for place, row in enumerate(rows) if row is None]
    done = len(cells) - len(missing)
    progress(name, done, len(cells))
    # No engine is asked for nothing: Ray would start a cluster for it.
    for index, row in engine.rows([cells[place] for place in missing]) if missing else ():
        place = missing[index]
        store.write(cells[place], row)
        rows[place] = row
        done += 1
        progress(name, done, len(cells))
    return [row for row in rows if row is not None]
