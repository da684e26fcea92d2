"""Types and shape words of the package, checked at run time: what jaxtyping itself checks, at less than its cost.

`jaxtyped(typechecker=...)` makes two more functions of every function while the package is imported, checks the
arguments twice in every call, and binds them to a signature. Here a function is prepared when it is first called, and
beartype checks its arguments and its result once, in a scope of its own for the shape words.
"""

import dataclasses
import functools
import inspect
import types
from typing import Any, get_type_hints

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError, config, install_import_hook

jaxtyped = jaxtyping.jaxtyped


def check(function: Any = None, *, typechecker: Any = None) -> Any:
    """In place of `jaxtyped` under jaxtyping's import hook, which decorates every function and every class by it."""
    if function is None:
        return check
    if inspect.isclass(function):
        if dataclasses.is_dataclass(function) and not hasattr(function.__init__, "__wrapped__"):
            function.__init__ = check(function.__init__)
        return function
    if inspect.isgeneratorfunction(function):  # beartype would watch every value that it yields
        return jaxtyped(function, typechecker=beartype)
    checked: Any = None

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal checked
        if config.jaxtyping_disable:
            return function(*arguments, **named)
        if checked is None:
            checked = beartype(_with_types(function))
        with jaxtyped("context"):
            try:
                return checked(*arguments, **named)
            except BeartypeCallHintViolation as error:
                raise TypeCheckError(str(error)) from error

    return call


def _with_types(function: types.FunctionType) -> types.FunctionType:
    """A copy whose annotations are types and not words; a word that only a type checker knows may be anything."""
    code, space = function.__code__, function.__globals__
    copy = types.FunctionType(code, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__module__, copy.__qualname__ = (
        function.__kwdefaults__, function.__module__, function.__qualname__
    )  # fmt: skip
    copy.__annotations__ = {name: _resolve(kind, space) for name, kind in function.__annotations__.items()}
    return copy


def _resolve(annotation: Any, space: dict[str, Any]) -> Any:
    def holder(value):
        return value

    holder.__annotations__ = {"value": annotation}
    try:
        return get_type_hints(holder, space, include_extras=True)["value"]
    except Exception:
        return Any


def install(package: str) -> None:
    """From here on every annotated function of the package is checked; before its first import."""
    jaxtyping.jaxtyped = check  # what the hook writes before every function
    install_import_hook(package, "beartype.beartype")
