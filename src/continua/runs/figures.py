"""What a report is made of, as plain data: figures, tables, sections, papers; without a line of drawing.

`to_plain` turns them into what JSON can hold, `from_plain` is the way back.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from jaxtyping import Float

from continua.core.checks import has_shape
from continua.core.errors import reject

Cell: TypeAlias = str | int | float | None
_FIT = "Pass arrays that fit each other: the parts of a figure share their sizes."


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AbstractFigure(abc.ABC):
    """A picture before it is drawn. Whoever has measured something writes one; `report` alone draws.

    - `title`: what is seen, in a few words; `caption`: how to read it;
    - `measured`: on what and how the numbers were taken, so that a reader can judge them.
    """

    title: str
    caption: str = ""
    measured: str = ""

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Refuses parts that do not fit each other."""

    @property
    def kind(self) -> str:
        """The word for this sort of figure on disk and in the page."""
        return type(self).__name__.lower()


@final
@dataclasses.dataclass(frozen=True)
class Scale:
    """One direction of a figure: its label, and whether equal ratios have equal lengths."""

    label: str
    log: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Note:
    """A thin line across the figure at one value of x (or of y), with its reason: a jump, a limit, a known score."""

    at: float
    text: str
    along: Literal["x", "y"] = "x"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One named curve y(x), with a band low..high around it where there is one (both empty otherwise).

    Curves of one `colour` belong together, such as training and validation of one model; by default each has its own.
    Marked as "steps", y[i] is the height on [x[i], x[i + 1]], such as the length of a step, and the last y is NaN.
    `labels` name the points, one each, beside them.
    """

    name: str
    x: Float[np.ndarray, " points"]
    y: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " band"] = dataclasses.field(default_factory=lambda: np.empty(0))
    high: Float[np.ndarray, " band"] = dataclasses.field(default_factory=lambda: np.empty(0))
    mark: Literal["line", "faint", "dashed", "points", "hollow", "both", "steps"] = "line"
    colour: int | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        has_shape(self.x.shape, _FIT, **{f"curve {self.name!r}.y": self.y})
        for band in (self.low, self.high):
            if band.size:
                has_shape(self.x.shape, _FIT, **{f"curve {self.name!r}.low": band})
        if self.labels and len(self.labels) != len(self.x):
            why = f"the curve has {len(self.x)} points"
            reject(f"curve {self.name!r}.labels", self.labels, why, "Pass one label per point, or none.")

    @classmethod
    def of(cls, name: str, x: Any, y: Any, low: Any = None, high: Any = None, **look: Any) -> "Curve":
        """From lists, tuples or arrays; `None` and NaN are gaps."""
        return cls(name, _numbers(x), _numbers(y), _numbers(low), _numbers(high), **look)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Lines(AbstractFigure):
    """Several curves on common axes, with notes at values a reader should see."""

    x: Scale
    y: Scale
    curves: tuple[Curve, ...]
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if not self.curves:
            reject("curves", self.curves, "there is nothing to draw", "Pass at least one curve.")


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Bars(AbstractFigure):
    """values[series, category]: one group of bars for each category, one colour for each name."""

    y: Scale
    categories: tuple[str, ...]
    names: tuple[str, ...]
    values: Float[np.ndarray, "series categories"]

    def __post_init__(self) -> None:
        has_shape((len(self.names), len(self.categories)), _FIT, values=self.values)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Heat(AbstractFigure):
    """values[panel, frame, row, column] in colours, over y = rows and x = columns.

    A reader chooses the panel by its name (such as a head) and moves a slider through the frames (such as depth); one
    of either has no control. Colours have one range for all frames of a panel. NaN stays empty.
    """

    x: Scale
    y: Scale
    columns: Float[np.ndarray, " columns"]
    rows: Float[np.ndarray, " rows"]
    values: Float[np.ndarray, "panels frames rows columns"]
    value: str
    frames: Float[np.ndarray, " frames"] = dataclasses.field(default_factory=lambda: np.zeros(1))
    slider: str = ""
    panels: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        sizes = (len(self.panels), len(self.frames), len(self.rows), len(self.columns))
        has_shape(sizes, _FIT, values=self.values)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Paths(AbstractFigure):
    """points[depth, token, 0..1]: where each token is in a plane at each depth; a slider moves all of them.

    `tokens` gives every path its colour, such as the token's time, and `hue` says what that number is.
    """

    x: Scale
    y: Scale
    depths: Float[np.ndarray, " depths"]
    points: Float[np.ndarray, "depths tokens 2"]
    tokens: Float[np.ndarray, " tokens"]
    hue: str
    slider: str = "depth z"

    def __post_init__(self) -> None:
        has_shape((len(self.depths), len(self.tokens), 2), _FIT, points=self.points)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Table(AbstractFigure):
    """Rows of cells under named columns; the first column names the row, `None` is an empty cell.

    The cells of a `shaded` table are coloured by their fraction of the row, those whose column has the row's name in
    another colour: a confusion matrix. Columns that no row is named after are left as they are.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shaded: bool = False

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                cure = "Pass one cell per column, None where there is nothing to say."
                reject(f"rows[{place}]", row, f"there are {len(self.columns)} columns", cure)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Passage(AbstractFigure):
    """A text in pieces, each with a number from 0 (coloured) to 1 (plain), such as how likely it was; NaN is bold."""

    pieces: tuple[str, ...]
    values: Float[np.ndarray, " pieces"]

    def __post_init__(self) -> None:
        has_shape((len(self.pieces),), _FIT, values=self.values)


