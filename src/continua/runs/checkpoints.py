"""Checkpoints: folders with a state, any further files, and a manifest that holds the hash of each."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError

from continua.core.errors import reject
from continua.runs import storage


class Checkpoint(NamedTuple):
    """What was needed to go on after `update` updates: the state, and all files of the folder by their names."""

    folder: Path
    update: int
    state: dict[str, Any]
    files: dict[str, bytes]


def write_checkpoint(folder: Path, update: int, state: dict[str, Any], files: Mapping[str, bytes]) -> Path:
    """Writes `folder/00000400/` with `state.safetensors`, `state.json`, `files` and `manifest.json`, all or nothing.

    The state is made of dictionaries, lists, tuples, numbers, words and tensors, as that of an optimiser is.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = json.dumps(_take_apart(state, "", tensors)).encode()
    held = {"state.json": plain, "state.safetensors": safetensors.torch.save(tensors), **files}
    hashes = {name: storage.digest(content) for name, content in held.items()}
    target = folder / f"{update:08d}"
    manifest = storage.seal({"format": storage.FORMAT, "update": update, "files": hashes})
    storage.write_folder(target, {**held, "manifest.json": manifest})
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the latest last."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if re.fullmatch(r"\d{8,}", path.name)), key=lambda path: int(path.name))


def read_checkpoint(checkpoint: Path) -> Checkpoint:
    """What `write_checkpoint` was given; a damaged file is refused."""
    try:
        manifest = storage.unseal(storage.read_plain(checkpoint / "manifest.json"))
        if manifest["format"] != storage.FORMAT or manifest["update"] != int(checkpoint.name):
            raise ValueError(f"it is of format {manifest['format']} and of update {manifest['update']}")
        files = {name: _read_file(checkpoint, name, known) for name, known in manifest["files"].items()}
        tensors = safetensors.torch.load(files["state.safetensors"])
        state = _put_together(json.loads(files["state.json"]), tensors)
        if not isinstance(state, dict):
            raise ValueError("its state is no table")
        return Checkpoint(checkpoint, manifest["update"], state, files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        cure = "Copy it again, or remove it: the one before it is taken then."
        reject("checkpoint", str(checkpoint), f"it cannot be read ({error})", cure)


def _read_file(checkpoint: Path, name: str, known: str) -> bytes:
    if not re.fullmatch(r"([\w-]+/)?[\w-]+\.\w+", name):
        raise ValueError(f"{name!r} is no name of a file in it")
    content = storage.read_plain(checkpoint / name)
    if storage.digest(content) != known:
        raise ValueError(f"{name} does not match its hash: the file is damaged")
    return content


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
