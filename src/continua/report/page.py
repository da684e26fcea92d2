"""One page that holds everything: text, numbers, style and script; it asks nothing of any network."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import final

from continua.report.drawing import figure_html
from continua.report.formula import mathml
from continua.runs import Reference, Section, Table, Verdict

_SCRIPTS = ("base.js", "curves.js", "pictures.js", "start.js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser may load for the page: nothing but what is written in it."""


@final
@dataclasses.dataclass(frozen=True)
class Page:
    """A report before it is written.

    - `title`, `subtitle`: what was run, and when and with what;
    - `cards`: a few numbers that a reader wants first, each with what it is;
    - `sections`: in their order; those of one heading are shown together, each under its source;
    - `references`: the methods used; `appendix`: pairs of a summary and plain text, folded away.
    """

    title: str
    subtitle: str
    sections: Sequence[Section]
    cards: Sequence[tuple[str, str]] = ()
    references: Sequence[Reference] = ()
    appendix: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        """The page as one text."""
        groups = _grouped(self.sections)
        names = [*groups, *(["References"] if self.references else []), *(["How it was run"] if self.appendix else [])]
        anchors = dict(zip(names, _anchors(names), strict=True))
        blocks = [_section(anchors[name], name, group) for name, group in groups.items()]
        if self.references:
            blocks.append(_block(anchors["References"], "References", _references(self.references)))
        if self.appendix:
            blocks.append(_block(anchors["How it was run"], "How it was run", _appendix(self.appendix)))
        links = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for name, anchor in anchors.items())
        cards = "".join(f'<div class="card"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in self.cards)
        script = "\n".join(_packaged(name) for name in _SCRIPTS)
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="continua">
<title>{escape(self.title)}</title>
<style>
{_packaged("page.css")}</style>
</head>
<body>
<div class="frame">
<header><h1>{escape(self.title)}</h1><p class="meta">{escape(self.subtitle)}</p></header>
{f'<div class="cards">{cards}</div>' if cards else ""}
<div class="body">
<nav aria-label="Contents"><ol>{links}</ol></nav>
<main>
{"".join(blocks)}
</main>
</div>
<footer>Written by continua. This page is one file and loads nothing else.</footer>
</div>
<script>
{script}
</script>
</body>
</html>
"""


def _packaged(name: str) -> str:
    return (files("continua.report") / "assets" / name).read_text(encoding="utf-8")


def _grouped(sections: Iterable[Section]) -> dict[str, list[Section]]:
    groups: dict[str, list[Section]] = {}
    for section in sections:
        groups.setdefault(section.heading, []).append(section)
    return groups


def _anchors(names: Sequence[str]) -> list[str]:
    plain = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part" for name in names]
    return [word if word not in plain[:i] else f"{word}-{i}" for i, word in enumerate(plain)]


def _block(anchor: str, heading: str, body: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(heading)}</h2>\n{body}</section>\n'


def _section(anchor: str, heading: str, group: Sequence[Section]) -> str:
    """Sections of one heading: what they all say is said once, then each source has its figures."""
    body = "".join(f"<p>{escape(text)}</p>" for text in _once(text for s in group for text in s.prose))
    body += "".join(f'<div class="formula">{mathml(f)}</div>' for f in _once(s.formula for s in group if s.formula))
    shown = {id(s): _figures(s) + _verdict(s.verdict) for s in group}
    sourced = [s for s in group if s.source and len(group) > 1]
    body += "".join(shown[id(s)] for s in group if s not in sourced)
    columns = "".join(f"<div><h3>{escape(s.source)}</h3>{shown[id(s)]}</div>" for s in sourced)
    return _block(anchor, heading, body + (f'<div class="sources">{columns}</div>' if columns else ""))


def _figures(section: Section) -> str:
    """Small figures two in a row where there is room, tables and pictures on their own."""
    parts, small = [], []
    for figure in section.figures:
        if isinstance(figure, Table) or figure.kind in ("heat", "paths"):
            parts += [_paired(small), figure_html(figure)]
            small = []
        else:
            small.append(figure_html(figure))
    return "".join([*parts, _paired(small)])


def _paired(figures: Sequence[str]) -> str:
    return f'<div class="pair">{"".join(figures)}</div>' if len(figures) > 1 else "".join(figures)


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    word = {None: "", True: "holds", False: "fails"}[verdict.holds]
    told = f"<b>{word}</b>" if word else ""
    return f'<p class="verdict {word}">{told}{escape(verdict.text)}</p>'


def _references(references: Sequence[Reference]) -> str:
    items = "".join(f"<li>{escape(str(reference))}</li>" for reference in references)
    return f'<p>What the models of this report use, and where it comes from.</p><ol class="references">{items}</ol>'


def _appendix(appendix: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<details><summary>{escape(s)}</summary><pre>{escape(t)}</pre></details>" for s, t in appendix)


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
