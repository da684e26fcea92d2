"""The text of a file of the user's, or a refusal that says what the file is instead."""

import codecs
import math
from pathlib import Path
from typing import NoReturn

from continua.core.errors import reject


def refuse_row(file: Path, number: int, what: str, cure: str, argument: str = "file") -> NoReturn:
    """Raises a `ValueError` that names the file, the row as an editor counts, what stands there and the cure."""
    reject(argument, str(file), f"row {number}: {what}", cure)


def read_text(
    file: Path, what: str, argument: str = "file", lenient: bool = False, otherwise: str | None = None
) -> str:
    """The content of a file in UTF-8, without the mark that some programs put before it.

    The message says `what` the file should be where it is not there, a folder, unreadable, empty, in another encoding,
    or no text at all. A `lenient` reader takes letters that are not UTF-8 as unknown ones; one with an encoding
    `otherwise` reads a file that is not UTF-8 in that.
    """
    if not file.is_file():
        why = "this is a folder" if file.is_dir() else "there is no such file"
        reject(argument, str(file), why, f"Pass the path of a {what}.")
    try:
        content = file.read_bytes()
    except OSError as error:
        reject(argument, str(file), f"it cannot be read ({error.strerror})", "Look at its rights.")
    if not content.strip():
        reject(argument, str(file), "the file is empty", f"Pass a {what} with something in it.")
    # before the search for zero bytes: UTF-16, which spreadsheets save, is full of them and has a cure of its own
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        reject(argument, str(file), "this is UTF-16 text", "Save the file as UTF-8 text.")
    if (place := content.find(b"\0")) >= 0:
        reject(argument, str(file), f"this is no text, its byte {place} is 0", f"Pass a {what}.")
    try:
        return content.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        if otherwise is not None:
            return content.decode(otherwise, errors="replace")
        row = content[: error.start].count(b"\n") + 1
        refuse_row(file, row, f"byte {error.start} is not UTF-8", "Save the file as UTF-8 text.", argument)


_MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-", "--", "?", ".")
"""What tables write where there is no value."""


def read_number(word: str) -> float:
    """The number that a word of a file stands for: nan where it says missing, infinity where it is something else."""
    try:
        return float("nan" if word.lower() in _MISSING else word)
    except ValueError:
        return math.inf


def version_of(file: Path | None) -> tuple[int, ...]:
    """Which file it is, and which version of it; nothing where there is none.

    A cached reader takes it as an argument, and so reads again what has changed, or what a path leads to elsewhere.
    """
    try:
        found = None if file is None else file.stat()
    except OSError:
        found = None
    return () if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
