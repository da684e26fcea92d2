"""Nested plain data with tensors inside, apart: a JSON tree that refers to tensors by name, and the tensors."""

from typing import Any

import torch

from continua.core.errors import reject


def split_tree(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The tree as JSON can hold it, and its tensors by name; `joined_tree` is the way back.

    Dictionaries (with words or whole numbers as keys), lists, tuples, numbers, words and tensors; the state of an
    optimiser is made of these. The order in which the entries of a tensor lie in memory is kept: a product of the same
    numbers in another order (an eigenbasis comes column by column) differs by rounding.
    """
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            order = _order(value)
            tensors[path] = value.detach().cpu().permute(order).contiguous().clone()
            plainly = order == sorted(order)
            return {"kind": "tensor", "name": path, **({} if plainly else {"order": order})}
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


def _order(value: torch.Tensor) -> list[int]:
    """The axes from the slowest in memory to the fastest; as they stand where entries overlap or have gaps."""
    axes = list(range(value.ndim))
    order = sorted(axes, key=lambda axis: (-value.stride(axis), axis))
    return order if value.permute(order).is_contiguous() else axes


def joined_tree(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """What `split_tree` took apart."""
    if not isinstance(plain, dict):
        return plain
    if plain["kind"] == "tensor":
        stored, order = tensors[plain["name"]], plain.get("order")
        return stored if order is None else stored.permute([order.index(axis) for axis in range(len(order))])
    if plain["kind"] == "dict":
        return {key: joined_tree(held, tensors) for key, held in plain["items"]}
    items = [joined_tree(held, tensors) for held in plain["items"]]
    return items if plain["kind"] == "list" else tuple(items)
