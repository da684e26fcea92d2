"""One word out of several: the one that is meant, or a refusal that names the nearest."""

import difflib
from collections.abc import Iterable
from typing import NoReturn

from continua.core.errors import reject

_ELSEWHERE = {
    "--learning-rate": "--lr",
    "--optimizer": "--optimiser",
    "--optim": "--optimiser",
    "--epochs": "--updates",
    "--iterations": "--updates",
    "--max-steps": "--updates",
    "--batch-size": "--batch",
    "--weight-decay": "--decay",
    "--layers": "--steps",
    "--out": "--folder",
    "--output": "--folder",
    "--output-dir": "--folder",
    "--data": "--series",
    "--file": "--text",
    "--max-tokens": "--length",
    "--top-k": "--top",
}
"""What other programs call it."""


def meant(word: str, known: Iterable[str]) -> str:
    """The question whether the nearest of the known words is meant, or nothing where none is near."""
    names = list(known)
    near = [_ELSEWHERE[word]] if _ELSEWHERE.get(word) in names else difflib.get_close_matches(word, names, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def more(command: str) -> str:
    """Where to read on."""
    return f"`continua {command} --help` tells more."


def choose(argument: str, word: str, known: Iterable[str], what: str, command: str) -> str:
    """The word, which is among the known ones; another one is refused with the nearest and with all of them."""
    names = list(known)
    if word not in names:
        unknown(argument, word, names, f"there is no such {what}", command)
    return word


def unknown(argument: str, word: str, known: Iterable[str], why: str, command: str) -> NoReturn:
    """Refuses a word that is not among the known ones."""
    names = list(known)
    reject(argument, word, why, f"{meant(word, names)}Choose from {', '.join(names)}. {more(command)}")
