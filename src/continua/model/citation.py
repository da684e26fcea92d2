"""Which papers a model owes its parts to."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from torch import nn
from torch.optim import Optimizer

from continua.core.arguments import arguments_of
from continua.core.errors import reject
from continua.runs import Paper


def citation(*used: Any) -> list[Paper]:
    """Papers behind what is actually used: `citation(model)`, or `citation(model, optimiser, objective)`.

    Everything inside is looked at - fields, operators, norms, stepper, step-size controller, gradient, token integral -
    and every part that has a source in the literature names it. Each paper says which parts use it; they come by their
    keys, first author and year.
    """
    if not used:
        reject("used", (), "nothing is used, and nothing to be cited", "Pass a model: continua.citation(model).")
    for thing in used:
        if isinstance(thing, type):
            why = "this is a class, and what it is made of is known only when it is built"
            reject("used", thing.__name__, why, "Pass the built object: continua.citation(model).")
    names = sorted({type(part).__name__ for thing in used for part in _parts(thing, set())})
    uses = {paper: ", ".join(name for name in names if name in users) for paper, users in LITERATURE.items()}
    found = [dataclasses.replace(paper, uses=using) for paper, using in uses.items() if using]
    return sorted(found, key=lambda paper: paper.key)


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
        inner = []
        if isinstance(thing, Optimizer):
            inner = list(getattr(thing, "members", {}).values())
        elif isinstance(thing, nn.Module):
            made = arguments_of(thing) if type(thing).__module__.startswith("continua.") else {}
            inner = [*made.values(), *thing.children()]
        elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            inner = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    for part in inner:
        yield from _parts(part, seen)


def _read_literature() -> Iterator[tuple[Paper, tuple[str, ...]]]:
    for paper in json.loads((files("continua.model") / "literature.json").read_text(encoding="utf-8")):
        users = tuple(paper.pop("source_of"))
        yield Paper(**paper), users


LITERATURE: dict[Paper, tuple[str, ...]] = dict(_read_literature())
"""Each paper with the names of the classes that it is the source of.

Names instead of classes, so that rooms above this one (running costs, objectives) and torch's optimisers have their
place in the one table; a test holds that every name exists.
"""
