"""Files that a killed process leaves whole or not at all: single files, and checkpoints."""

import hashlib
import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from continua.core.errors import reject

FORMAT = 1


def write_whole(path: Path, content: bytes) -> None:
    """A temporary file, flushed to disk, then renamed: a killed process leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # a rename may reach the disk before the content does
    os.replace(beside, path)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as text."""
    return hashlib.sha256(content).hexdigest()


def check_writable(argument: str, folder: Path, asked: Path | None = None) -> None:
    """Refuses a folder that cannot be made or written to, because of what is there; nothing is made.

    The message names what was `asked` for where that is not the folder itself, but a file in it.
    """
    there = next(place for place in (folder, *folder.parents, Path()) if os.path.lexists(place))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"{there.resolve()} gives no right to" if there.is_dir() else f"{there} is a file"
        cure = "Choose a folder that can be written to."
        reject(argument, str(asked or folder), f"nothing can be written there ({why})", cure)


# --- checkpoints: everything a run needs to go on as if it had never stopped


def write_checkpoint(folder: Path, update: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Writes `folder/00000400/` with `state.pt` and then `state.json`, which holds the hash.

    The state is made of dictionaries, lists, tuples, numbers, words and tensors, as that of an optimiser is. What has
    no `state.json` is unfinished and not read. The `keep` latest checkpoints stay, older ones are removed.
    """
    # `torch.save` keeps the order of entries in memory: a product of the same numbers in another order (an eigenbasis
    # comes column by column) differs by rounding, and a resumed run would differ from one that went through.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    values = buffer.getvalue()
    try:
        _read_state(values)
    except pickle.UnpicklingError as error:
        cure = "Keep numbers, words, lists, dictionaries and tensors in a checkpoint."
        reject("state", sorted(state), f"this is no plain data ({error})", cure)
    target = folder / f"{update:08d}"
    write_whole(target / "state.pt", values)
    content = {"format": FORMAT, "update": update, "sha256": digest(values)}
    write_whole(target / "state.json", json.dumps(content).encode())
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that were finished, the latest last."""
    return sorted(path.parent for path in folder.glob("[0-9]*/state.json"))


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """The state that `write_checkpoint` was given; a damaged file is refused."""
    cure = "Remove this checkpoint; the one before it is taken then."
    try:
        content = json.loads((checkpoint / "state.json").read_bytes())
        values = (checkpoint / "state.pt").read_bytes()
        if content["format"] != FORMAT:
            reject("checkpoint", str(checkpoint), f"its format is {content['format']}, not {FORMAT}", cure)
        whole = digest(values) == content["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reject("checkpoint", str(checkpoint), f"it cannot be read ({error})", cure)
    if not whole:
        reject("checkpoint", str(checkpoint), "state.pt does not match its hash: the file is damaged", cure)
    return _read_state(values)


def _read_state(values: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(values), map_location="cpu", weights_only=True)
