"""Run folders as the report reads them: manifest, rows of records, kept sections; never a model."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from continua.core.errors import reject
from continua.runs import Reference, Run, Section


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """What the records say of one learner of one run, under a name that no other in the report has."""

    name: str
    learner: str
    parameters: int | None
    updates: Sequence[dict[str, Any]]
    evaluations: Sequence[dict[str, Any]]
    test: dict[str, Any]
    optimiser: str | None = None
    validated: str = ""
    """What its validation readings are of, where they are of no samples of their own."""

    def column(self, rows: Sequence[dict[str, Any]], key: str) -> np.ndarray:
        """One number of every row, NaN where a row has none."""
        found = (row.get(key) for row in rows)
        return np.array([x if isinstance(x, int | float) else np.nan for x in found], dtype=np.float64)

    def spent(self, rows: Sequence[dict[str, Any]]) -> np.ndarray:
        """Seconds that this learner's own updates had taken at the update of every row; learners take turns."""
        done, seconds = self.column(self.updates, "update"), np.nancumsum(self.column(self.updates, "seconds"))
        asked = self.column(rows, "update")
        return np.interp(asked, done, seconds) if len(done) else np.full_like(asked, np.nan)

    @property
    def seconds(self) -> float:
        """Training time: what its own updates took, without evaluations and without the turns of other learners."""
        return float(np.nansum(self.column(self.updates, "seconds")))

    @property
    def measures(self) -> list[str]:
        """The names of what was measured on the validation split, the loss first."""
        return list(dict.fromkeys(name for row in self.evaluations for name in row.get("measures", {})))

    def measured(self, name: str) -> np.ndarray:
        """One measure of every evaluation."""
        return self.column([row.get("measures", {}) for row in self.evaluations], name)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ReadRun:
    """One run, read."""

    name: str
    folder: Path
    manifest: dict[str, Any]
    learned: Sequence[Learned]
    sections: Sequence[Section]
    references: Sequence[Reference]


def read_runs(folders: Sequence[Path]) -> list[ReadRun]:
    """All runs, with names that tell them apart."""
    if not folders:
        reject("runs", [], "there is nothing to report", "Name the folder of at least one run.")
    names = _told_apart([folder.resolve() for folder in folders])
    return [_read(folder, name, len(folders) > 1) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Path, name: str, several: bool) -> ReadRun:
    run = Run.open(folder)
    manifest = run.manifest
    for key in ("config", "facts", "versions"):
        if not isinstance(manifest.get(key, {}), dict):
            reject(f"manifest.{key}", manifest[key], f"{folder / 'manifest.json'} is damaged", "Copy the folder again.")
    facts = manifest.get("facts", {})
    task = facts.get("task", {})
    validated = str(task.get("validation", "")) if isinstance(task, dict) else ""
    rows = run.records()
    learners = list(dict.fromkeys(str(row["learner"]) for row in rows if "learner" in row))

    def titled(learner: str) -> str:
        return f"{name} · {learner}" if several and len(learners) > 1 else name if several else learner

    def learned(learner: str) -> Learned:
        own = [row for row in rows if row.get("learner") == learner]
        by_kind = {kind: [row for row in own if row["kind"] == kind] for kind in ("update", "evaluation", "test")}
        size = facts.get("parameters", {}).get(learner)
        test = by_kind["test"][-1] if by_kind["test"] else {}
        told = (test, facts.get("optimisers", {}).get(learner), validated)
        return Learned(titled(learner), learner, size, by_kind["update"], by_kind["evaluation"], *told)

    def placed(section: Section) -> Section:
        source = titled(section.source) if section.source else name if several else ""
        return dataclasses.replace(section, source=source)

    sections = [placed(section) for section in run.sections()]
    references = [Reference.of(plain) for plain in facts.get("references", ())]
    return ReadRun(name, folder, manifest, [learned(learner) for learner in learners], sections, references)


def borrowed_validation(learned: Sequence[Learned]) -> tuple[str, ...]:
    """One sentence for each kind of samples that validation borrows: a reader must not take it for an unseen split."""
    sources = dict.fromkeys(one.validated for one in learned if one.evaluations and one.validated)

    def told(source: str) -> str:
        those = [one.name for one in learned if one.validated == source]
        whose = "" if len(those) == len(learned) else f" of {', '.join(those)}"
        return f"Validation{whose} reads {source}: this task keeps none apart for it. Training chooses nothing by them."

    return tuple(told(source) for source in sources)


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as it takes for the names to differ."""
    for parts in range(1, 6):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({i + 1})" for i, folder in enumerate(folders)]
