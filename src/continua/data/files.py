"""The text of a file of the user's, or a refusal that says what the file is instead."""

import codecs
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from continua.core.errors import reject
from continua.data.rows import refuse_row

_File = TypeVar("_File", Path, Path | None)
_Content = TypeVar("_Content")
_Options = ParamSpec("_Options")
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_of(file: Path, what: str, argument: str = "file", lenient: bool = False) -> str:
    """The content of a file in UTF-8, without the mark that some programs put before it.

    `what` the file should be is told where it is not there, a folder, unreadable, empty, in another encoding, or no
    text at all. A `lenient` reader takes letters that are not UTF-8 as unknown ones.
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
    if content.startswith(_WIDE):
        reject(argument, str(file), "this is UTF-16 text", "Save the file as UTF-8 text.")
    if (place := content.find(b"\0")) >= 0:
        reject(argument, str(file), f"this is no text, its byte {place} is 0", f"Pass a {what}.")
    try:
        return content.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        what_is_wrong = f"byte {error.start} is not UTF-8"
        refuse_row(file, _row(content, error.start), what_is_wrong, "Save the file as UTF-8 text.", argument)


def _row(content: bytes, place: int) -> int:
    """The row that a byte stands in, as an editor counts."""
    return content[:place].count(b"\n") + 1


def remembered(
    read: Callable[Concatenate[_File, _Options], _Content],
) -> Callable[Concatenate[_File, _Options], _Content]:
    """A reader that keeps what it read of the last two files, until they change or their path leads elsewhere."""

    @functools.lru_cache(maxsize=2)
    def kept(state: tuple[int, ...], file: _File, *args: _Options.args, **kwargs: _Options.kwargs) -> _Content:
        return read(file, *args, **kwargs)

    @functools.wraps(read)
    def reading(file: _File, *args: _Options.args, **kwargs: _Options.kwargs) -> _Content:
        return kept(_state(file), file, *args, **kwargs)

    return reading


def _state(file: Path | None) -> tuple[int, ...]:
    """Which file it is, and which version of it; nothing where there is none."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        found = None
    return () if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
