"""The same operator at another resolution: of the embedding axis, of the heads, or of the token integral."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from continua.core.errors import reject
from continua.operators.attention import Attention
from continua.operators.integral import AbstractTokenIntegral
from continua.operators.kernels import AbstractKernel
from continua.spaces import Axis

Part = TypeVar("Part")


def with_nodes(part: Part, nodes: int) -> Part:
    """`part` with every kernel, norm and axis in it at `nodes` nodes; its parameters serve unchanged."""
    return _changed(part, lambda x: x.at(nodes) if isinstance(x, AbstractKernel | Axis) else None)


def with_heads(part: Part, heads: int) -> Part:
    """`part` with every attention at `heads` nodes of its measure of heads (see `ContinuousHeads.at_nodes`)."""
    return _changed(part, lambda x: _with_heads(x, heads) if isinstance(x, Attention) else None)


def with_integral(part: Part, integral: AbstractTokenIntegral) -> Part:
    """`part` with `integral` in every attention."""
    return _changed(part, lambda x: integral if isinstance(x, AbstractTokenIntegral) else None)


def _with_heads(attention: Attention, heads: int) -> Attention:
    if not attention.measured:
        cure = "Build the operator with Attention(heads, key, measured=True) and its field as ContinuousHeads."
        reject("heads", heads, "these heads are counted, not a measure, and there are as many as there are", cure)
    return dataclasses.replace(attention, heads=heads)


def _changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """`part` with `change` made wherever it gives something else, in tuples and dataclasses to any depth."""
    changed = change(part)
    if changed is not None:
        return changed
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        return tuple(_changed(x, change) for x in part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        old = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
        new = {name: _changed(value, change) for name, value in old.items()}
        differing = {name: value for name, value in new.items() if value != old[name]}
        return dataclasses.replace(part, **differing) if differing else part
    return part
