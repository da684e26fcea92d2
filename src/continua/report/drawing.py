"""Figures in a page: the data for the script that draws them, tables as they are."""

import base64
import dataclasses
import json
from html import escape
from typing import Any

import numpy as np

from continua.report.digits import shown
from continua.runs import AbstractFigure, Table

_PACKED = 512
"""Longer arrays are written as base64 of single precision, where that can hold them: shorter, and read at once."""


def figure_html(figure: AbstractFigure) -> str:
    """One `<figure>`: caption, drawing or table, how it was measured."""
    body = _table(figure) if isinstance(figure, Table) else _drawing(figure)
    caption = f"<strong>{escape(figure.title)}</strong>{escape(figure.caption)}"
    measured = f'<p class="measured">Measured: {escape(figure.measured)}</p>' if figure.measured else ""
    return f'<figure class="{figure.kind}"><figcaption>{caption}</figcaption>{body}{measured}</figure>'


def _drawing(figure: AbstractFigure) -> str:
    told = f"<noscript><p>This figure needs JavaScript: {escape(figure.title)}.</p></noscript>"
    spec = json.dumps(page_data(figure), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    data = f'<script type="application/json" class="figure">{_inside_script(spec)}</script>'
    return f'<div class="drawing"></div>{told}{data}'


def _inside_script(text: str) -> str:
    """JSON that cannot end the script element it stands in, whatever it says."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(value: Any) -> Any:
    """A figure as the script of the page reads it."""
    if isinstance(value, np.ndarray):
        return _array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: page_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {**held, "kind": value.kind} if isinstance(value, AbstractFigure) else held
    return [page_data(item) for item in value] if isinstance(value, tuple) else value


def _array(value: np.ndarray) -> dict[str, Any]:
    if value.size > _PACKED and not (np.abs(value[np.isfinite(value)]) > np.finfo(np.float32).max).any():
        return {"base64": base64.b64encode(value.astype("<f4").tobytes()).decode()}
    return {"values": [float(f"{x:.7g}") if np.isfinite(x) else None for x in value.ravel().tolist()]}


def _table(table: Table) -> str:
    columns = [[row[i] for row in table.rows if row[i] is not None] for i in range(len(table.columns))]
    words = [bool(cells) and all(isinstance(cell, str) for cell in cells) for cells in columns]
    mark = [' class="word"' if word and i else "" for i, word in enumerate(words)]
    head = "".join(f'<th scope="col"{m}>{escape(name)}</th>' for name, m in zip(table.columns, mark, strict=True))
    rows = "".join(f"<tr>{_row(row, mark)}</tr>" for row in table.rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(row: tuple[str | int | float | None, ...], mark: list[str]) -> str:
    first = f'<th scope="row">{escape(shown(row[0]))}</th>' if row else ""
    return first + "".join(f"<td{m}>{escape(shown(cell))}</td>" for cell, m in zip(row[1:], mark[1:], strict=True))
