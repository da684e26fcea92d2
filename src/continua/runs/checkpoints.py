"""Checkpoints: everything a run needs to go on as if it had never stopped."""

import json
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch

from continua.core.errors import reject
from continua.runs.atomic import digest, write_whole
from continua.runs.tree import joined_tree, split_tree

FORMAT = 1


def write_checkpoint(folder: Path, update: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Writes `folder/00000400/` with `state.safetensors` and then `state.json`, which holds the hash.

    What has no `state.json` is unfinished and not read. The `keep` latest checkpoints stay, older ones are removed.
    """
    plain, tensors = split_tree(state)
    values = safetensors.torch.save(tensors)
    target = folder / f"{update:08d}"
    target.mkdir(parents=True, exist_ok=True)
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
        if content["format"] != FORMAT:
            reject("checkpoint", str(checkpoint), f"its format is {content['format']}, not {FORMAT}", cure)
        whole = digest(values) == content["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reject("checkpoint", str(checkpoint), f"it cannot be read ({error})", cure)
    if not whole:
        reject("checkpoint", str(checkpoint), "state.safetensors does not match its hash: the file is damaged", cure)
    return joined_tree(content["state"], safetensors.torch.load(values))
