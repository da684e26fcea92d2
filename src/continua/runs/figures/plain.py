"""Figures and sections as JSON can hold them, and back; large arrays stand apart."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from continua.core.errors import reject
from continua.runs.figures.figure import AbstractFigure, Note, Scale
from continua.runs.figures.heat import Heat
from continua.runs.figures.lines import Lines, Series
from continua.runs.figures.paths import Paths
from continua.runs.figures.section import Section, Verdict
from continua.runs.figures.steps import Bars, Stairs, Steps
from continua.runs.figures.table import Table

_KINDS = (Bars, Heat, Lines, Note, Paths, Scale, Section, Series, Stairs, Steps, Table, Verdict)
KINDS: dict[str, type] = {kind.__name__.lower(): kind for kind in _KINDS}
"""The one table from words on disk to classes."""

LARGE = 2000
"""Arrays of more numbers than this are kept apart from the JSON, in single precision."""


def to_plain(value: Any, apart: dict[str, np.ndarray] | None = None) -> Any:
    """Plain data; with `apart`, large arrays are put there and only named."""
    if isinstance(value, np.ndarray):
        if apart is not None and value.size > LARGE:
            name = f"array{len(apart)}"
            apart[name] = value.astype(np.float32)
            return {"kind": "array", "name": name}
        return {"kind": "array", "shape": list(value.shape), "values": [_finite(x) for x in value.ravel().tolist()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: to_plain(getattr(value, field.name), apart) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **held}
    if isinstance(value, list | tuple):
        return [to_plain(item, apart) for item in value]
    return _finite(value) if isinstance(value, float) else value


def from_plain(plain: Any, apart: Mapping[str, np.ndarray] | None = None) -> Any:
    """What `to_plain` was given; data that is no figure is refused with the reason."""
    if isinstance(plain, list):
        return tuple(from_plain(item, apart) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind, held = plain.get("kind"), {key: value for key, value in plain.items() if key != "kind"}
    if kind == "array":
        return _array(held, apart or {})
    if kind not in KINDS:
        reject("kind", kind, "there is no such figure", f"Choose from {', '.join(sorted(KINDS))}.")
    try:
        return KINDS[kind](**{key: from_plain(value, apart) for key, value in held.items()})
    except TypeError as error:
        reject("figure", kind, f"its parts are not those of a {kind} ({error})", "Write it with `to_plain`.")


def figure_or_section(plain: Any, apart: Mapping[str, np.ndarray] | None = None) -> Section:
    """A section; a figure alone becomes one under its own title."""
    thing = from_plain(plain, apart)
    if isinstance(thing, AbstractFigure):
        return Section(thing.title, figures=(thing,))
    if not isinstance(thing, Section):
        kind = plain.get("kind") if isinstance(plain, dict) else type(plain).__name__
        reject("kind", kind, "this is neither a section nor a figure", "Keep a Section, Lines, Heat, Table, ...")
    return thing


def _array(held: dict[str, Any], apart: Mapping[str, np.ndarray]) -> np.ndarray:
    if "name" in held:
        if held["name"] not in apart:
            reject("array", held["name"], "it is not among the arrays beside the figure", "Copy the folder again.")
        return np.asarray(apart[held["name"]], dtype=np.float64)
    try:
        return np.array(held["values"], dtype=np.float64).reshape(held["shape"])
    except (KeyError, TypeError, ValueError) as error:
        reject("array", sorted(held), f"values and shape do not make an array ({error})", "Write it with `to_plain`.")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
