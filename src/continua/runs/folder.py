"""A run is a folder: what was asked for, what happened, and what is needed to go on."""

import dataclasses
import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from continua.core.errors import reject
from continua.runs import storage
from continua.runs.figures import AbstractFigure, Section, finite, from_plain, to_plain


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """One run on disk.

    | file | what it holds |
    |---|---|
    | `manifest.json` | kind, config, seed, versions, facts; written whole each time it changes |
    | `records.jsonl` | rows, only ever appended: each is a JSON object with its `kind` |
    | `figures/NAME.json` | sections of the report as plain data, to be drawn by `report` |
    | `arrays/NAME.safetensors` | numbers that figures need, where they are many |
    | `checkpoints/UPDATE/` | what is needed to go on |
    | `models/NAME/` | trained models, as `continua.save` writes them |
    """

    folder: Path

    @classmethod
    def begin(cls, folder: Path, kind: str, config: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> "Run":
        """A new run; a folder that holds one already is left alone."""
        cls.check_free(folder)
        run = cls(folder)
        versions = {"python": platform.python_version(), "platform": sys.platform}
        versions |= {package: version(package) for package in ("continua", "torch", "numpy")}
        head = {"format": storage.FORMAT, "kind": kind, "began": _now(), "state": "running", "versions": versions}
        run._write_manifest({**head, "config": dict(config), "facts": dict(facts or {})})
        return run

    @staticmethod
    def check_free(folder: Path) -> None:
        """Refuses a folder that holds a run, or that cannot be written to; nothing is made."""
        if (folder / "manifest.json").exists():
            resume = f"`continua train --resume {shlex.quote(str(folder))}`"
            cure = f"Choose another folder, or go on with this run: {resume}."
            reject("folder", str(folder), "there is a run in it already", cure)
        storage.check_writable("folder", folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run in a folder."""
        cure = "Pass the folder of a run, one with a manifest.json."
        if not folder.is_dir():
            near = Path("runs") / folder
            cure = f"Did you mean {near}?" if (near / "manifest.json").is_file() else cure
            reject("run", str(folder), "this is a file" if folder.exists() else "there is no such folder", cure)
        if not (folder / "manifest.json").is_file():
            reject("run", str(folder), "there is no manifest.json in it", cure)
        run = cls(folder)
        if not isinstance(run.manifest, dict) or run.manifest.get("format") != storage.FORMAT:
            reject("run", str(folder), f"its manifest is not of format {storage.FORMAT}", cure)
        return run

    @property
    def manifest(self) -> dict[str, Any]:
        """What was asked for, and under which versions."""
        try:
            return json.loads((self.folder / "manifest.json").read_bytes())
        except ValueError:
            reject("run", str(self.folder), "manifest.json is damaged", "Copy the folder again.")

    def note(self, **facts: Any) -> None:
        """Adds facts to the manifest, or changes them."""
        manifest = self.manifest
        manifest["facts"] = {**manifest["facts"], **facts}
        self._write_manifest(manifest)

    def go_on(self) -> None:
        """Says that the run is running again; how it ended before no longer counts."""
        manifest = {key: value for key, value in self.manifest.items() if key != "ended"}
        self._write_manifest({**manifest, "state": "running"})

    def end(self, state: str) -> None:
        """Says how the run ended: `finished`, `interrupted` or `failed`."""
        self._write_manifest({**self.manifest, "state": state, "ended": _now()})

    def record(self, kind: str, **row: Any) -> None:
        """Appends a row; numbers that are not finite become null, as JSON has no word for them."""
        line = json.dumps(finite({"kind": kind, **row}), allow_nan=False)
        with (self.folder / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The rows, all or those of one kind."""
        return [row for row in read_records(self.folder / "records.jsonl") if kind in (None, row["kind"])]

    def forget(self, after: int) -> None:
        """Drops the rows of updates later than a checkpoint, which will be made again, and a half-written last line."""
        rows = [row for row in self.records() if row.get("update", 0) <= after]
        storage.write_whole(self.folder / "records.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())

    def keep_arrays(self, name: str, arrays: Mapping[str, Tensor]) -> Path:
        """Writes `arrays/NAME.safetensors` and notes its hash."""
        content = safetensors.torch.save({key: value.detach().cpu().contiguous() for key, value in arrays.items()})
        path = self.folder / "arrays" / f"{name}.safetensors"
        storage.write_whole(path, content)
        self.note(hashes={**self.manifest["facts"].get("hashes", {}), f"arrays/{name}": storage.digest(content)})
        return path

    def arrays(self, name: str) -> dict[str, Tensor]:
        """The arrays of that name."""
        path = self.folder / "arrays" / f"{name}.safetensors"
        content = path.read_bytes()
        if storage.digest(content) != self.manifest["facts"].get("hashes", {}).get(f"arrays/{name}"):
            reject("name", name, "the file does not match its hash: it is damaged", "Copy the folder again.")
        return safetensors.torch.load(content)

    def keep_section(self, name: str, section: Section | AbstractFigure) -> Path:
        """Writes `figures/NAME.json`, and `arrays/figure-NAME.safetensors` where arrays are large.

        A section of the same name gives way. Reports show sections in the order of their names.
        """
        if not re.fullmatch(r"[\w.-]+", name):
            cure = "Use letters, digits, points, dashes and underscores."
            reject("name", name, "it becomes the name of a file", cure)
        apart: dict[str, np.ndarray] = {}
        plain = to_plain(section, apart)
        if apart:
            self.keep_arrays(f"figure-{name}", {key: torch.from_numpy(value) for key, value in apart.items()})
        path = self.folder / "figures" / f"{name}.json"
        storage.write_whole(path, json.dumps(plain, allow_nan=False).encode())
        return path

    def sections(self) -> list[Section]:
        """All sections of the run; a damaged file is refused by its name, one without a `kind` is for other readers."""
        found = (self._read_section(path) for path in sorted((self.folder / "figures").glob("*.json")))
        return [section for section in found if section is not None]

    def _read_section(self, path: Path) -> Section | None:
        name = f"figure-{path.stem}"
        try:
            plain = json.loads(path.read_bytes())
            if isinstance(plain, dict) and "kind" not in plain:
                return None
            apart = self.arrays(name) if (self.folder / "arrays" / f"{name}.safetensors").is_file() else {}
            thing = from_plain(plain, {key: value.numpy() for key, value in apart.items()})
            section = Section(thing.title, figures=(thing,)) if isinstance(thing, AbstractFigure) else thing
            if not isinstance(section, Section):
                reject("kind", plain["kind"], "this is neither a section nor a figure", "Keep a Section, Lines, ...")
            return section
        except (ValueError, TypeError, KeyError) as error:
            cure = "Measure it again, or remove the file: the rest of the report does not need it."
            reject("figure", str(path), f"it cannot be read ({error})", cure)

    def model_folder(self, name: str) -> Path:
        """Where a trained model of the run is kept."""
        return self.folder / "models" / name

    def keep_checkpoint(self, update: int, state: dict[str, Any]) -> Path:
        """Writes a checkpoint; the two latest are kept."""
        return storage.write_checkpoint(self.folder / "checkpoints", update, state)

    def last_checkpoint(self) -> dict[str, Any] | None:
        """The latest checkpoint that is whole, or nothing; a damaged one gives way to the one before it."""
        found = storage.checkpoints(self.folder / "checkpoints")
        for path in reversed(found):
            try:
                return storage.read_checkpoint(path)
            except ValueError:
                if path == found[0]:
                    raise
        return None

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        storage.write_whole(self.folder / "manifest.json", json.dumps(finite(dict(manifest)), indent=1).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The rows of a records file; a last line that a killed process left half written is passed over."""
    if not path.exists():
        return []
    cure = "Remove the line (the rest can be read), or train again from the last checkpoint."
    rows = []
    # A whole row ends in a line break, so what follows the last one is empty or torn.
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            reject(f"{path}, line {number}", line[:60], "this is no JSON: the file is damaged", cure)
    return rows
