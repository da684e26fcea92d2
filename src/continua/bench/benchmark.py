"""What every benchmark is: a claim about cost, and the run that measures it."""

import abc
import dataclasses
from typing import TypeAlias

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
class Outcome:
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
    def run(self) -> Outcome:
        """Measures."""
