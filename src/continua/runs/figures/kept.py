"""Sections in a run folder: `figures/NAME.json`, and `arrays/figure-NAME.safetensors` where arrays are large."""

import json
import re
from pathlib import Path

import numpy as np
import torch

from continua.core.errors import reject
from continua.runs.figures.plain import figure_or_section, to_plain
from continua.runs.figures.section import Section
from continua.runs.folder import Run


def keep_section(run: Run, name: str, section: Section) -> Path:
    """Writes a section; one of the same name gives way. Reports show sections in the order of their names."""
    if not re.fullmatch(r"[\w.-]+", name):
        reject("name", name, "it becomes the name of a file", "Use letters, digits, points, dashes and underscores.")
    apart: dict[str, np.ndarray] = {}
    plain = to_plain(section, apart)
    if apart:
        run.keep_arrays(f"figure-{name}", {key: torch.from_numpy(value) for key, value in apart.items()})
    return run.keep_figure(name, plain)


def kept_sections(run: Run) -> list[Section]:
    """All sections of a run; a damaged file is refused by its name, one without a `kind` is for other readers."""
    found = (_read(run, path) for path in sorted((run.folder / "figures").glob("*.json")))
    return [section for section in found if section is not None]


def _read(run: Run, path: Path) -> Section | None:
    name = f"figure-{path.stem}"
    try:
        plain = json.loads(path.read_bytes())
        if isinstance(plain, dict) and "kind" not in plain:
            return None
        apart = run.arrays(name) if (run.folder / "arrays" / f"{name}.safetensors").is_file() else {}
        return figure_or_section(plain, {key: value.numpy() for key, value in apart.items()})
    except ValueError as error:
        cure = "Measure it again, or remove the file: the rest of the report does not need it."
        reject("figure", str(path), f"it cannot be read ({error})", cure)
