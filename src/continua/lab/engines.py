"""Engines run the cells of a sweep: in this process, in several on this machine, or on a Ray cluster."""

import abc
import concurrent.futures
import dataclasses
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import final

import torch

from continua.core.errors import reject
from continua.core.extras import extra
from continua.lab.cells import AbstractCell, Row


class AbstractEngine(abc.ABC):
    """Runs independent cells and yields each row, with the place of its cell, as soon as it is there."""

    @abc.abstractmethod
    def rows(self, cells: Sequence[AbstractCell]) -> Iterator[tuple[int, Row]]:
        """The rows in whatever order they are ready."""


@final
@dataclasses.dataclass(frozen=True)
class Local(AbstractEngine):
    """Processes on this machine, one thread each (`None`: as many as there are cores); a single one is this one."""

    processes: int | None = None

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            reject("processes", self.processes, "a sweep needs one process", "Pass 1 or more, or nothing.")

    def rows(self, cells: Sequence[AbstractCell]) -> Iterator[tuple[int, Row]]:
        count = min(self.processes or os.cpu_count() or 1, len(cells))
        if count <= 1:
            for place, cell in enumerate(cells):
                yield place, measured(cell)
            return
        # Fresh processes: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(count, context) as pool:
            waiting = {pool.submit(measured, cell): place for place, cell in enumerate(cells)}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield waiting[done], done.result()
            finally:
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
        remote = ray.remote(measured)
        waiting = {remote.remote(cell): place for place, cell in enumerate(cells)}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(ready), ray.get(ready)


def measured(cell: AbstractCell) -> Row:
    """The row of one cell, on one thread: tensors this small are slower on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cell.measure()
    finally:
        torch.set_num_threads(threads)
