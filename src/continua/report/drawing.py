"""Every figure as SVG, for the page and for files: one drawing, whether a browser shows it or a document.

The numbers stand in a window of their own units (`_UNITS` on each side), whose lines keep their width however it is
stretched. The script of the page therefore fits a figure to a phone, or zooms into it, by moving the window alone.
"""

import base64
import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from continua.core.errors import reject
from continua.report.labels import LINE, Label, place_labels
from continua.report.scales import (
    FORWARD,
    PlotAxis,
    axis_between,
    colour_range,
    find_ends,
    format_tick,
    pack,
    pad_ends,
    paint,
    palette_between,
    png_address,
    tick_words,
    widen_ends,
)
from continua.runs import AbstractFigure, Bars, Curve, Heat, Lines, Note, Paths, write_whole

_UNITS = 10_000
_WIDTH = 440
"""As drawn; the page stretches it. Names of bars are broken into lines as for `_NARROW`, the width on a phone."""
_NARROW = 310
_TALL = 0.75
"""The height by the width of a figure whose points have names."""
_DOTTED = ("points", "hollow", "both")
_LETTER = 7.0
"""About the width of a letter."""


class _Pin(NamedTuple):
    """Something at a place (u, v) of the window, from 0 to 1 to the right and down; `kind` says how it moves."""

    u: float
    v: float
    content: str
    kind: str = ""

    def svg(self, left: float, top: float, wide: float, high: float) -> str:
        """For a window that stands there and is so large."""
        kind = f' class="{self.kind}"' if self.kind else ""
        where = f'transform="translate({left + self.u * wide:.1f} {top + self.v * high:.1f})"'
        return f'<g{kind} data-u="{self.u:.4g}" data-v="{self.v:.4g}" {where}>{self.content}</g>'


class _Plot(NamedTuple):
    """A drawing without its frame: what the window shows, the axes around it, and the numbers behind it.

    - `keys`: the name, the colour and the mark of everything that can be told apart;
    - `pins` stand at a place of the window but are no part of it; `below` is the room under the window;
    - `aspect`: the height of the window by its width; `labels` need room on the left, beside those of the ticks.
    """

    x: PlotAxis | None
    y: PlotAxis
    window: str
    data: Mapping[str, Any]
    keys: Sequence[tuple[str, int, str]] = ()
    pins: Sequence[_Pin] = ()
    below: float = 40.0
    aspect: float = 0.5
    labels: Sequence[str] = ()


def figure_svg(figure: AbstractFigure) -> tuple[str, dict[str, Any]]:
    """One figure as `<svg>`, and the numbers that a page shows under the pointer."""
    plot = _plot(figure)
    content, height, box = _frame(plot)
    attributes = f'viewBox="0 0 {_WIDTH} {height:.0f}" data-box="{box}" role="img" aria-label="{escape(figure.title)}"'
    axes = {
        name: {"label": axis.scale.label, "log": axis.scale.log, "low": axis.low, "high": axis.high}
        for name, axis in (("x", plot.x), ("y", plot.y))
        if axis is not None
    }
    data = {"kind": figure.kind, "title": figure.title, **axes, **plot.data}
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" {attributes}>{content}</svg>', data


