"""Which papers a model owes its parts to."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from continua.core.errors import reject
from continua.model.literature import LITERATURE
from continua.runs import Reference


def citation(*used: Any) -> list[Reference]:
    """References for what is actually used: `citation(model)`, or `citation(model, optimiser, objective)`.

    Everything inside is looked at - fields, operators, norms, stepper, control, gradient, estimators - and every part
    that has a source in the literature names it. Each reference says which parts use it; they come by their keys, first
    author and year.
    """
    if not used:
        reject("used", (), "nothing is used, and nothing to be cited", "Pass a model: continua.citation(model).")
    for thing in used:
        if isinstance(thing, type):
            why = "this is a class, and what it is made of is known only when it is built"
            reject("used", thing.__name__, why, "Pass the built object: continua.citation(model).")
    names = sorted({type(part).__name__ for thing in used for part in _parts(thing, set())})
    found = []
    for reference, users in LITERATURE.items():
        using = [name for name in names if name in users]
        if using:
            found.append(dataclasses.replace(reference, uses=", ".join(using)))
    return sorted(found, key=lambda reference: reference.key)


def _parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """A thing and all that it is made of, each once."""
    if id(thing) in seen or thing is None or isinstance(thing, str | int | float | bool):
        return
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        inner = list(thing.values())
    elif isinstance(thing, list | tuple | nn.ModuleList):
        inner = list(thing)
    else:
        yield thing
        inner = _inside(thing)
    for part in inner:
        yield from _parts(part, seen)


def _inside(thing: Any) -> list[Any]:
    if isinstance(thing, Optimizer):
        return list(getattr(thing, "members", {}).values())
    if isinstance(thing, type):
        return []
    if isinstance(thing, nn.Module):
        made: dict[str, Any] = getattr(thing, "arguments", dict)()
        return [*made.values(), *thing.children()]
    if dataclasses.is_dataclass(thing):
        return [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    return []
