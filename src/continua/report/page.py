"""One page that holds everything: text, numbers, style and script; it asks nothing of any network."""

import dataclasses
import json
import math
import re
import string
from collections.abc import Sequence
from html import escape
from html.entities import html5
from typing import final

from continua.report.drawing import figure_svg, read_asset
from continua.report.scales import format_number
from continua.runs import AbstractFigure, Cell, Paper, Passage, Section, Table, Verdict


@final
@dataclasses.dataclass(frozen=True)
class Page:
    """A report before it is written.

    - `title`, `subtitle`: what was run, and when and with what;
    - `cards`: a few numbers that a reader wants first, each with what it is;
    - `sections`: in their order; those of one heading are shown together, each under its source;
    - `papers`: the methods used; `appendix`: pairs of a summary and plain text, folded away.
    """

    title: str
    subtitle: str
    sections: Sequence[Section]
    cards: Sequence[tuple[str, str]] = ()
    papers: Sequence[Paper] = ()
    appendix: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        """The page as one text."""
        groups: dict[str, list[Section]] = {}
        for section in self.sections:
            groups.setdefault(section.heading, []).append(section)
        bodies = {heading: _body(group) for heading, group in groups.items()}
        if self.papers:
            items = "".join(f"<li>{escape(str(paper))}</li>" for paper in self.papers)
            about = "<p>What the models of this report use, and where it comes from.</p>"
            bodies["Papers"] = f'{about}<ol class="papers">{items}</ol>'
        if self.appendix:
            folded = "<details><summary>{}</summary><pre>{}</pre></details>"
            bodies["How it was run"] = "".join(folded.format(escape(s), escape(t)) for s, t in self.appendix)
        plain = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part" for name in bodies]
        anchors = [word if word not in plain[:i] else f"{word}-{i}" for i, word in enumerate(plain)]
        parts = list(zip(anchors, map(escape, bodies), bodies.values(), strict=True))
        cards = "".join(f'<div class="card"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in self.cards)
        return string.Template(read_asset("page.html")).substitute(
            title=escape(self.title),
            subtitle=escape(self.subtitle),
            styles=read_asset("page.css"),
            drawing=read_asset("figures.css"),
            cards=f'<div class="cards">{cards}</div>' if cards else "",
            links="".join(f'<li><a href="#{anchor}">{name}</a></li>' for anchor, name, _ in parts),
            blocks="".join(f'<section id="{a}"><h2>{name}</h2>\n{body}</section>\n' for a, name, body in parts),
            script=read_asset("figures.js"),
        )


def _body(group: Sequence[Section]) -> str:
    """Sections of one heading: what they all say is said once, then each source has its figures."""
    said = dict.fromkeys(text for section in group for text in section.prose)
    # parts that are set apart by a space in quotes may stand below each other, where there is little room
    formulas = [re.split(r'"\s+"', text) for text in dict.fromkeys(section.formula for section in group) if text]
    shown = {id(section): _figures(section) + _verdict(section.verdict) for section in group}
    sourced = [section for section in group if section.source and len(group) > 1]
    columns = "".join(f"<div><h3>{escape(section.source)}</h3>{shown[id(section)]}</div>" for section in sourced)
    return "".join([
        *(f"<p>{escape(text)}</p>" for text in said),
        *(f'<div class="formula">{"".join(map(mathml, parts))}</div>' for parts in formulas),
        *(shown[id(section)] for section in group if section not in sourced),
        f'<div class="sources">{columns}</div>' if columns else "",
    ])  # fmt: skip


def _figures(section: Section) -> str:
    """Small figures two in a row where there is room, tables and pictures on their own."""
    parts, small = [], []
    for figure in section.figures:
        if figure.kind in ("table", "passage", "heat", "paths"):
            parts += [_pair(small), figure_html(figure)]
            small = []
        else:
            small.append(figure_html(figure))
    return "".join([*parts, _pair(small)])


def _pair(figures: Sequence[str]) -> str:
    return f'<div class="pair">{"".join(figures)}</div>' if len(figures) > 1 else "".join(figures)


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    word = {None: "", True: "holds", False: "fails"}[verdict.holds]
    return f'<p class="verdict {word}">{f"<b>{word}</b>" if word else ""}{escape(verdict.text)}</p>'


def figure_html(figure: AbstractFigure) -> str:
    """One `<figure>`: caption, drawing or table, how it was measured."""
    bodies = {Table: _table, Passage: _passage}
    body = bodies.get(type(figure), _drawing)(figure)
    caption = f"<strong>{escape(figure.title)}</strong>{escape(figure.caption)}"
    measured = f'<p class="measured">Measured: {escape(figure.measured)}</p>' if figure.measured else ""
    return f'<figure class="{figure.kind}"><figcaption>{caption}</figcaption>{body}{measured}</figure>'


def _drawing(figure: AbstractFigure) -> str:
    svg, data = figure_svg(figure)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # Escaped so that no name can end the script element that it stands in.
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<div class="plot">{svg}</div><script type="application/json" class="figure">{safe}</script>'


def _table(table: Table) -> str:
    columns = [[row[i] for row in table.rows if row[i] is not None] for i in range(len(table.columns))]
    words = [bool(cells) and all(isinstance(cell, str) for cell in cells) for cells in columns]
    mark = [' class="word"' if word and i else "" for i, word in enumerate(words)]
    head = "".join(f'<th scope="col"{m}>{escape(name)}</th>' for name, m in zip(table.columns, mark, strict=True))
    kind = _phone_layout(table)
    labels = [f' data-label="{escape(name)}"' if kind == "stacked" else "" for name in table.columns]
    both = [m + label for m, label in zip(mark, labels, strict=True)]
    rows = ""
    for row in table.rows:
        first, *cells = (escape(format_number(cell)) for cell in row)
        shades = _shades(table, row) if table.shaded else [""] * len(cells)
        others = "".join(f"<td{a}{s}>{cell}</td>" for a, s, cell in zip(both[1:], shades, cells, strict=True))
        rows += f'<tr><th scope="row">{first}</th>{others}</tr>'
    kind += " shaded" if table.shaded else ""
    whole = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{whole}</div>'


def _shades(table: Table, row: Sequence[Cell]) -> list[str]:
    """The ground of each cell: its fraction of the row; in the column of the row's own name, in the colour of right."""
    named = {str(other[0]) for other in table.rows}
    counts = [cell if name in named and isinstance(cell, int | float) else 0.0
              for name, cell in zip(table.columns[1:], row[1:], strict=True)]  # fmt: skip
    total = max(sum(counts), 1e-300)
    colours = ["good" if name == str(row[0]) else "accent" for name in table.columns[1:]]
    mix = ' style="background: color-mix(in srgb, var(--{}) {:.0f}%, transparent)"'
    return [mix.format(colour, 8 + 72 * count / total) if count else ""
            for colour, count in zip(colours, counts, strict=True)]  # fmt: skip


def _passage(passage: Passage) -> str:
    """Pieces of text, each on a ground that is the stronger the smaller its number; without a number in bold."""
    mix = '<span style="background: color-mix(in srgb, var(--c1) {:.0f}%, transparent)">{}</span>'
    parts = []
    for piece, value in zip(passage.pieces, passage.values.tolist(), strict=True):
        text = escape(piece)
        parts.append(
            f"<b>{text}</b>" if math.isnan(value) else text if value >= 1.0 else mix.format(70 * (1 - value), text)
        )
    return f'<pre class="passage">{"".join(parts)}</pre>'


def _phone_layout(table: Table) -> str:
    """How a phone shows a table of many columns: in small print where that fits, else each row as a block of lines.

    Of very many columns neither helps, and the table is moved sideways under its first column.
    """
    lines = [table.columns, *([format_number(cell) for cell in row] for row in table.rows)]
    if len(table.columns) <= 4:
        # names and words may be broken between words, numbers nowhere
        words = [
            max(len(word) for line in lines for word in (line[i].split() or [""])) for i in range(len(table.columns))
        ]
        return "plain" if 7.6 * sum(words) + 9 * len(words) < 330 else "stacked"
    letters = sum(max(len(line[i]) for line in lines) for i in range(len(table.columns)))
    if 6.2 * letters + 5 * len(table.columns) < 300:
        return "dense"
    return "stacked" if len(table.columns) <= 12 and not table.shaded else "plain"


_TOKENS = re.compile(r'"[^"]*"|[A-Za-z]+|[α-ωΑ-Ω]|\d+(?:\.\d+)?|\S')
_LARGE = {"sum": "∑", "int": "∫"}
_SIGNS = {"-": "−", "*": "·", "'": "′", "del": "∂"}


def mathml(formula: str) -> str:
    """`a_i = frac{1}{2} sum_j e^{beta x_j}` as a block of MathML, which browsers typeset: no script, no font.

    Words: Greek letters; sum, int, del; frac{a}{b}, sqrt{a}; `_` and `^` take one symbol or {a group}; "words in
    quotes" are text. Everything else stands for itself.
    """
    return f'<math display="block">{_math_row(_TOKENS.findall(formula)[::-1], None)}</math>'


def _math_row(tokens: list[str], end: str | None) -> str:
    """All up to `end`, taken from the tokens, of which the next one is the last of the list."""
    parts = []
    while tokens and tokens[-1] != end:
        parts.append(_math_scripts(tokens))
    if end is not None and tokens:
        tokens.pop()
    return f"<mrow>{''.join(parts)}</mrow>"


def _math_scripts(tokens: list[str]) -> str:
    """A symbol with what stands below and above it."""
    tags = ("munder", "mover", "munderover") if tokens[-1] in _LARGE else ("msub", "msup", "msubsup")
    base, scripts = _math_symbol(tokens), {}
    while tokens and tokens[-1] in ("_", "^") and tokens[-1] not in scripts:
        place = tokens.pop()
        scripts[place] = _math_symbol(tokens)
    if not scripts:
        return base
    tag = tags[2] if len(scripts) == 2 else tags["_^".index(next(iter(scripts)))]
    return f"<{tag}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{tag}>"


def _math_symbol(tokens: list[str]) -> str:
    token = tokens.pop() if tokens else "{"
    if token == "{":
        return _math_row(tokens, "}")
    if token in ("frac", "sqrt"):
        return f"<m{token}>{''.join(_math_symbol(tokens) for _ in range(2 if token == 'frac' else 1))}</m{token}>"
    if token in _LARGE:
        return f'<mo movablelimits="false">{_LARGE[token]}</mo>'
    if token.startswith('"'):
        text = token.strip('"')
        return f"<mtext>{escape(text)}</mtext>"
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.isalpha() and token not in _SIGNS:
        letter = html5.get(f"{token};", "")  # the entities of HTML name all Greek letters, and much else
        return f"<mi>{letter if 'Α' <= letter <= 'ω' else token}</mi>"
    still = ' stretchy="false"' if token in "()[]⟨⟩|" else ""
    return f"<mo{still}>{escape(_SIGNS.get(token, token))}</mo>"
