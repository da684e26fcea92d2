"""Where the parameters of a whole module live, gathered from its parts."""

from collections.abc import Iterator

from torch import nn

from continua.core.errors import reject
from continua.fields.field import AbstractField
from continua.spaces import AbstractParameterSpace, FlatSpace


def parameter_spaces(module: nn.Module) -> dict[str, AbstractParameterSpace]:
    """{name: space} for every name in `module.named_parameters()`.

    Parts that answer `parameter_spaces()` themselves, as fields do, are asked; parameters of all others are matrices
    and vectors of Euclidean space. A parameter with two names stands under the first one, and has one space.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(named.items())}
    found: dict[str, AbstractParameterSpace] = {}
    for name, space in _asked(module, "", root=True):
        if name not in named:
            reject("name", name, "its module has no such parameter", "Answer with names of named_parameters() alone.")
        kept = found.setdefault(first[id(named[name])], space)
        if kept != space:
            reject("parameter", name, f"it is shared, and lives in {kept} and in {space}", "Share it within one space.")
    missing = [name for name in dict(module.named_parameters()) if name not in found]
    if missing:
        reject("parameters", missing, "their module leaves them out of parameter_spaces()", "Give each a space.")
    return found


def _asked(module: nn.Module, prefix: str, root: bool = False) -> Iterator[tuple[str, AbstractParameterSpace]]:
    if isinstance(module, AbstractField) or (not root and hasattr(module, "parameter_spaces")):
        for name, space in module.parameter_spaces().items():  # pyright: ignore[reportCallIssue]
            yield prefix + name, space
        return
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield prefix + name, FlatSpace(min(2, parameter.ndim))
    for name, child in module.named_children():
        yield from _asked(child, f"{prefix}{name}.")
