"""Arguments by their names: those that build an object anew, and those that a function does not have."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def arguments_of(thing: Any) -> dict[str, Any]:
    """The constructor's arguments, read from the attributes of the same names; values of parameters apart.

    A class of the library keeps every argument of its constructor under the argument's own name, or has a property of
    that name. A `generator` only draws initial values and is left out.
    """
    names = inspect.signature(type(thing).__init__).parameters
    return {name: getattr(thing, name) for name in names if name not in ("self", "generator")}


def refuse_unknown(function: str, given: Iterable[str], known: Sequence[str], words: Mapping[str, str]) -> None:
    """Raises a `TypeError` for an argument that a function does not have, with the one that was meant.

    `words` are those of other libraries, each with what to pass here; other names are compared by their spelling.
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"Pass {words.get(name) or close[0]}." if name in words or close else f"It has {', '.join(known)}."
            raise TypeError(f"{function} has no argument {name!r}. {meant}")


def advise(function: str, words: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: keywords that the function does not have are met as in `refuse_unknown`."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(call).parameters if name != "self"]

        @functools.wraps(call)
        def guard(*args: P.args, **named: P.kwargs) -> R:
            refuse_unknown(function, named, known, words)
            return call(*args, **named)

        return guard

    return decorate
