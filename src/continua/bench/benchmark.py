"""What every benchmark is: a claim about cost, times that can be compared, and what is written down."""

import abc
import dataclasses
import gc
import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, final

import torch

from continua.core.version import __version__

Case: TypeAlias = Callable[[], object]
"""What is timed."""
Row: TypeAlias = dict[str, str | int | float]
"""One measurement: what was measured, and the numbers."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One cost divided by another, taken in the same run; `limit` is the most that the claim allows."""

    name: str
    value: float
    limit: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim is met; a ratio without a limit is for information."""
        return self.limit is None or self.value <= self.limit


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """The measurements of one run and the ratios that follow from them."""

    rows: tuple[Row, ...]
    ratios: tuple[Ratio, ...]


class AbstractBenchmark(abc.ABC):
    """A claim about cost. The fields of a benchmark are its sizes; `quick` has small ones, to see that it runs.

    A time alone means little on a busy machine: each claim is a ratio, and both of its sides run in turn.
    """

    threads: int
    """How many threads torch may use."""

    @property
    @abc.abstractmethod
    def claim(self) -> str:
        """What is claimed, in one sentence."""

    @abc.abstractmethod
    def quick(self) -> "AbstractBenchmark":
        """The same benchmark at a size of seconds; its ratios say nothing about the claim."""

    @abc.abstractmethod
    def measure(self) -> BenchResult:
        """Measures, with torch on as many threads as are allowed."""

    @final
    def run(self) -> BenchResult:
        """Measures, and gives torch the threads back that it had before, after a failure too."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return self.measure()
        finally:
            torch.set_num_threads(before)


def time_in_turn(
    cases: Mapping[str, Case], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each case in each round, after a first round that is not counted; all cases run in every round.

    Every other round runs backwards, so that no case always follows the same one. Work of milliseconds on one thread is
    better counted by `time.process_time`: on a busy machine the wall clock favours what fits into one slice of time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        order = list(cases)[:: 1 if repetition % 2 else -1]
        gc.collect()  # what a round left behind would be collected within some case, and counted there
        for name in order:
            start = clock()
            cases[name]()
            if repetition > 0:
                seconds[name].append(clock() - start)
    return seconds


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of ours / theirs: a load that lasts as long as a round cancels."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def sum_rounds(seconds: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    """Seconds of several cases together, round by round."""
    return [sum(times) for times in zip(*(seconds[name] for name in names), strict=True)]


def write_result(
    folder: Path, name: str, command: Sequence[str], benchmark: AbstractBenchmark, result: BenchResult
) -> Path:
    """Writes `folder/name.json` and returns its path."""
    assert dataclasses.is_dataclass(benchmark), "the fields of a benchmark are its sizes"
    ratios = [dataclasses.asdict(ratio) | {"holds": ratio.holds} for ratio in result.ratios]
    record = {
        "benchmark": name,
        "claim": benchmark.claim,
        "command": " ".join(command),
        "ratios": ratios,
        "rows": result.rows,
        "settings": dataclasses.asdict(benchmark),
        "threads": benchmark.threads,
        "versions": {"python": platform.python_version(), "continua": __version__} | _versions("torch", "torchdiffeq"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found
