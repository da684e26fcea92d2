"""The reference, made from the docstrings when the site is built: one page per room, one entry per public name.

A name is public where `continua.api` or a room's `__all__` says so; nothing is listed here, so nothing is forgotten.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import continua
from tools.formulas import split_formula, typeset

_ORDER = (
    "model",
    "operators",
    "fields",
    "solve",
    "control",
    "optim",
    "spaces",
    "data",
    "train",
    "report",
    "runs",
    "lab",
)
"""In the order in which people need them; rooms that are not named come behind."""


def _find_rooms() -> tuple[str, ...]:
    """Rooms, and modules beside them, that say what they export; `continua.api` is what `continua` itself gives."""
    found = [
        module.name for module in pkgutil.iter_modules(continua.__path__) if module.name not in ("api", "__main__")
    ]
    named = [name for name in found if getattr(importlib.import_module(f"continua.{name}"), "__all__", None)]
    return tuple(sorted(named, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)))


ROOMS = _find_rooms()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One public name: where it is imported from, and the thing itself."""

    name: str
    home: str
    thing: Any

    @property
    def path(self) -> str:
        """As a user writes it."""
        return f"{self.home}.{self.name}"

    def markdown(self) -> str:
        """Heading, call, docstring, and the methods that are its own."""
        parts = [f"### {self.name} {{ #{self.path} }}", f"```python\n{self.path}{signature(self.thing)}\n```"]
        parts.append(prose(documentation(self.name, self.thing)))
        if inspect.isclass(self.thing):
            parts += [_member(name, held) for name, held in own_members(self.thing)]
        return "\n\n".join(part for part in parts if part)


def entries(room: str) -> list[Entry]:
    """Every public name of a room; those of `continua` itself come first, as `continua.NAME`."""
    module = importlib.import_module(f"continua.{room}")
    names = sorted(module.__all__, key=lambda name: (name not in continua.__all__, name.lower()))
    found = [Entry(name, _home(name, room, getattr(module, name)), getattr(module, name)) for name in names]
    # a thing that a room before this one exports as well has its entry there
    return [entry for entry in found if not any(_exports(other, entry) for other in ROOMS[: ROOMS.index(room)])]


def _home(name: str, room: str, thing: Any) -> str:
    """`continua` where that name is this very thing: `continua.load` reads runs too, and is not the one of `model`."""
    return "continua" if name in continua.__all__ and getattr(continua, name) is thing else f"continua.{room}"


def _exports(room: str, entry: Entry) -> bool:
    module = importlib.import_module(f"continua.{room}")
    return entry.name in module.__all__ and getattr(module, entry.name) is entry.thing


def elsewhere() -> list[Entry]:
    """Names of `continua` that no room exports: those that need an extra, such as the estimators of scikit-learn."""
    known = {entry.path for room in ROOMS for entry in entries(room)}
    return [Entry(n, "continua", getattr(continua, n)) for n in dir(continua) if f"continua.{n}" not in known]


def pages() -> dict[str, str]:
    """The markdown of every page, by its file name."""
    rooms = {room: importlib.import_module(f"continua.{room}").__doc__ or "" for room in ROOMS}
    made = {f"{room}.md": _room_page(room, about) for room, about in rooms.items()}
    return {"index.md": _index(rooms), **made}


def signature(thing: Any) -> str:
    """The arguments as they are written in the source, types without the modules that they come from."""
    if not callable(thing) or (inspect.isclass(thing) and inspect.isabstract(thing)):
        return ""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Z])", "", text).removesuffix(" -> None")
    text = re.sub(r"<class '([\w.]*\.)?(\w+)'>", r"\2", text)
    if len(text) < 80:
        return text
    inner, _, rest = text[1:].rpartition(")")
    return "(\n" + "".join(f"    {part},\n" for part in _split(inner)) + ")" + rest


def documentation(name: str, thing: Any) -> str:
    """What somebody wrote of it; what `dataclass` and `NamedTuple` write by themselves does not count."""
    text = inspect.getdoc(thing) or "" if callable(thing) and hasattr(thing, "__module__") else ""
    return "" if text.startswith(f"{name}(") else text


