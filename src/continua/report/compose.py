"""From run folders to one page: manifests, rows of records and kept sections are read; never a model."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from continua.report.page import Page
from continua.report.scales import format_number, format_tick
from continua.report.sections import LearnerRecord, cards, learner_sections
from continua.runs import Paper, Run, Section, Table, write_whole

_ORDER = ("Results", "Predictions", "Training", "Depth", "Anytime depth", "Tokens", "Attention", "Heads",
          "Optimal control", "Other samplings", "Resolution")  # fmt: skip
"""The order of known headings; others come after them as they are."""
_PLACES = (
    "output",
    "resume",
    "override",
    "config",
    "quiet",
    "json",
    "measure",
    "tensorboard",
    "save_seconds",
    "save_every",
    "keep",
)
"""Options that say where a run is kept and how it is told, and nothing of what is learnt."""


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the page of a run, by default as its `report.html`, of several as `comparison.html` in the first."""
    text = report_page(folders).html()
    path = folders[0] / ("report.html" if len(folders) == 1 else "comparison.html") if out is None else out
    write_whole(path, text.encode(errors="replace"))  # a path may have bytes that are no text
    return path


def report_page(folders: Sequence[Path]) -> Page:
    """The page of one run, or of several side by side."""
    names = _distinct_names([folder.resolve() for folder in folders])
    runs = [_read(folder, name, len(folders) > 1) for folder, name in zip(folders, names, strict=True)]
    learners = [one for run in runs for one in run.learners]
    places = {heading: place for place, heading in enumerate(_ORDER)}
    sections = [*learner_sections(learners), *_differences(runs)]
    sections += [section for run in runs for section in run.sections]
    sections.sort(key=lambda section: places.get(section.heading, len(places)))
    cited = {paper.key: paper for run in runs for paper in run.papers}
    papers = [cited[key] for key in sorted(cited)]
    appendix = [(f"Configuration of {run.name}", _configuration(run.manifest)) for run in runs]
    subtitle = "\n".join([*(line for run in runs for line in _off_lines(run)), *(_origin(run) for run in runs)])
    return Page(_title(runs), subtitle, sections, cards(learners), papers, appendix)


class _RunRecord(NamedTuple):
    """What a folder says."""

    name: str
    folder: Path
    manifest: dict[str, Any]
    learners: Sequence[LearnerRecord]
    sections: Sequence[Section]
    papers: Sequence[Paper]


def _read(folder: Path, name: str, several: bool) -> _RunRecord:
    run = Run.open(folder)
    manifest = run.manifest
    facts, rows = manifest.get("facts", {}), run.records()
    words = list(dict.fromkeys(str(row["model"]) for row in rows if "model" in row))

    def full_name(learner: str) -> str:
        return f"{name} · {learner}" if several and len(words) > 1 else name if several else learner

    def source(section: Section) -> str:
        return full_name(section.source) if section.source else name if several else ""

    learners = [LearnerRecord.of(full_name(word), word, rows, facts) for word in words]
    # files are read by their names; the models of one heading come in the order of the run
    kept, places = run.sections(), {word: place for place, word in enumerate(words)}
    headings = [section.heading for section in kept]
    kept.sort(key=lambda section: (headings.index(section.heading), places.get(section.source, -1)))
    sections = [dataclasses.replace(section, source=source(section)) for section in kept]
    papers = [Paper(**plain) for plain in facts.get("papers", ())]
    return _RunRecord(name, folder, manifest, learners, sections, papers)


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as it takes for the names to differ."""
    for parts in range(1, 6):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({i + 1})" for i, folder in enumerate(folders)]


def _list_names(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _title(runs: Sequence[_RunRecord]) -> str:
    """The data set and its size; of several runs, their names."""
    if len(runs) > 1:
        return _list_names([run.name for run in runs])
    config, task = runs[0].manifest.get("config", {}), runs[0].manifest.get("facts", {}).get("task", {})
    given = config.get("series") or config.get("text")
    name = " ".join(str(word) for word in (config.get("task") or runs[0].name, given and Path(given).name) if word)
    size = _size(task) if isinstance(task, dict) else ""
    return f"{name}: {size}" if size else name


def _size(task: dict[str, Any]) -> str:
    """How much data there is, as its readers count it."""
    if "characters" in task:  # windows overlap, and their number says little
        return f"{task['characters']:,} characters"
    unit = "windows" if "rows in a window" in task else "examples"
    words = {"training examples": f"{unit} to train", "test examples": "to test"}
    return ", ".join(f"{task[key]:,} {word}" for key, word in words.items() if key in task)


def _differences(runs: Sequence[_RunRecord]) -> list[Section]:
    """Options in which runs differ, a column for each run; nothing for one run, or where all agree."""
    configs = [run.manifest.get("config", {}) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config if name not in _PLACES)
    told = {name: tuple(_word(config.get(name)) for config in configs) for name in names}
    rows = tuple((name.replace("_", " "), *words) for name, words in told.items() if len(set(words)) > 1)
    if len(runs) < 2 or not rows:
        return []
    caption = "Options that are the same in all runs are at the end of the page."
    table = Table(title="What differs", caption=caption, columns=("option", *(run.name for run in runs)), rows=rows)
    return [Section("Results", figures=(table,))]


def _word(value: Any) -> str:
    """An option as a reader knows it from the command line."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return format_tick(value)
    return "not given" if value is None else format_number(value)


def _origin(run: _RunRecord) -> str:
    """Where the run is, when it began, how it ended, and with what it was made."""
    manifest, versions = run.manifest, run.manifest.get("versions", {})
    began = str(manifest.get("began", "")).replace("T", " ")[:16]
    seed = manifest.get("config", {}).get("seed")
    used = " ".join(f"{name} {versions[name]}" for name in ("continua", "torch") if name in versions)
    models = _list_names([one.learner for one in run.learners])
    parts = (
        run.folder.resolve().name,
        models,
        began,
        manifest.get("state"),
        None if seed is None else f"seed {seed}",
        used,
    )
    return " · ".join(str(part) for part in parts if part)


def _off_lines(run: _RunRecord) -> list[str]:
    """Of models that are their references alone: it comes first, since no other number says it."""
    told = run.manifest.get("facts", {}).get("off", {})
    names = {one.learner: one.name for one in run.learners}
    return [f"{names.get(name, name)}: {words}." for name, words in told.items()]


def _configuration(manifest: dict[str, Any]) -> str:
    facts = {key: value for key, value in manifest.get("facts", {}).items() if key not in ("hashes", "papers")}
    head = {key: manifest.get(key) for key in ("kind", "state", "began", "ended", "versions", "config")}
    return json.dumps({**head, "facts": facts}, indent=2, ensure_ascii=False)
