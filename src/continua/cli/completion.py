"""Completion of commands and options in a shell."""

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import tyro

from continua.cli.choices import meant
from continua.core.errors import reject

SHELLS = ("bash", "zsh", "tcsh")


def completion(shell: str, commands: Mapping[str, type[Any]]) -> str:
    """The script that teaches a shell all commands with their options, as tyro writes it."""
    if shell not in SHELLS:
        cure = f"{meant(shell, SHELLS)}Choose from {', '.join(SHELLS)}."
        reject("--completion", shell, "there is no completion for this shell", cure)
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        words = ["--tyro-print-completion", shell]
        tyro.extras.subcommand_cli_from_dict(dict(commands), prog="continua", args=words)
    return written.getvalue()
