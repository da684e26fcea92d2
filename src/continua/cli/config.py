"""Options by their names: from a TOML file (`--config run.toml`), and in messages to whoever typed them."""

import dataclasses
import math
import tomllib
import typing
from pathlib import Path
from typing import Any

import tyro

from continua.cli.choices import meant
from continua.cli.words import LARGEST, before_dashes, kinds_of
from continua.core.errors import ArgumentError, reject

_OTHERWISE = {"window": "context", "file": "series", "run": "resume"}
"""Arguments of tasks that have other names as options."""


def flag(name: str) -> str:
    """The option that fills a field."""
    return f"--{name.replace('_', '-')}"


def told(error: Exception, kind: type[Any]) -> str:
    """The message of an error, where an argument that is an option of the command has the name that the user typed."""
    if not isinstance(error, ArgumentError):
        return str(error)
    hints = typing.get_type_hints(kind, include_extras=True)
    options = {name for name, hint in hints.items() if tyro.conf.Positional not in typing.get_args(hint)}
    name = error.argument if error.argument in options else _OTHERWISE.get(error.argument, "")
    if name in options:
        return error.told(flag(name))
    return error.told("RUN") if error.argument == "run" else str(error)


def configured(kind: type[Any], words: list[str]) -> tuple[Any, list[str]]:
    """The options of the file in `--config=FILE`, as an object with all others at their defaults, and the other words.

    The words are those of `arranged`; without a file there is no object. A second file is refused, and by its name an
    unknown key, a wrong type or a number that is not finite.
    """
    if not any(field.name == "config" for field in dataclasses.fields(kind)):
        return None, words
    places = [place for place, word in enumerate(before_dashes(words)) if word.startswith("--config=")]
    files = [words[place].partition("=")[2] for place in places]
    if len(files) > 1:
        reject("--config", files[1], f"{files[0]!r} is given before it", "Pass one file, with all options in it.")
    if not files:
        return None, words
    return _read(kind, Path(files[0])), [word for place, word in enumerate(words) if place not in places]


def built(kind: type[Any], values: dict[str, Any], source: str) -> Any:
    """An object of `kind` with these options; `source` says where they come from."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name != "config"]
    return kind(**{name: _checked(name, value, hints, names, source) for name, value in values.items()})


def _read(kind: type[Any], file: Path) -> Any:
    if not file.is_file():
        why = "this is a folder" if file.is_dir() else "there is no such file"
        reject("--config", str(file), why, "Pass the path of a TOML file.")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reject("--config", str(file), f"this is no TOML ({error})", "Write lines such as lr = 0.003.")
    return dataclasses.replace(built(kind, values, str(file)), config=file)


_WORDS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false",
          Path: "a path in quotes", list: "a list", dict: "a table"}  # fmt: skip


def _checked(name: str, value: Any, hints: dict[str, Any], names: list[str], source: str) -> Any:
    if name not in names:
        if isinstance(value, dict):
            reject(name, value, f"this is a table ({source})", f"Write its keys without the line [{name}].")
        cure = meant(name.replace("-", "_"), names).strip() or f"The keys are {', '.join(names)}."
        reject(name, value, f"there is no such key ({source})", cure)
    kinds = kinds_of(hints[name])
    if Path in kinds and value == "":
        reject(name, value, f"this is empty ({source})", "Write a path, or leave the key out.")
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < LARGEST else math.inf
    if type(value) not in kinds:
        wanted = " or ".join(sorted(_WORDS.get(k, k.__name__) for k in kinds if k is not type(None)))
        is_a = _WORDS.get(type(value), type(value).__name__)
        reject(name, value, f"this is {is_a}, and {wanted} is needed ({source})", f"Write {wanted}.")
    if isinstance(value, int) and abs(value) >= LARGEST:
        reject(name, value, f"this number is too large ({source})", "Pass a smaller one.")
    if isinstance(value, float) and not math.isfinite(value):
        reject(name, value, f"this is no finite number ({source})", "Pass a finite number.")
    return value
