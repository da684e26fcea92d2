"""A run is a folder: what was asked for, what happened, and what is needed to go on."""

import dataclasses
import json
import platform
import re
import shlex
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from continua.core.errors import DamageWarning, reject
from continua.core.version import __version__
from continua.runs import storage
from continua.runs.checkpoints import Checkpoint, checkpoints, read_checkpoint, write_checkpoint
from continua.runs.figures import AbstractFigure, Section, finite, from_plain, to_plain


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """One run on disk.

    | file | what it holds |
    |---|---|
    | `manifest.json` | kind, config, seed, versions, facts, and a hash of it all; written whole each time it changes |
    | `records.jsonl` | rows, only ever appended: each is a JSON object with its `kind` |
    | `figures/NAME.json` | sections of the report as plain data, to be drawn by `report` |
    | `arrays/NAME.safetensors` | numbers that figures need, where they are many |
    | `checkpoints/UPDATE/` | what is needed to go on: state, models as `continua.save` writes them, hashes of all |
    | `models/NAME/` | the models that the run ends with |
    """

    folder: Path

    @classmethod
    def begin(cls, folder: Path, kind: str, config: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> "Run":
        """A new run; a folder that holds one already, or anything else, is left alone."""
        cls.check_free(folder)
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder)
        with run.lock():
            cls.check_free(folder)  # nobody else has begun since
            head = {"format": storage.FORMAT, "kind": kind, "began": _now(), "state": "running"}
            head |= {"versions": present_versions(), "config": dict(config), "facts": dict(facts or {})}
            run._write_manifest(head)
        return run

    @staticmethod
    def check_free(folder: Path) -> None:
        """Refuses a folder that holds a run or something else, or that cannot be written to; nothing is made."""
        if (folder / "manifest.json").exists():
            name = shlex.quote(str(folder))
            cure = (
                f"Choose another folder. If it was stopped, `continua train --resume {name}` goes on with it; if it is "
            )
            cure += f"finished, `continua report {name}` shows it."
            reject("folder", str(folder), "there is a run in it already", cure)
        storage.check_writable("folder", folder)
        if folder.is_dir() and not storage.is_empty(folder):
            reject("folder", str(folder), "there is something else in it", "Choose a folder that is new or empty.")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run in a folder, which may be a stranger's."""
        cure = "Pass the folder of a run, one with a manifest.json."
        if not folder.is_dir():
            near = Path("runs") / folder
            cure = f"Did you mean {near}?" if (near / "manifest.json").is_file() else cure
            reject("run", str(folder), "this is a file" if folder.exists() else "there is no such folder", cure)
        run = cls(folder)
        if not (folder / "manifest.json").exists() and not run.checkpoints():
            reject("run", str(folder), "there is no manifest.json in it", cure)
        storage.check_plain(folder)
        tables, words = ("config", "facts", "versions"), ("kind", "state")
        manifest = run.manifest
        if not all(isinstance(manifest.get(key), dict) for key in tables) or not all(
            isinstance(manifest.get(key), str) for key in words
        ):
            reject("run", str(folder), f"its manifest lacks one of {', '.join((*tables, *words))}", cure)
        return run

    def lock(self) -> AbstractContextManager[None]:
        """Inside, no other process writes into the run."""
        return storage.lock(self.folder)

    @property
    def manifest(self) -> dict[str, Any]:
        """What was asked for, and under which versions; where it is damaged, as the latest checkpoint has it."""
        path = self.folder / "manifest.json"
        try:
            manifest = storage.unseal(storage.read_plain(path))
        except (OSError, ValueError) as error:
            return self._manifest_of_checkpoint(error)
        if manifest.get("format") != storage.FORMAT:
            self._refuse_format(manifest.get("format"))
        return manifest

    def _manifest_of_checkpoint(self, error: Exception) -> dict[str, Any]:
        for path in reversed(self.checkpoints()):
            with suppress(ValueError, KeyError):
                manifest = storage.unseal(read_checkpoint(path).files["run.json"])
                why = f"{self.folder / 'manifest.json'} cannot be read ({error})"
                warnings.warn(f"{why}; that of checkpoint {path.name} is taken.", DamageWarning, stacklevel=1)
                return manifest
        found = storage.FORMAT
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            found = json.loads(storage.read_plain(self.folder / "manifest.json")).get("format")
        if found != storage.FORMAT:
            self._refuse_format(found)
        reject("run", str(self.folder), f"manifest.json is damaged ({error})", "Copy the folder again.")

    def _refuse_format(self, found: object) -> NoReturn:
        cure = "Go on with the version of continua that wrote it, or train a new run."
        reject("run", str(self.folder), f"it is of format {found}, and this version reads {storage.FORMAT}", cure)

    def note(self, **facts: Any) -> None:
        """Adds facts to the manifest, or changes them."""
        manifest = self.manifest
        manifest["facts"] = {**manifest["facts"], **facts}
        self._write_manifest(manifest)

    def go_on(self, **changes: Any) -> None:
        """Says that the run is running again, with what has changed; how it ended and its models no longer count."""
        storage.remove_folder(self.folder / "models")
        manifest = {key: value for key, value in self.manifest.items() if key != "ended"}
        self._write_manifest({**manifest, "state": "running", **changes})

    def end(self, state: str) -> None:
        """Says how the run ended: `finished`, `interrupted`, `diverged` or `failed`."""
        self._write_manifest({**self.manifest, "state": state, "ended": _now()})

    def record(self, kind: str, **row: Any) -> None:
        """Appends a row; numbers that are not finite become null, as JSON has no word for them."""
        storage.append_line(self._rows, json.dumps(finite({"kind": kind, **row}), allow_nan=False))

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The rows, all or those of one kind; what is no row is passed over."""
        return [row for row in read_records(self._rows) if kind in (None, row["kind"])]

    def forget(self, after: int) -> None:
        """Drops the rows of updates later than a checkpoint, which will be made again, and those that are damaged."""
        kept = (json.dumps(row) + "\n" for row in self.records() if row.get("update", 0) <= after)
        storage.write_whole(self._rows, "".join(kept).encode())

    @property
    def _rows(self) -> Path:
        return self.folder / "records.jsonl"

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
        content = storage.read_plain(path)
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
            plain = json.loads(storage.read_plain(path))
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

    def checkpoints(self) -> list[Path]:
        """The folders of the checkpoints, the latest last."""
        return checkpoints(self.folder / "checkpoints")

    def keep_checkpoint(
        self, update: int, state: dict[str, Any], files: Mapping[str, bytes] | None = None, keep: int = 2
    ) -> Path:
        """Writes a checkpoint; the `keep` latest stay, and the best by validation, which the facts name."""
        storage.sync(self._rows)  # rows up to here are as safe as the checkpoint
        run = {"run.json": storage.seal(self.manifest)}
        path = write_checkpoint(self.folder / "checkpoints", update, state, {**(files or {}), **run})
        best = self.manifest["facts"].get("best", {})
        kept = {best.get("update"), *(one.get("update") for one in best.get("of", {}).values())}
        for old in [one for one in self.checkpoints() if int(one.name) <= update][:-keep]:
            if int(old.name) not in kept:
                storage.remove_folder(old)
        return path

    def drop_checkpoints(self, after: int) -> None:
        """Removes checkpoints of later updates."""
        for path in self.checkpoints():
            if int(path.name) > after:
                storage.remove_folder(path)

    def last_checkpoint(self, before: int | None = None) -> Checkpoint | None:
        """The latest checkpoint that is whole, or nothing; a damaged one gives way to the one before it.

        With `before`, one of fewer updates is preferred.
        """
        found = self.checkpoints()
        found = [path for path in found if before is None or int(path.name) < before] or found
        for path in reversed(found):
            try:
                return read_checkpoint(path)
            except ValueError as error:
                if path == found[0]:
                    raise
                warnings.warn(f"{error} Going back to the one before it.", DamageWarning, stacklevel=1)
        return None

    def keep_models(self, files: Mapping[str, bytes] | None = None) -> None:
        """Writes `models/` anew: files by NAME/FILE, or those of the latest checkpoint."""
        if files is None:
            last = self.last_checkpoint()
            files = {} if last is None else {name: held for name, held in last.files.items() if "/" in name}
        if files:
            storage.write_folder(self.folder / "models", files)

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        storage.write_whole(self.folder / "manifest.json", storage.seal(finite(dict(manifest))))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def present_versions() -> dict[str, str]:
    """What the last digits of a run hang on beside its options: versions, and which instructions torch uses here."""
    packages = {"continua": __version__, **{package: version(package) for package in ("torch", "numpy")}}
    processor = torch.backends.cpu.get_cpu_capability()
    return {"python": platform.python_version(), "platform": sys.platform, "processor": processor, **packages}


def read_records(path: Path) -> list[dict[str, Any]]:
    """The rows of a records file; damaged ones are passed over, as is a last line that a killed process left torn."""
    if not path.exists():
        return []
    rows, lines = [], storage.read_plain(path).decode(errors="replace").split("\n")[:-1]
    for line in lines:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("kind"), str) and isinstance(row.get("update", 0), int):
                rows.append(row)
    if damaged := len(lines) - len(rows):
        text = f"{path}: {damaged} of {len(lines)} rows are damaged and passed over; the others are read."
        warnings.warn(text, DamageWarning, stacklevel=1)
    return rows
