"""Nested plain data with tensors inside, apart: a JSON tree that refers to tensors by name, and the tensors."""

from typing import Any

import torch

from continua.core.errors import reject


def split_tree(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The tree as JSON can hold it, and its tensors by name; `joined_tree` is the way back.

    Dictionaries (with words or whole numbers as keys), lists, tuples, numbers, words and tensors; the state of an
    optimiser is made of these.
    """
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().contiguous().clone()
            return {"kind": "tensor", "name": path}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict):
            items = [[key, plain(held, f"{path}.{key}" if path else str(key))] for key, held in value.items()]
            return {"kind": "dict", "items": items}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "items": [plain(held, f"{path}.{place}") for place, held in enumerate(value)]}
        cure = "Keep numbers, words, lists, dictionaries and tensors in a checkpoint."
        reject(path, type(value).__name__, "this is no plain data", cure)

    return plain(tree, ""), tensors


def joined_tree(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """What `split_tree` took apart."""
    if not isinstance(plain, dict):
        return plain
    if plain["kind"] == "tensor":
        return tensors[plain["name"]]
    if plain["kind"] == "dict":
        return {key: joined_tree(held, tensors) for key, held in plain["items"]}
    items = [joined_tree(held, tensors) for held in plain["items"]]
    return items if plain["kind"] == "list" else tuple(items)
