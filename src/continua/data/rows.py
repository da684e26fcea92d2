"""How files with a bad row are refused: by file, by row as an editor counts, and with a cure."""

from pathlib import Path
from typing import NoReturn

from continua.core.errors import reject


def refuse_row(file: Path, number: int, what: str, cure: str, argument: str = "file") -> NoReturn:
    """Raises a `ValueError` that names the file, the row, what stands there and the cure."""
    reject(argument, str(file), f"row {number}: {what}", cure)
