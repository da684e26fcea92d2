"""The words behind a command, looked at before tyro reads them.

tyro tells of mistakes in boxes of its own, and has no public way to tell them otherwise. The commands here are flat,
each option of one plain type; so what cannot be read is found by the fields alone, and told in one line that names the
option, the nearest one and the cure, as every other mistake is.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tyro

from continua.cli.choices import meant, more
from continua.core.errors import ArgumentError, reject

_HELP = ("-h", "--help")
_LOOKS_LIKE_AN_OPTION = re.compile(r"--?[^\W\d]|--$")
_NEGATIVE = ("-inf", "-nan", "-infinity")
_LONG = "\u2010-\u2015\u2212"
_LONG_DASH = re.compile(rf"[-{_LONG}]*[{_LONG}][-{_LONG}]*(?=[^\W\d])")
_ANSWERS = ("true", "false", "yes", "no", "on", "off", "0", "1")
LARGEST = 2**63
"""Whole numbers that torch can hold are smaller."""


class MisuseError(ValueError):
    """Words that are no use of a command: what is wrong, and where to read on."""


class _Taken(NamedTuple):
    """What a field of a command takes: which plain types, and how it is called where it has no dashes."""

    name: str
    kinds: frozenset[type]
    positional: bool
    many: bool
    needed: bool
    shown: str

    @property
    def is_flag(self) -> bool:
        return self.kinds == {bool}


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a word asks for help; what comes behind `--` is no option."""
    return any(word in _HELP for word in before_dashes(words))


def kinds_of(hint: Any) -> frozenset[type]:
    """The plain types that a hint allows."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return frozenset(member for member in members if isinstance(member, type))


def arranged(command: str, kind: type[Any], words: Sequence[str]) -> list[str]:
    """The words as tyro reads them without doubt: options first, each one word with its value, and others behind `--`.

    Refuses words that are no options of `kind`, values that options cannot have, and words that are missing.
    """
    fields = _fields(kind)
    options = {f"--{name.replace('_', '-')}": taken for name, taken in fields.items() if not taken.positional}
    free = [taken for taken in fields.values() if taken.positional]
    rest, given, placed, literal = list(words), list[str](), list[str](), False
    while rest:
        word = rest.pop(0)
        if literal or not _is_option(word):
            _place(command, free, len(placed), word, literal)
            placed.append(word)
        elif word == "--":
            literal = True
        else:
            given.append(_option(command, options, word, rest))
    missing = [taken.shown for taken in free[len(placed) :] if taken.needed]
    if missing:
        needed = missing[0].split()[0]
        raise MisuseError(f"{needed} is missing. Write `continua {command} {missing[0]}`. {more(command)}")
    return [*given, "--", *placed] if placed else given


def _is_option(word: str) -> bool:
    return _LOOKS_LIKE_AN_OPTION.match(word) is not None and word.lower() not in _NEGATIVE


def _option(command: str, options: dict[str, _Taken], word: str, rest: list[str]) -> str:
    """One option with its value, which is taken from the rest of the words; both as one word."""
    given, equals, value = word.partition("=")
    name = given.replace("_", "-")
    if name not in options:
        raise MisuseError(
            f"there is no option {given!r} of `continua {command}`. {meant(name, options)}{more(command)}"
        )
    taken = options[name]
    if taken.is_flag:
        answer = value if equals else rest[0] if rest and rest[0].lower() in _ANSWERS else None
        if answer is not None:
            _refuse(command, name, answer, "this option takes no value", f"Write {name} alone, or leave it out.")
        return name
    if not equals:
        if not rest or _is_option(rest[0]):
            behind = f", and {rest[0]!r} is another option" if rest else ""
            cure = f"Write it behind: {name} {_example(taken)}."
            raise MisuseError(f"{name} needs a value{behind}. {cure} {more(command)}")
        value = rest.pop(0)
    _check_value(command, name, taken, value)
    return f"{name}={value}"


def _check_value(command: str, name: str, taken: _Taken, value: str) -> None:
    """Refuses a value of the wrong type, and a path that is empty: it would be the folder one is in."""
    if Path in taken.kinds and value == "":
        _refuse(command, name, value, "this is empty", "Pass a path, or leave the option out.")
    if taken.kinds & {str, Path} or (value == "None" and type(None) in taken.kinds):
        return
    try:
        if bool in taken.kinds:
            if value not in ("True", "False"):
                near = value.capitalize() if value.lower() in ("true", "false") else "True"
                _refuse(command, name, value, "True or False is needed", f"Pass {name} {near}.")
        elif float in taken.kinds:
            if not math.isfinite(float(value)):
                _refuse(command, name, float(value), "this is no finite number", "Pass a finite number.")
        elif abs(int(value)) >= LARGEST:
            _refuse(command, name, int(value), "this number is too large", "Pass a smaller one.")
    except ArgumentError:
        raise
    except ValueError:
        whole = float not in taken.kinds
        what = "this is no whole number" if whole else "this is no number"
        _refuse(command, name, value, what, f"Pass one, such as {name} {_rounded(value) if whole else '0.5'}.")


def _rounded(value: str) -> str:
    """The whole number that was meant by `1e3` or `8.0`; any other where it was none."""
    try:
        number = float(value)
    except ValueError:
        return "8"
    return str(round(number)) if math.isfinite(number) and abs(number) < LARGEST else "8"


def _place(command: str, free: list[_Taken], found: int, word: str, literal: bool) -> None:
    """Refuses a word that no place is left for, one that is empty, and an option as a web page prints it."""
    if not literal and (dash := _LONG_DASH.match(word)):
        cure = f"Write --{word[dash.end() :]}."
        raise MisuseError(f"{word!r} begins with a long dash, and options with two short ones. {cure} {more(command)}")
    if word == "" and free and Path in free[min(found, len(free) - 1)].kinds:
        _refuse(command, free[min(found, len(free) - 1)].shown.split()[0], word, "this is empty", "Pass a path.")
    if found < len(free) or (free and free[-1].many):
        return
    places = " ".join(taken.shown for taken in free)
    takes = f"{places} and options" if places else "options, which begin with --"
    raise MisuseError(f"{word!r} is one word too many: `continua {command}` takes {takes}. {more(command)}")


def _refuse(command: str, name: str, value: object, why: str, cure: str) -> NoReturn:
    reject(name, value, why, f"{cure} {more(command)}")


def _example(taken: _Taken) -> str:
    return "8" if int in taken.kinds else "0.5" if float in taken.kinds else taken.shown


def _fields(kind: type[Any]) -> dict[str, _Taken]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _taken(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _taken(field: "dataclasses.Field[Any]", hint: Any) -> _Taken:
    extras = getattr(hint, "__metadata__", ())
    plain = typing.get_args(hint)[0] if extras else hint
    many = typing.get_origin(plain) is tuple
    kinds = kinds_of(typing.get_args(plain)[0] if many else plain)
    shown = next((each.metavar for each in extras if getattr(each, "metavar", None)), field.name.upper())
    needed = field.default is dataclasses.MISSING
    return _Taken(field.name, kinds, tyro.conf.Positional in extras, many, needed, shown)


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words before `--`; those behind it are no options."""
    return words[: words.index("--")] if "--" in words else words
