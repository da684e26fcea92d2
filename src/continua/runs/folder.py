"""A run is a folder: what was asked for, what happened, and what is needed to go on."""

import dataclasses
import json
import math
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import safetensors.torch
from torch import Tensor

from continua.core.errors import reject
from continua.runs.atomic import digest, write_whole
from continua.runs.checkpoints import checkpoints, read_checkpoint, write_checkpoint
from continua.runs.places import check_writable

FORMAT = 1


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """One run on disk.

    | file | what it holds |
    |---|---|
    | `manifest.json` | kind, config, seed, versions, facts; written whole each time it changes |
    | `records.jsonl` | rows, only ever appended: each is a JSON object with its `kind` |
    | `arrays/NAME.safetensors` | numbers that figures need |
    | `figures/NAME.json` | figures as plain data, to be drawn by `report` |
    | `checkpoints/UPDATE/` | what is needed to go on |
    | `models/NAME/` | trained models, as `continua.save` writes them |
    """

    folder: Path

    @classmethod
    def begin(cls, folder: Path, kind: str, config: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> "Run":
        """A new run; a folder that holds one already is left alone."""
        cls.check_free(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".begun").touch()
            (folder / ".begun").unlink()
        except OSError as error:
            why = f"nothing can be written there ({error.strerror})"
            reject("folder", str(folder), why, "Choose a folder that can be written to.")
        run = cls(folder)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        run._write_manifest(
            {"format": FORMAT, "kind": kind, "began": began, "state": "running", "versions": _versions()}
            | {"config": dict(config), "facts": dict(facts or {})}
        )
        return run

    @staticmethod
    def check_free(folder: Path) -> None:
        """Refuses a folder that holds a run, or that cannot be written to; nothing is made."""
        if (folder / "manifest.json").exists():
            cure = (
                f"Choose another folder, or go on with this run: `continua train --resume {shlex.quote(str(folder))}`."
            )
            reject("folder", str(folder), "there is a run in it already", cure)
        check_writable("folder", folder)

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
        if not isinstance(run.manifest, dict) or run.manifest.get("format") != FORMAT:
            reject("run", str(folder), f"its manifest is not of format {FORMAT}", cure)
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
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        self._write_manifest({**self.manifest, "state": state, "ended": ended})

    def record(self, kind: str, **row: Any) -> None:
        """Appends a row; numbers that are not finite become null, as JSON has no word for them."""
        line = json.dumps(finite({"kind": kind, **row}), allow_nan=False)
        with (self.folder / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def records(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The rows, all or those of one kind; a last line that a killed process left half written is passed over."""
        path = self.folder / "records.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                reject(f"{path}, line {number}", line[:60], "this is no JSON: the file is damaged", "Remove the line.")
            if kind is None or row["kind"] == kind:
                yield row

    def forget(self, after: int) -> None:
        """Drops the rows of updates later than a checkpoint, which will be made again, and a half-written last line."""
        kept = [row for row in self.records() if row.get("update", 0) <= after]
        write_whole(self.folder / "records.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    def keep_arrays(self, name: str, arrays: Mapping[str, Tensor]) -> Path:
        """Writes `arrays/NAME.safetensors` and notes its hash."""
        content = safetensors.torch.save({key: value.detach().cpu().contiguous() for key, value in arrays.items()})
        path = self._inside("arrays", f"{name}.safetensors")
        write_whole(path, content)
        self.note(hashes={**self.manifest["facts"].get("hashes", {}), f"arrays/{name}": digest(content)})
        return path

    def arrays(self, name: str) -> dict[str, Tensor]:
        """The arrays of that name."""
        path = self.folder / "arrays" / f"{name}.safetensors"
        if not path.is_file():
            known = sorted(p.stem for p in path.parent.glob("*.safetensors"))
            reject("name", name, f"the run has no such arrays, but {known}", "Choose one of these.")
        content = path.read_bytes()
        if digest(content) != self.manifest["facts"].get("hashes", {}).get(f"arrays/{name}"):
            reject("name", name, "the file does not match its hash: it is damaged", "Copy the folder again.")
        return safetensors.torch.load(content)

    def keep_figure(self, name: str, spec: Mapping[str, Any]) -> Path:
        """Writes `figures/NAME.json`."""
        path = self._inside("figures", f"{name}.json")
        write_whole(path, json.dumps(finite(dict(spec)), allow_nan=False).encode())
        return path

    def figures(self) -> dict[str, dict[str, Any]]:
        """All figures by name."""
        return {path.stem: json.loads(path.read_bytes()) for path in sorted((self.folder / "figures").glob("*.json"))}

    def model_folder(self, name: str) -> Path:
        """Where a trained model of the run is kept."""
        return self.folder / "models" / name

    def keep_checkpoint(self, update: int, state: dict[str, Any]) -> Path:
        """Writes a checkpoint; the two latest are kept."""
        return write_checkpoint(self.folder / "checkpoints", update, state)

    def last_checkpoint(self) -> dict[str, Any] | None:
        """The latest checkpoint that is whole, or nothing; a damaged one gives way to the one before it."""
        damaged: ValueError | None = None
        for path in reversed(checkpoints(self.folder / "checkpoints")):
            try:
                return read_checkpoint(path)
            except ValueError as error:
                damaged = error
        if damaged is not None:
            raise damaged
        return None

    def _inside(self, room: str, name: str) -> Path:
        (self.folder / room).mkdir(exist_ok=True)
        return self.folder / room / name

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_whole(self.folder / "manifest.json", json.dumps(finite(dict(manifest)), indent=1).encode())


def _versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "absent"

    packages = {package: of(package) for package in ("continua", "torch", "numpy")}
    return {"python": platform.python_version(), "platform": sys.platform, **packages}


def finite(value: Any) -> Any:
    """Plain data as JSON can hold it: paths as words, numbers that are not finite as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return str(value) if isinstance(value, Path) else value
