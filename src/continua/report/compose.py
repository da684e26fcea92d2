"""From run folders to one page."""

import json
from collections.abc import Sequence
from pathlib import Path

from continua.report.curves import training_section
from continua.report.page import Page
from continua.report.reading import ReadRun, read_runs
from continua.report.results import anytime_section, cards, samplings_section, summary_section
from continua.runs import Reference, write_whole

_ORDER = (
    "Results",
    "Predictions",
    "Training",
    "Depth",
    "Anytime depth",
    "Tokens",
    "Attention",
    "Heads",
    "Optimal control",
    "Resolution",
)
"""The order of known headings; others come after them as they are."""


def report_page(folders: Sequence[Path]) -> Page:
    """The page of one run, or of several side by side."""
    runs = read_runs(folders)
    learned = [one for run in runs for one in run.learned]
    made = (summary_section, training_section, anytime_section, samplings_section)
    own = [section for make in made if (section := make(learned)) is not None]
    sections = sorted([*own, *(section for run in runs for section in run.sections)], key=lambda s: _place(s.heading))
    return Page(_title(runs), _subtitle(runs), sections, cards(learned), _references(runs), _appendix(runs))


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the page of some runs, by default as `report.html` in the first of them; returns where it is."""
    text = report_page(folders).html()
    path = folders[0] / "report.html" if out is None else out
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path


def _place(heading: str) -> int:
    return _ORDER.index(heading) if heading in _ORDER else len(_ORDER)


def _title(runs: Sequence[ReadRun]) -> str:
    if len(runs) > 1:
        return " and ".join([", ".join(run.name for run in runs[:-1]), runs[-1].name])
    config = runs[0].manifest.get("config", {})
    learners = " and ".join(one.learner for one in runs[0].learned)
    return ": ".join(str(word) for word in (config.get("task") or runs[0].name, learners) if word)


def _subtitle(runs: Sequence[ReadRun]) -> str:
    def told(run: ReadRun) -> str:
        manifest = run.manifest
        versions = manifest.get("versions", {})
        began = str(manifest.get("began", "")).replace("T", " ")[:16]
        parts = (
            run.folder.resolve().name,
            began,
            manifest.get("state"),
            f"seed {manifest.get('config', {}).get('seed')}",
        )
        used = " ".join(f"{name} {versions[name]}" for name in ("continua", "torch") if name in versions)
        return " · ".join(str(part) for part in (*parts, used) if part and part != "seed None")

    return "\n".join(told(run) for run in runs)


def _references(runs: Sequence[ReadRun]) -> list[Reference]:
    found = {reference.key: reference for run in runs for reference in run.references}
    return sorted(found.values(), key=lambda reference: reference.key)


def _appendix(runs: Sequence[ReadRun]) -> list[tuple[str, str]]:
    folded = []
    for run in runs:
        facts = {
            key: value for key, value in run.manifest.get("facts", {}).items() if key not in ("hashes", "references")
        }
        shown = {
            **{key: run.manifest.get(key) for key in ("kind", "state", "began", "ended", "versions", "config")},
            "facts": facts,
        }
        folded.append((f"Configuration of {run.name}", json.dumps(shown, indent=2, ensure_ascii=False)))
    return folded