def own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that a class or its project's bases document, in the order of their definition."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("continua"):
            continue
        for name, held in vars(base).items():
            function = getattr(held, "__func__", held)
            documented = isinstance(held, property) or inspect.isfunction(function)
            if name.startswith("_") or name in seen or not documented or not inspect.getdoc(held):
                continue
            seen.add(name)
            yield name, held


def prose(text: str) -> str:
    """A docstring as markdown: formulas typeset, links to pages, no sign taken for a tag."""
    first, *others = re.split(r"\n\n+", text)
    formula, first = split_formula(" ".join(first.split())) if not first.startswith("- ") else ("", first)
    blocks = [typeset(formula)] if formula else []
    for block in [first, *others]:
        if block.startswith("    "):
            code = inspect.cleandoc(block)
            blocks.append(typeset(code) if _is_formula(code) else f"```python\n{code}\n```")
        else:
            blocks.append(_inline(block))
    return "\n\n".join(blocks)


def _inline(text: str) -> str:
    """Signs of markdown and of HTML escaped outside of code; a list begins after an empty line."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    joined = re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", "".join(parts))
    return re.sub(r"(?<=[^\n-])\n(?=- )", "\n\n", joined, count=1) if not joined.startswith("- ") else joined


def _is_formula(code: str) -> bool:
    return not re.search(r"\w\.\w+\(|lambda|\bfor\b|continua|import |`|\w=\w", code)


def _member(name: str, held: Any) -> str:
    function = getattr(held, "__func__", held)
    call = "" if isinstance(held, property) else signature(function).replace("(self, ", "(").replace("(self)", "()")
    call = re.sub(r"^\((?:self|cls),? ?", "(", re.sub(r"\n    (?:self|cls),", "", call))
    head = re.sub(r"\s+", " ", call).replace("( ", "(").replace(", )", ")")
    body = _inline(" ".join(inspect.getdoc(held).split("\n\n")[0].split()))
    return f"`.{name}{head}`\n:   {body}"


def _split(inner: str) -> Iterator[str]:
    """Arguments, cut at the commas that stand in no bracket and no quotes."""
    depth, quoted, part = 0, "", ""
    for sign in inner:
        if sign in "'\"":
            quoted = "" if sign == quoted else quoted or sign
        depth += 0 if quoted else {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0 and not quoted:
            yield part.strip()
            part = ""
        else:
            part += sign
    yield part.strip()


def _room_page(room: str, about: str) -> str:
    found = entries(room)
    front = [entry for entry in found if entry.home == "continua"]
    rest = [entry for entry in found if entry.home != "continua"]
    said = re.sub(r"^Floor \d+: ", "", about.split("\n")[0])
    parts = [f"# continua.{room}", _inline(said[:1].upper() + said[1:])]
    for title, group in (("Names of `continua`", front), ("Further names of the room", rest)):
        if group:
            parts += [f"## {title}", *(entry.markdown() for entry in group)]
    return "\n\n".join(parts) + "\n"


def _index(rooms: dict[str, str]) -> str:
    parts = ["# Reference", "Every public name, made from the docstrings. The names of the first table are those of "
             "`continua` itself; each room has more, which its page lists."]  # fmt: skip
    rows = ["| name | what it is | room |", "|---|---|---|"]
    found = [(entry, "") for entry in elsewhere()]
    found += [(entry, room) for room in rooms for entry in entries(room) if entry.home == "continua"]
    for entry, room in found:
        said = _inline(" ".join(documentation(entry.name, entry.thing).split("\n\n")[0].split()))
        said = said.replace("|", r"\|")  # a bar would end the cell
        rows.append(f"| [{entry.name}]({f'{room}.md' if room else ''}#{entry.path}) | {said} | {room} |")
    parts += ["\n".join(rows), *(entry.markdown() for entry in elsewhere())]
    return "\n\n".join(parts) + "\n"
