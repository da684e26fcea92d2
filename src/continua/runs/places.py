"""Where results may go, asked before anything is computed for them."""

import os
from pathlib import Path

from continua.core.errors import reject


def check_writable(argument: str, folder: Path, asked: Path | None = None) -> None:
    """Refuses a folder that cannot be made or written to, because of what is there; nothing is made.

    The message names what was `asked` for where that is not the folder itself, but a file in it.
    """
    named = str(asked or folder)
    there = next(place for place in (folder, *folder.parents, Path()) if os.path.lexists(place))
    cure = "Choose a folder that can be written to."
    if not there.is_dir():
        reject(argument, named, f"nothing can be written there ({there} is a file)", cure)
    if not os.access(there, os.W_OK | os.X_OK):
        reject(argument, named, f"nothing can be written there ({there.resolve()} gives no right to)", cure)
