"""Libraries that some work needs and most does not: named extras of the package, imported where they are used."""

import importlib
from typing import Any


class MissingExtraError(ImportError):
    """A library of an extra is not installed."""


def install_line(name: str) -> str:
    """What installs an extra, at versions that are known to work together."""
    return f"pip install -c constraints.txt -e '.[{name}]'"


def extra(module: str, name: str, needed_by: str = "") -> Any:
    """The module, which the extra `name` installs; without it an error that says how to get it, and what needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.partition(".")[0]:  # it is there, and lacks something itself
            raise
        absent = f"{needed_by} needs {missing.name}, which" if needed_by else missing.name
        advice = f"{absent} is not installed. Install it from your clone: {install_line(name)}."
        raise MissingExtraError(advice) from missing
