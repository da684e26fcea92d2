"""Saving and loading: a model is a folder with its description (JSON), its values (safetensors) and a hash of both.

The description names classes of continua and the arguments they were built from; loading builds nothing else, so a
folder from a stranger cannot run code. Parameters that serve in two places (a tied readout, a field of two parts) are
kept once and serve in both again.
"""

import dataclasses
import enum
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from continua.core.arguments import arguments_of
from continua.core.checks import is_a
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.runs import digest, write_whole

FORMAT = 3
"""Of models before 3 attention read all axis nodes, and theirs would answer differently."""
_ROOMS = ("spaces", "operators", "fields", "solve", "model")
"""What models are made of; nothing else is imported on behalf of a file."""
_IN_CODE = "Build such a model in code, and keep its values with model.state_dict() and model.load_state_dict()."


def save(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Writes `model.json` and `model.safetensors` into `folder`, each whole or not at all."""
    for name, content in model_files(model).items():
        write_whole(Path(folder) / name, content)
    return Path(folder)


def model_files(model: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, bytes]:
    """What `save` writes, by the names of the files: values first, then the description with the hash of both.

    `state` are the values, where the model itself does not hold them whole.
    """
    is_a(nn.Module, "Pass a model; a fitted estimator has one as .model_, and is kept whole by pickle.", model=model)
    first: dict[int, str] = {}
    names = ((name, first.setdefault(id(p), name)) for name, p in model.named_parameters(remove_duplicate=False))
    shared = {name: original for name, original in names if name != original}  # further names of a parameter
    held = model.state_dict() if state is None else state
    values = safetensors.torch.save({name: value.contiguous() for name, value in held.items() if name not in shared})
    description = {"format": FORMAT, "shared": shared, "model": encode(model)}
    description["sha256"] = hash_model(values, description)
    return {"model.safetensors": values, "model.json": json.dumps(description, indent=1).encode()}


def hash_model(values: bytes, description: Mapping[str, Any]) -> str:
    """The hash of a model's values and of what they belong to: one flipped bit in either is another model."""
    return digest(json.dumps([description["shared"], description["model"]]).encode() + values)


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """The model that `save` wrote: on the CPU, in the dtype it was saved in, in training mode as any new module."""
    source = Path(folder)
    cure = "Pass a folder that continua.save(model, folder) wrote, or that of a run."
    if not source.is_dir():
        reject("folder", str(folder), "this is a file" if source.exists() else "there is no such folder", cure)
    for name in ("model.json", "model.safetensors"):
        if not (source / name).is_file():
            reject("folder", str(folder), f"there is no {name} in it", cure)
    description = _read(source)
    values = (source / "model.safetensors").read_bytes()
    if hash_model(values, description) != description["sha256"]:
        cure = "Copy the folder again, or take an earlier checkpoint."
        reject("folder", str(folder), "it does not match its hash: a file is damaged", cure)
    try:
        model = decode(description["model"])
    except (KeyError, TypeError) as error:
        why = f"its description does not fit this version of continua ({error})"
        reject("folder", str(source), why, "Load it with the version that saved it.")
    for copy, original in description["shared"].items():
        module, _, name = copy.rpartition(".")
        setattr(model.get_submodule(module), name, model.get_parameter(original))
    state = safetensors.torch.load(values)
    floating = [v.dtype for v in state.values() if v.is_floating_point()]
    model.to(floating[0] if floating else torch.get_default_dtype())
    model.load_state_dict({**state, **{copy: state[original] for copy, original in description["shared"].items()}})
    return model


def encode(value: Any) -> Any:
    """A description of plain data for a model, an operator, a field, a rule, ..."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return {"class": _name(value), "value": value.value}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"class": _name(value), "arguments": {k: encode(v) for k, v in value._asdict().items()}}  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, list | tuple | nn.ModuleList):
        return [encode(v) for v in value]
    if isinstance(value, nn.Module) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {"class": _name(value), "arguments": {k: encode(v) for k, v in arguments_of(value).items()}}
    reject("model", value, f"{type(value).__name__} cannot be written as a description", _IN_CODE)


def decode(description: Any) -> Any:
    """What `encode` described, built anew."""
    if isinstance(description, list):
        return tuple(decode(v) for v in description)
    if not isinstance(description, dict):
        return description
    kind = _class(description["class"])
    if "value" in description:
        return kind(description["value"])
    return kind(**{k: decode(v) for k, v in description["arguments"].items()})


def _read(source: Path) -> dict[str, Any]:
    """The content of `model.json`, if `save` wrote it and this version reads it."""
    try:
        description = json.loads((source / "model.json").read_bytes())
    except ValueError:
        description = None
    if not isinstance(description, dict) or not {"format", "sha256", "shared", "model"} <= description.keys():
        cure = "Copy the folder again, or take an earlier checkpoint."
        reject("folder", str(source), "model.json is not what continua.save writes: the file is damaged", cure)
    if description["format"] != FORMAT:
        cure = f"This version reads format {FORMAT}; load it with the version of continua that saved it."
        reject("folder", str(source), f"its format is {description['format']}", cure)
    return description


def _name(value: Any) -> str:
    kind = type(value)
    if not _is_ours(kind.__module__):
        reject("model", value, f"{kind.__qualname__} is not a class of continua, so it could not be loaded", _IN_CODE)
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if not _is_ours(module):
        reject("class", name, "it is not a class of continua, and no other is built from a file", _IN_CODE)
    try:
        found = getattr(importlib.import_module(module), qualified, None)
    except ModuleNotFoundError:
        found = None
    if not isinstance(found, type) or found.__module__ != module:
        reject("class", name, "there is no such class", "Load with the version of continua that saved it.")
    return found


def _is_ours(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package == "continua" and rest.split(".")[0] in _ROOMS
