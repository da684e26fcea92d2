"""Names beside the points of a figure: each where it covers neither a point nor another name, or nowhere."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LETTER, LINE = 6.0, 13.0
"""The width of a letter and the height of a line, as `figures.css` writes them."""
_RISE = 10.0
"""From the top of a line to where its letters stand."""
_NARROW, _WIDE = 250.0, 340.0
"""Windows in pixels: those of a phone, and of one of two figures side by side."""
_LONGEST = 16
"""A longer name is broken into lines."""
_DOT = 5.0
"""Half the width of a point, with some room."""

_ABOVE = (("middle", 0.0), ("start", -4.0), ("end", 4.0))
_BESIDE = (("start", 8.0), ("end", -8.0))
"""Where a name is held, and how far right of its point."""


class Box(NamedTuple):
    """A rectangle of pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two have a pixel in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)

    def distance(self, x: float, y: float) -> float:
        """How far a point is from it."""
        across, along = max(self.left - x, x - self.right, 0.0), max(self.top - y, y - self.bottom, 0.0)
        return math.hypot(across, along)


class Label(NamedTuple):
    """A name in lines, the first of them `dx` to the right of its point and `dy` below it; some want a wide window."""

    lines: tuple[str, ...]
    dx: float
    dy: float
    anchor: str
    wide: bool = False

    def box(self, x: float, y: float) -> Box:
        """What it covers beside a point that stands there."""
        wide = _LETTER * max(map(len, self.lines))
        left = x + self.dx - {"start": 0.0, "middle": wide / 2, "end": wide}[self.anchor]
        top = y + self.dy - _RISE
        return Box(left, top, left + wide, top + LINE * len(self.lines))


def place_labels(points: Sequence[tuple[float, float]], names: Sequence[str], aspect: float) -> list[Label | None]:
    """A place for the name of each of these points (u, v) of a window, from 0 to 1 to the right and down.

    They are placed in their order for a narrow window, such as that of a phone. What finds no room there is placed for
    a wide one, and what finds none there either has no place.
    """
    placed: list[Label | None] = [None] * len(points)
    for wide in (False, True):
        across = _WIDE if wide else _NARROW
        size = across, aspect * across
        spots = [(size[0] * u, size[1] * v) for u, v in points]
        taken = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in spots]
        taken += [label.box(*spot) for label, spot in zip(placed, spots, strict=True) if label is not None]
        for k, (spot, name) in enumerate(zip(spots, names, strict=True)):
            if placed[k] is None:
                tries = ((label, label.box(*spot)) for label in _tries(name, wide))
                placed[k] = label = next((label for label, box in tries if _is_free(box, size, taken)
                                          and _is_nearest(spot, spots, box)), None)  # fmt: skip
                taken += [] if label is None else [label.box(*spot)]
    return placed


def _is_free(box: Box, size: tuple[float, float], taken: Sequence[Box]) -> bool:
    inside = box.left >= 0.0 and box.right <= size[0] and box.top >= 0.0 and box.bottom <= size[1]
    return inside and not any(box.meets(other) for other in taken)


def _is_nearest(spot: tuple[float, float], spots: Sequence[tuple[float, float]], box: Box) -> bool:
    """Whether no other point could be taken for the one that is named."""
    return all(box.distance(*spot) <= box.distance(*other) for other in spots)


def _tries(name: str, wide: bool) -> Iterator[Label]:
    """A name above its point, below, beside it, and then farther up or down."""
    lines = tuple(textwrap.wrap(name, _LONGEST, break_on_hyphens=False)) or ("",)
    high = LINE * len(lines)
    for anchor, dx in _ABOVE:
        for top in (-high - 5.0, 5.0):
            yield Label(lines, dx, top + _RISE, anchor, wide)
    for shift in (0.0, -9.0, 9.0, -18.0, 18.0):
        for anchor, dx in _BESIDE:
            yield Label(lines, dx, shift - high / 2 + _RISE, anchor, wide)
