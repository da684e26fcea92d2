"""The arguments that build an object anew: what saving writes and what a citation looks through."""

import inspect
from typing import Any


def arguments_of(thing: Any) -> dict[str, Any]:
    """The constructor's arguments, read from the attributes of the same names; values of parameters apart.

    A class of the library keeps every argument of its constructor under the argument's own name, or has a property of
    that name. A `generator` only draws initial values and is left out.
    """
    names = inspect.signature(type(thing).__init__).parameters
    return {name: getattr(thing, name) for name in names if name not in ("self", "generator")}