def save_figures(figures: Sequence[AbstractFigure], path: Path, columns: int = 2) -> Path:
    """Writes figures as one SVG, row by row under their titles, for documents; returns where it is."""
    if not figures:
        reject("figures", figures, "there is nothing to draw", "Pass at least one figure.")
    framed = [_frame(_plot(figure)) for figure in figures]
    rows = [range(first, min(first + columns, len(figures))) for first in range(0, len(figures), columns)]
    panels, top, gap = [], 20.0, 36.0
    for row in rows:
        for place, i in enumerate(row):
            title = f'<text class="title" y="12">{escape(figures[i].title)}</text>'
            moved = f'transform="translate({16 + place * (_WIDTH + gap):.0f} {top:.0f})"'
            panels.append(f'<g class="panel" {moved}>{title}<g transform="translate(0 22)">{framed[i][0]}</g></g>')
        top += 22 + max(framed[i][1] for i in row) + 18
    wide = 32 + min(columns, len(figures)) * (_WIDTH + gap) - gap
    # Programs other than browsers know no variables, so the colours are written out.
    style = re.sub(r"var\(--[\w-]+, ([^)]+)\)", r"\1", read_asset("figures.css"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {wide:.0f} {top:.0f}" width="{wide:.0f}"'
    )
    text = f'{head}><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n'
    write_whole(path, text.encode())
    return path


def read_asset(name: str) -> str:
    """A text that comes with the package."""
    return (files("continua.report") / "assets" / name).read_text(encoding="utf-8")


def _plot(figure: AbstractFigure) -> _Plot:
    draws: dict[type, Callable[[Any], _Plot]] = {Lines: _lines, Bars: _bars, Heat: _heat, Paths: _paths}
    if type(figure) not in draws:
        reject("figure", figure.kind, "it cannot be drawn", "Pass Lines, Bars, Heat or Paths.")
    return draws[type(figure)](figure)


def _frame(plot: _Plot) -> tuple[str, float, str]:
    """Legend, axes and window; the height of all, and the margins as the script of the page reads them."""
    legend, rows = _legend(plot.keys)
    across, along = (tick_words(axis.ticks) if axis is not None else [] for axis in (plot.x, plot.y))
    labels = [*plot.labels, *along]
    left = max(28.0, 12.0 + 7.2 * max((len(label) for label in labels), default=1))
    top, right = 22.0 + 20.0 * rows, 10.0
    wide = _WIDTH - left - right
    high = max(wide * plot.aspect, 150.0)
    where = f'x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}"'
    box = f'class="{{}}" {where} viewBox="0 0 {_UNITS} {_UNITS}" preserveAspectRatio="none"'
    pins = [
        _Pin(0.0, 0.0, f'<text class="label" x="{-left:.0f}" y="-10">{escape(plot.y.scale.label)}</text>'),
        *(_y_tick(1.0 - plot.y.at(t), word) for t, word in zip(plot.y.ticks, along, strict=True)),
    ]
    if plot.x is not None:
        label = f'<text class="label" y="35" text-anchor="end">{escape(plot.x.scale.label)}</text>'
        pins += [_x_tick(plot.x.at(t), word) for t, word in zip(plot.x.ticks, across, strict=True)]
        pins.append(_Pin(1.0, 1.0, label))
    places = [round(_UNITS * (1.0 - plot.y.at(t))) for t in plot.y.ticks]
    lines = "".join(f'<line x1="0" x2="{_UNITS}" y1="{p}" y2="{p}"/>' for p in places)
    lines += f'<line class="axis" x1="0" x2="{_UNITS}" y1="{_UNITS}" y2="{_UNITS}"/>'
    grid = f'<svg {box.format("grid box")} overflow="visible">{lines}</svg>'
    window = f"<svg {box.format('window box')}>{plot.window}</svg>"
    marks = "".join(pin.svg(left, top, wide, high) for pin in [*pins, *plot.pins])
    margins = f"{left:.0f} {top:.0f} {right:.0f} {plot.below:.0f} {plot.aspect:.3f}"
    return legend + grid + window + marks, top + high + plot.below, margins


def _x_tick(u: float, word: str) -> _Pin:
    return _Pin(u, 1.0, f'<line class="axis" y2="4"/><text y="18" text-anchor="middle">{word}</text>', "tx")


def _y_tick(v: float, word: str) -> _Pin:
    return _Pin(0.0, v, f'<text x="-7" y="4" text-anchor="end">{word}</text>', "ty")


def _legend(keys: Sequence[tuple[str, int, str]]) -> tuple[str, int]:
    """Names with their marks, and how many rows they take; one thing alone needs none."""
    if len(keys) < 2:
        return "", 0
    parts, x, row = [], 0.0, 0
    for place, (name, colour, mark) in enumerate(keys):
        cut = name if len(name) <= 42 else f"{name[:41]}…"
        wide = 40.0 + _LETTER * len(cut)
        if x > 0.0 and x + wide > _WIDTH:
            x, row = 0.0, row + 1
        sign = f'<line class="{mark}" x2="20"/>' if mark not in ("points", "hollow", "bar") else ""
        sign += '<circle cx="10" r="3.6"/>' if mark in _DOTTED else ""
        sign += '<circle class="hole" cx="10" r="2.2"/>' if mark == "hollow" else ""
        sign += '<rect x="5" y="-5" width="10" height="10" rx="2"/>' if mark == "bar" else ""
        words = f'<title>{escape(name)}</title><text x="27" y="4.5">{escape(cut)}</text>'
        where = f'transform="translate({x:.0f} {9 + 20 * row})" data-series="{place}"'
        room = f'<rect class="room" y="-10" width="{wide - 10:.0f}" height="20"/>'
        parts.append(f'<g class="key c{colour % 8}" {where}>{room}{sign}{words}</g>')
        x += wide
    return "".join(parts), row + 1


def _notes(notes: Iterable[Note], x: PlotAxis, y: PlotAxis) -> tuple[str, list[_Pin]]:
    """Lines across the window, and the words beside them: each word once, three rows of them in turn."""
    lines: list[str] = []
    words: dict[str, _Pin] = {}
    for note in notes:
        place = (x if note.along == "x" else y).at(note.at)
        if not 0.0 <= place <= 1.0:
            continue
        text, end = escape(note.text), 'text-anchor="end"'
        if note.along == "x":
            at = round(_UNITS * place)
            lines.append(f'<line class="rule" x1="{at}" x2="{at}" y1="0" y2="{_UNITS}"/>')
            side = f'x="-5" {end}' if place > 0.5 else 'x="5"'
            pin = _Pin(place, 0.0, f'<text class="note" {side} y="{11 + 15 * (len(words) % 3)}">{text}</text>', "mx")
        else:
            at = round(_UNITS * (1.0 - place))
            lines.append(f'<line class="rule" x1="0" x2="{_UNITS}" y1="{at}" y2="{at}"/>')
            pin = _Pin(1.0, 1.0 - place, f'<text class="note" y="-5" {end}>{text}</text>', "my")
        words.setdefault(note.text, pin)
    return "".join(lines), list(words.values())


def _lines(figure: Lines) -> _Plot:
    series, levels = figure.curves, [np.array([note.at]) for note in figure.notes if note.along == "y"]
    if any(s.mark == "steps" for s in series) and not figure.y.log:
        levels.append(np.zeros(1))
    room = 0.02 if any(s.mark in _DOTTED for s in series) else 0.0  # no dot is cut by the edge
    x_ends = widen_ends(*find_ends([s.x for s in series], figure.x.log), figure.x.log, room)
    y_ends = find_ends([*(a for s in series for a in (s.y, s.low, s.high)), *levels], figure.y.log)
    named = any(s.labels for s in series)  # names want room above and below
    y_ends = pad_ends(*y_ends, figure.y.log) if not named else widen_ends(*y_ends, figure.y.log, 0.12)
    x, y = axis_between(figure.x, x_ends, 5.0), axis_between(figure.y, y_ends, 4.5)
    few = np.unique(np.concatenate([s.x for s in series]))
    if figure.x.log and 0 < len(few) <= 8 and few[0] > 0 and (few == few.round()).all():  # counts, each with a tick
        x = dataclasses.replace(x, ticks=few.tolist())
    colours = [place if s.colour is None else s.colour for place, s in enumerate(series)]
    drawn = []
    for place, (s, colour) in enumerate(zip(series, colours, strict=True)):
        u, v = _UNITS * x.place(s.x), _UNITS * (1.0 - y.place(s.y))
        shapes = []
        if s.low.size:
            band = (_UNITS * (1.0 - y.place(np.clip(a, y.low, y.high))) for a in (s.low, s.high))
            shapes.append(("area", _band(u, *band)))
        if s.mark == "steps":
            shapes += _stairs(u, v, _UNITS * (1.0 if figure.y.log else 1.0 - y.at(0.0)))
        elif s.mark not in ("points", "hollow"):
            shapes.append((s.mark, _trace(u, v)))
        if s.mark in _DOTTED:
            shapes += [(kind, _dots(u, v)) for kind in ("ring", "dots", *(["hole"] if s.mark == "hollow" else []))]
        paths = "".join(f'<path class="{kind}" d="{path}"/>' for kind, path in shapes)
        drawn.append(f'<g class="series c{colour % 8}" data-series="{place}">{paths}</g>')
    rules, pins = _notes(figure.notes, x, y)
    pins += _point_labels(series, colours, x, y)
    data = [{"name": s.name, "colour": c, "mark": s.mark, "labels": s.labels, "x": pack(s.x), "y": pack(s.y)}
            for s, c in zip(series, colours, strict=True)]  # fmt: skip
    keys = [(s.name, c, s.mark) for s, c in zip(series, colours, strict=True)]
    return _Plot(x, y, "".join(drawn) + rules, {"series": data}, keys, pins, aspect=_TALL if named else 0.5)


def _point_labels(series: Sequence[Curve], colours: Sequence[int], x: PlotAxis, y: PlotAxis) -> list[_Pin]:
    """The names of points; hollow points choose their places first. What has none is told under the pointer."""
    spots = [np.stack([x.place(s.x), 1.0 - y.place(s.y)], -1) for s in series]
    order = sorted(range(len(series)), key=lambda place: series[place].mark != "hollow")
    named = [(place, i) for place in order for i in range(len(series[place].labels))
             if np.isfinite(spots[place][i]).all()]  # fmt: skip
    points = [(float(u), float(v)) for u, v in (spots[place][i] for place, i in named)]
    labels = place_labels(points, [series[place].labels[i] for place, i in named], _TALL)
    return [
        _Pin(*point, _label(label, colours[place], place), "mx my")
        for (place, _), point, label in zip(named, points, labels, strict=True)
        if label is not None
    ]


def _label(label: Label, colour: int, series: int) -> str:
    lines = (
        f'<tspan x="{label.dx:.0f}" y="{label.dy + LINE * k:.0f}">{escape(line)}</tspan>'
        for k, line in enumerate(label.lines)
    )
    kind = f"name{' wide' if label.wide else ''} series c{colour % 8}"
    about = f'class="{kind}" data-series="{series}" text-anchor="{label.anchor}"'
    return f"<text {about}>{''.join(lines)}</text>"


def _bars(figure: Bars) -> _Plot:
    log, groups, count = figure.y.log, len(figure.categories), len(figure.names)
    low, high = find_ends([figure.values, *([] if log else [np.zeros(1)])], log)
    y = axis_between(figure.y, pad_ends(low, high, True) if log else (min(low, 0.0), 1.08 * high), 4.5)
    tops, floor = 1.0 - y.place(figure.values), 1.0 if log else 1.0 - y.at(0.0)
    thick = min(0.72 / count / groups, 0.08)
    drawn = "".join(
        f'<rect class="series bar c{i % 8}" data-series="{i}" {_corners(at, at + 0.94 * thick, tops[i, g], floor)}/>'
        for g in range(groups)
        for i in range(count)
        if np.isfinite(tops[i, g])
        for at in [(g + 0.5) / groups + (i - count / 2 + 0.03) * thick]
    )
    words = [_wrap(name, max(4, int((_NARROW - 40) / groups / _LETTER))) for name in figure.categories]
    pins = [
        _Pin((g + 0.5) / groups, 1.0, f'<text y="{17 + 15 * k}" text-anchor="middle">{escape(line)}</text>', "mx")
        for g, lines in enumerate(words)
        for k, line in enumerate(lines)
    ]
    data = {"categories": figure.categories, "names": figure.names, "values": pack(figure.values)}
    keys = [(name, i, "bar") for i, name in enumerate(figure.names)]
    return _Plot(None, y, drawn, data, keys, pins, 14.0 + 15.0 * max(len(w) for w in words))


def _heat(figure: Heat) -> _Plot:
    ranges, palette = [colour_range(panel) for panel in figure.values], palette_between(FORWARD)
    rows, columns = len(figure.rows), len(figure.columns)
    picture = f'<image class="heat" width="{_UNITS}" height="{_UNITS}" preserveAspectRatio="none" href="{{}}"/>'
    x, y = PlotAxis(figure.x, 0.0, float(columns)), PlotAxis(figure.y, 0.0, float(rows))
    shown = [i for i in _marks(columns, 5) if np.isfinite(figure.columns[i])]
    pins = [_x_tick((i + 0.5) / columns, format_tick(figure.columns[i], 3)) for i in shown]
    pins += [_y_tick(1.0 - (i + 0.5) / rows, format_tick(figure.rows[i], 3)) for i in _marks(rows, 6)]
    pins.append(_Pin(0.0, 1.0, _colour_key(figure.value, *ranges[0], palette)))
    data = {"columns": pack(figure.columns), "rows": pack(figure.rows), "values": pack(figure.values),
            "frames": pack(figure.frames), "slider": figure.slider, "panels": figure.panels, "value": figure.value,
            "ranges": ranges, "palette": base64.b64encode(palette.tobytes()).decode()}  # fmt: skip
    window = picture.format(png_address(paint(figure.values[0, 0, ::-1], *ranges[0], palette)))
    labels = [format_tick(value, 3) for value in figure.rows]
    return _Plot(x, y, window, data, (), pins, 66.0, min(max(rows / columns, 0.35), 1.0), labels)


def _paths(figure: Paths) -> _Plot:
    across, along = (find_ends([figure.points[..., k]]) for k in (0, 1))
    x, y = (axis_between(scale, widen_ends(*ends), 5.0) for scale, ends in ((figure.x, across), (figure.y, along)))
    u, v = _UNITS * x.place(figure.points[..., 0]), _UNITS * (1.0 - y.place(figure.points[..., 1]))
    low, high = find_ends([figure.tokens])
    palette = palette_between(FORWARD[1:5])
    paints = [f"rgb({r},{g},{b})" for r, g, b, _ in paint(figure.tokens, low, high, palette).tolist()]
    drawn = [f'<path class="route" color="{p}" d="{_trace(u[:, i], v[:, i])}"/>' for i, p in enumerate(paints)]
    drawn += [f'<path class="{kind}" color="{p}" d="{_dots(u[:1, i], v[:1, i])}"/>'
              for i, p in enumerate(paints) for kind in ("dots", "hole")]  # fmt: skip
    drawn += [f'<path class="token" color="{p}" d="{_dots(u[-1:, i], v[-1:, i])}"/>' for i, p in enumerate(paints)]
    data = {"tokens": pack(figure.tokens), "hue": figure.hue, "depths": pack(figure.depths), "slider": figure.slider}
    key = [_Pin(0.0, 1.0, _colour_key(figure.hue, low, high, palette))]
    return _Plot(x, y, "".join(drawn), data, (), key, 66.0, 0.66)


def _trace(u: np.ndarray, v: np.ndarray) -> str:
    """A line through the points, broken where one is missing."""
    path, pen = [], "M"
    for a, b in zip(u.tolist(), v.tolist(), strict=True):
        if np.isfinite(a + b):
            path.append(f"{pen}{a:.0f} {b:.0f}")
        pen = "L" if np.isfinite(a + b) else "M"
    return "".join(path)


def _dots(u: np.ndarray, v: np.ndarray) -> str:
    """Lines of no length: with round ends they are dots, round in any window, however it is stretched."""
    return "".join(f"M{a:.0f} {b:.0f}h0" for a, b in zip(u.tolist(), v.tolist(), strict=True) if np.isfinite(a + b))


def _band(u: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    known = np.isfinite(u + low + high)
    around = [*zip(u[known], high[known], strict=True), *zip(u[known][::-1], low[known][::-1], strict=True)]
    return f"M{'L'.join(f'{a:.0f} {b:.0f}' for a, b in around)}Z" if around else ""


def _stairs(u: np.ndarray, v: np.ndarray, floor: float) -> list[tuple[str, str]]:
    """The top of every step, and the area between it and the floor."""
    steps = [each for each in zip(u[:-1], u[1:], v[:-1], strict=True) if np.isfinite(each).all()]
    areas = (f"M{a:.0f} {floor:.0f}V{h:.0f}H{b:.0f}V{floor:.0f}Z" for a, b, h in steps)
    return [("area", "".join(areas)), ("line", "".join(f"M{a:.0f} {h:.0f}H{b:.0f}" for a, b, h in steps))]


def _corners(left: float, right: float, one: float, other: float) -> str:
    top, bottom = sorted((_UNITS * one, _UNITS * other))
    size = f'width="{_UNITS * (right - left):.0f}" height="{max(bottom - top, 40.0):.0f}"'
    return f'x="{_UNITS * left:.0f}" y="{top:.0f}" {size}'


def _wrap(name: str, letters: int) -> list[str]:
    """A name in lines of at most so many letters; a longer word is cut."""
    words = (word if len(word) <= letters else f"{word[: letters - 1]}…" for word in name.split(" "))
    return textwrap.wrap(" ".join(words), letters, break_on_hyphens=False) or [""]


def _marks(count: int, most: int) -> list[int]:
    """Places spread evenly over a list, the ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


def _colour_key(label: str, low: float, high: float, palette: np.ndarray) -> str:
    first, x = format_tick(low), 6.4 * len(label) + 9
    bar = x + _LETTER * len(first) + 6
    image = f'<image x="{bar:.0f}" y="49" width="80" height="10" preserveAspectRatio="none" href="{{}}"/>'
    strip = np.concatenate([palette[None, ::8], np.full((1, 32, 1), 255, np.uint8)], -1)
    texts = (f'<text y="58">{escape(label)}</text>', f'<text class="low" x="{x:.0f}" y="58">{first}</text>',
             f'<text class="high" x="{bar + 86:.0f}" y="58">{format_tick(high)}</text>')  # fmt: skip
    return f'<g class="colours">{"".join(texts)}{image.format(png_address(strip))}</g>'