@final
@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out, in a sentence; `holds` is `None` where nothing was claimed."""

    text: str
    holds: bool | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A part of a report: a heading with prose, a formula, figures and a verdict.

    `prose` has one string per paragraph. `formula` is written as in the docstrings of this project, `alpha_{ij} =
    frac{w_j e^{beta ⟨q_i, k_j⟩}}{sum_l w_l e^{beta ⟨q_i, k_l⟩}}`; the page typesets it. `source` names the model that
    was measured: sections of one heading and several sources are shown together.
    """

    heading: str
    prose: tuple[str, ...] = ()
    formula: str = ""
    figures: tuple[AbstractFigure, ...] = ()
    verdict: Verdict | None = None
    source: str = ""


@final
@dataclasses.dataclass(frozen=True)
class Paper:
    """Where in the literature a method comes from, and what it is used for here."""

    key: str
    authors: str
    year: int
    title: str
    venue: str
    uses: str = ""

    def __str__(self) -> str:
        used = f" [{self.uses}]" if self.uses else ""
        return f"{self.authors} ({self.year}). {self.title}. {self.venue}.{used}"

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)


def _numbers(value: Any) -> np.ndarray:
    """A list, tuple or array as an array of real numbers; what is missing is NaN."""
    return np.asarray([] if value is None else value, dtype=np.float64)


_KINDS = (Bars, Heat, Lines, Note, Passage, Paths, Scale, Section, Curve, Table, Verdict)
KINDS: dict[str, type] = {kind.__name__.lower(): kind for kind in _KINDS}
"""The one table from words on disk to classes."""

LARGE = 2000
"""Arrays of more numbers than this are kept apart from the JSON, in single precision."""


def finite(value: Any) -> Any:
    """Plain data as JSON can hold it: paths as words, numbers that are not finite as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return str(value) if isinstance(value, Path) else value


def to_plain(value: Any, apart: dict[str, np.ndarray] | None = None) -> Any:
    """Plain data; with `apart`, large arrays are put there and only named."""
    if isinstance(value, np.ndarray):
        if apart is not None and value.size > LARGE:
            name = f"array{len(apart)}"
            apart[name] = value.astype(np.float32)
            return {"kind": "array", "name": name}
        return {"kind": "array", "shape": list(value.shape), "values": finite(value.ravel().tolist())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: to_plain(getattr(value, field.name), apart) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **held}
    if isinstance(value, list | tuple):
        return [to_plain(item, apart) for item in value]
    return finite(value)


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
    return KINDS[kind](**{key: from_plain(value, apart) for key, value in held.items()})


def _array(held: dict[str, Any], apart: Mapping[str, np.ndarray]) -> np.ndarray:
    if "name" in held:
        return np.asarray(apart[held["name"]], dtype=np.float64)
    return np.array(held["values"], dtype=np.float64).reshape(held["shape"])
