"""What every experiment is: a claim with its source, cells that measure, and a conclusion."""

import abc
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, final

from continua.core.intervals import Interval
from continua.lab.cells import AbstractCell, Row, Shelf
from continua.lab.engines import AbstractEngine, Local
from continua.lab.sweep import Progress, silent, swept
from continua.lab.verdicts import Judgement, Word
from continua.runs import AbstractFigure, Section, Table, Verdict

OVERFLOW = 1e300
"""What stands, in rows and numbers, for all that is as large or larger."""

Numbers: TypeAlias = Mapping[str, Any]
"""Names and plain numbers, intervals, or lists of them."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Findings:
    """What came out: the rows of the cells, figures, the numbers beside what bounds them, and the judgement."""

    rows: Sequence[Row]
    figures: tuple[AbstractFigure, ...]
    measured: Numbers
    bound: Numbers
    judgement: Judgement


class AbstractExperiment(abc.ABC):
    """A claim that is measured. The fields of an experiment are its sizes.

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
    def run(self, progress: Progress = silent, engine: AbstractEngine = Local(1), shelf: Shelf = Shelf()) -> Findings:
        """Measures what is not on the shelf yet, and concludes."""
        return self.conclude(swept(self.name, self.cells(), engine, shelf, progress))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Finished:
    """An experiment with its findings and the seconds that it took this time."""

    experiment: AbstractExperiment
    findings: Findings
    seconds: float

    @classmethod
    def of(cls, experiment: AbstractExperiment, progress: Progress, engine: AbstractEngine, shelf: Shelf) -> "Finished":
        """Runs it by the clock."""
        began = time.perf_counter()
        return cls(experiment, experiment.run(progress, engine, shelf), time.perf_counter() - began)

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
        again = f"Measured in float64 with fixed seeds, {self.seconds:.1f} s. Again: {command}"
        names = dict.fromkeys((*found.measured, *found.bound))
        rows = tuple((name, _shown(found.measured.get(name)), _shown(found.bound.get(name))) for name in names)
        numbers = Table(title="numbers", columns=("quantity", "measured", "claimed"), rows=rows)
        told = tuple((one.reason, one.word.value) for one in judgement.parts)
        criteria = Table(title="criteria", columns=("criterion", "verdict"), rows=told)
        met = sum(one.word is Word.HOLDS for one in judgement.parts)
        holds = {Word.HOLDS: True, Word.FAILS: False}.get(judgement.word)
        text = f"{met} of {len(told)} criteria are met." + ("" if holds is not None else " Inconclusive.")
        prose = (f"{claim[0].upper()}{claim[1:]}.", f"Source: {self.experiment.source}.", again)
        figures = (*found.figures, numbers, criteria)
        return Section(self.experiment.name, prose, self.experiment.formula, figures, Verdict(text, holds))


def plain(value: Any) -> Any:
    """Numbers as JSON has them: an interval is an object of three numbers."""
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high}
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    return value


def _shown(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < OVERFLOW else "overflow"
    if isinstance(value, list | tuple) and not isinstance(value, Interval):
        return ", ".join(str(_shown(v)) for v in value)
    return str(value)
