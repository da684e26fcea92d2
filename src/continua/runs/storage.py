"""Files that a killed process leaves whole or not at all: single files, and checkpoints."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
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


def write_checkpoint(folder: Path, update: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Writes `folder/00000400/` with `state.safetensors` and then `state.json`, which holds the hash and the rest.

    The state is made of dictionaries, lists, tuples, numbers, words and tensors, as that of an optimiser is. What has
    no `state.json` is unfinished and not read. The `keep` latest checkpoints stay, older ones are removed.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = _take_apart(state, "", tensors)
    values = safetensors.torch.save(tensors)
    target = folder / f"{update:08d}"
    write_whole(target / "state.safetensors", values)
    content = {"format": FORMAT, "update": update, "sha256": digest(values), "state": plain}
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
        values = (checkpoint / "state.safetensors").read_bytes()
        if digest(values) == content["sha256"]:
            return _put_together(content["state"], safetensors.torch.load(values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reject("checkpoint", str(checkpoint), f"it cannot be read ({error})", cure)
    reject("checkpoint", str(checkpoint), "state.safetensors does not match its hash: the file is damaged", cure)


def _take_apart(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value as JSON can hold it; tensors are collected by name. A dictionary is a list of pairs, as JSON turns
    whole numbers into words where they are keys."""
    if isinstance(value, torch.Tensor):
        # The order of entries in memory is kept: a product of the same numbers in another order (an eigenbasis comes
        # column by column) differs by rounding, and a resumed run would differ from one that went through.
        order = sorted(range(value.ndim), key=lambda axis: (-value.stride(axis), axis))
        order = order if value.permute(order).is_contiguous() else list(range(value.ndim))
        tensors[path] = value.detach().cpu().permute(order).contiguous().clone()
        return {"kind": "tensor", "name": path, "order": order}
    if isinstance(value, dict):
        items = [[key, _take_apart(held, f"{path}.{key}", tensors)] for key, held in value.items()]
        return {"kind": "dict", "items": items}
    if isinstance(value, list | tuple):
        items = [_take_apart(held, f"{path}.{place}", tensors) for place, held in enumerate(value)]
        return {"kind": "list" if isinstance(value, list) else "tuple", "items": items}
    return value


def _put_together(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(plain, dict):
        return plain
    if plain["kind"] == "tensor":
        order = plain["order"]
        return tensors[plain["name"]].permute([order.index(axis) for axis in range(len(order))])
    if plain["kind"] == "dict":
        return {key: _put_together(held, tensors) for key, held in plain["items"]}
    items = [_put_together(held, tensors) for held in plain["items"]]
    return items if plain["kind"] == "list" else tuple(items)
