"""What every experiment is: a claim with its source, cells that measure, and a conclusion."""

import abc
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, dataclass_transform, final

import numpy as np

from continua.lab.intervals import Interval
from continua.lab.sweep import AbstractCell, AbstractEngine, CellStore, LocalProcesses, Progress, Row, silent, sweep
from continua.lab.verdicts import Judgement, Word
from continua.runs import AbstractFigure, Curve, Lines, Scale, Section, Table, Verdict

OVERFLOW = 1e300
"""What stands, in rows and numbers, for all that is as large or larger."""

Numbers: TypeAlias = Mapping[str, Any]
"""Names and plain numbers, intervals, limits, or lists of them."""


class AtMost(NamedTuple):
    """The claim that a number is no larger than this one."""

    limit: float


class Findings(NamedTuple):
    """What came out: figures, the numbers beside what bounds them, and the judgement."""

    figures: tuple[AbstractFigure, ...]
    measured: Numbers
    bound: Numbers
    judgement: Judgement


@dataclass_transform(frozen_default=True)
class AbstractExperiment(abc.ABC):
    """A claim that is measured. The fields of an experiment, a frozen dataclass by itself, are its sizes.

    Cells are independent and plain, so that they run in other processes and their results are kept one by one;
    `conclude` sees their rows only, in the order of the cells.
    """

    name: ClassVar[str]
    """The word for it on the command line."""
    claim: ClassVar[str]
    """What is claimed, in one sentence."""
    formula: ClassVar[str]
    """The claim as a formula."""
    source: ClassVar[str]
    """Who claims it."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    @abc.abstractmethod
    def quick(self) -> "AbstractExperiment":
        """The same experiment at a size of seconds."""

    @abc.abstractmethod
    def cells(self) -> Sequence[AbstractCell]:
        """What is to be measured."""

    @abc.abstractmethod
    def conclude(self, rows: Sequence[Row]) -> Findings:
        """From the rows of the cells to the judgement."""

    @final
    def run(
        self,
        progress: Progress = silent,
        engine: AbstractEngine = LocalProcesses(1),
        store: CellStore = CellStore(),
    ) -> Findings:
        """Measures what is not in the store yet, and concludes."""
        return self.conclude(sweep(self.name, self.cells(), engine, store, progress))


class ExperimentResult(NamedTuple):
    """An experiment with its findings and the seconds that it took this time."""

    experiment: AbstractExperiment
    findings: Findings
    seconds: float

    @classmethod
    def measure(
        cls, experiment: AbstractExperiment, progress: Progress, engine: AbstractEngine, store: CellStore
    ) -> "ExperimentResult":
        """Runs it by the clock."""
        began = time.perf_counter()
        return cls(experiment, experiment.run(progress, engine, store), time.perf_counter() - began)

    def record(self) -> dict[str, Any]:
        """One JSON object; the reason of the verdict is among what was measured."""
        found = self.findings
        return {
            "experiment": self.experiment.name,
            "claim": self.experiment.claim,
            "source": self.experiment.source,
            "measured": plain({**found.measured, "reason": found.judgement.reason}),
            "bound": plain(found.bound),
            "verdict": found.judgement.word.value,
            "seconds": round(self.seconds, 3),
        }

    def section(self, command: str) -> Section:
        """The part of a report: claim, formula, figures, numbers, criteria, verdict, and how to measure it again."""
        found, judgement = self.findings, self.findings.judgement
        claim = self.experiment.claim
        again = f"Measured with fixed seeds in {self.seconds:.1f} s. Again: {command}"
        names = dict.fromkeys((*found.measured, *found.bound))
        rows = tuple((name, _format(found.measured.get(name)), _format(found.bound.get(name))) for name in names)
        numbers = Table(title="numbers", columns=("quantity", "measured", "claimed"), rows=rows)
        parts = tuple((one.reason, one.word.value) for one in judgement.parts)
        criteria = Table(title="criteria", columns=("criterion", "verdict"), rows=parts)
        met = sum(one.word is Word.HOLDS for one in judgement.parts)
        holds = {Word.HOLDS: True, Word.FAILS: False}.get(judgement.word)
        text = f"{met} of {len(parts)} criteria are met." + ("" if holds is not None else " Inconclusive.")
        prose = (f"{claim[0].upper()}{claim[1:]}.", f"Source: {self.experiment.source}.", again)
        figures = (*found.figures, numbers, criteria)
        return Section(self.experiment.name, prose, self.experiment.formula, figures, Verdict(text, holds))


def plain(value: Any) -> Any:
    """Numbers as JSON has them: an interval is an object of three numbers, a limit an object of one."""
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high}
    if isinstance(value, AtMost):
        return {"at_most": value.limit}
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    return value


def _format(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < OVERFLOW else "overflow"
    if isinstance(value, AtMost):
        return f"at most {_format(value.limit)}"
    if isinstance(value, list | tuple) and not isinstance(value, Interval):
        return ", ".join(str(_format(v)) for v in value)
    return str(value)


def curves(title: str, x: str, y: str, series: Iterable[Curve], log: str = "", **words: Any) -> Lines:
    """Curves over the axes x and y, those in `log` with equal ratios; `words` are caption, what was measured, notes."""
    return Lines(title=title, x=Scale(x, "x" in log), y=Scale(y, "y" in log), curves=tuple(series), **words)


def rms_series(
    name: str, x: Sequence[int] | Sequence[float] | np.ndarray, squares: np.ndarray, colour: int | None = None
) -> Curve:
    """Root mean square over seeds, with a band from 10 % to 90 %; `squares` has a row per x, a column per seed."""
    low, high = np.sqrt(np.quantile(squares, [0.1, 0.9], axis=1))
    return Curve.of(name, x, np.sqrt(squares.mean(-1)), low, high, mark="both", colour=colour)
