"""The entry point: the first word chooses a command, whose options fill one flat frozen dataclass, which runs."""

import difflib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import tyro
from rich.console import Console

from continua.cli.bench import Bench
from continua.cli.demo import Demo
from continua.core.errors import SolveError
from continua.core.extras import MissingExtraError

COMMANDS: Mapping[str, type[Demo] | type[Bench]] = {"demo": Demo, "bench": Bench}
"""The one table from words to commands."""

_USAGE = """usage: continua COMMAND [OPTIONS]

The Transformer that is continuous in token time, embedding, heads and depth.

commands:
{commands}

options:
  --help     show this message; after a command, its options
  --version  print the version
  --debug    show the traceback of a mistake (or set CONTINUA_DEBUG=1)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `continua ...`; a user's mistake is one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or os.environ.get("CONTINUA_DEBUG", "0") not in ("", "0")
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        print(_usage(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"continua {version('continua')}")
        return 0
    if words[0] not in COMMANDS:
        return _failed(_unknown(words[0]))
    command = tyro.cli(COMMANDS[words[0]], prog=f"continua {words[0]}", args=words[1:])
    try:
        return command.run(Console())
    except (ValueError, SolveError, MissingExtraError) as error:
        if debug:
            raise
        return _failed(str(error))


def _usage() -> str:
    """What the commands do: the first line of what each says of itself."""
    lines = ((name, (inspect.getdoc(command) or "").splitlines()[0]) for name, command in COMMANDS.items())
    return _USAGE.format(commands="\n".join(f"  {name:<9}  {line}" for name, line in lines))


def _unknown(word: str) -> str:
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    meant = f"Did you mean {near[0]!r}?" if near else f"Choose from {', '.join(COMMANDS)}."
    return f"there is no command {word!r}. {meant} `continua --help` tells more."


def _failed(message: str) -> int:
    print(f"continua: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
