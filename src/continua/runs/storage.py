"""Files and folders that a killed process leaves whole or not at all, in folders that a stranger may have made.

What is new is written under a random name that nobody else has, flushed to disk and renamed; a link is never followed,
and what is no plain file (a FIFO, a device) is not opened.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from continua.core.errors import DamageWarning, reject

FORMAT = 2
LOCK, _TEMPORARY = ".lock", ".tmp-"
# without O_NONBLOCK, opening a FIFO waits for somebody at its other end
_CAREFULLY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_UNABLE = (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK)
"""What a file system says of what it cannot do: some are mounted without locks, or have no flushing of folders."""


def write_whole(path: Path, content: bytes) -> None:
    """A temporary file, flushed to disk, then renamed: a killed process leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    try:
        _write_new(beside, content)
        os.replace(beside, path)
    except BaseException:  # a full disk, or a signal, must not leave what keeps the disk full
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """The same for a folder of files, `name` or `folder/name`; one that is there gives way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    folders = {(beside / name).parent for name in files} | {beside}
    try:
        for folder in sorted(folders):
            folder.mkdir()
        for name, content in files.items():
            _write_new(beside / name, content)
        for folder in folders:
            sync(folder)
        remove_folder(path)
        os.rename(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync(path.parent)


def remove_folder(path: Path) -> None:
    """Removes a folder, if it is there: it loses its name first, so that nobody takes half of it for the whole."""
    if os.path.lexists(path):
        beside = _name_beside(path)
        os.rename(path, beside)
        try:
            _remove(beside)
        except BaseException:  # a signal
            _remove(beside)
            raise


def read_plain(path: Path) -> bytes:
    """The content of a plain file."""
    with open(_open(path, os.O_RDONLY), "rb") as file:
        return file.read()


def append_line(path: Path, line: str) -> None:
    """Adds a line, behind a line break where a killed process has left half of one."""
    handle = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        found = os.fstat(handle)
        if found.st_nlink > 1:
            reject("file", str(path), "it has a second name elsewhere, which would be written to", "Copy the folder.")
        torn = found.st_size > 0 and os.pread(handle, 1, found.st_size - 1) != b"\n"
        _write_all(handle, ("\n" * torn + line + "\n").encode())
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Flushes a file or the names in a folder to disk, if it is there: until then a crash may undo a rename."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY | _CAREFULLY)
        try:
            _flush(handle)
        finally:
            os.close(handle)


def check_plain(folder: Path) -> None:
    """Refuses a folder in which, at any depth, something is neither a plain file nor a folder."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                cure = "Look who made it; a run of continua has only files and folders. Remove it, or copy the rest."
                reject("run", str(folder), f"{path.relative_to(folder)} in it is {what}", cure)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Inside, no other process writes into the folder; what a killed one has left half written is removed.

    The system lets go of the lock when its process ends, however it does: a file that is not locked is a stale one.
    """
    handle = _open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = re.sub(r"[^\w .-]", "?", os.pread(handle, 200, 0).decode(errors="replace"))
            cure = "Wait for its end, end it, or choose another folder."
            reject("run", str(folder), f"process {who} is writing into it", cure)
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
            text = f"{folder} cannot be locked ({error.strerror}): see to it that no other process writes into it."
            warnings.warn(text, DamageWarning, stacklevel=1)
        with contextlib.suppress(OSError):  # a full disk: the name only helps to find who holds the lock
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        for path in list(folder.rglob(f"{_TEMPORARY}*")):
            _remove(path)
        yield
    finally:
        os.close(handle)


def is_empty(folder: Path) -> bool:
    """Whether a folder has nothing but what a killed start has left."""
    return all(path.name == LOCK or path.name.startswith(_TEMPORARY) for path in folder.iterdir())


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as text."""
    return hashlib.sha256(content).hexdigest()


def seal(content: Mapping[str, Any]) -> bytes:
    """Plain data as JSON, with a hash of itself."""
    return json.dumps({**content, "sha256": digest(_canonical(content))}, indent=1, allow_nan=False).encode()


def unseal(sealed: bytes) -> dict[str, Any]:
    """What was sealed; a `ValueError` where it is something else."""
    try:
        content = json.loads(sealed)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("this is no table")
    if content.pop("sha256", None) != digest(_canonical(content)):
        raise ValueError("it does not match its hash: it is damaged, or was edited")
    return content


def check_writable(argument: str, folder: Path, asked: Path | None = None) -> None:
    """Refuses a folder that cannot be made or written to, because of what is there; nothing is made.

    The message names what was `asked` for where that is not the folder itself, but a file in it.
    """
    there = next(place for place in (folder, *folder.parents, Path()) if os.path.lexists(place))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"{there.resolve()} gives no right to" if there.is_dir() else f"{there} is a file"
        cure = "Choose a folder that can be written to."
        reject(argument, str(asked or folder), f"nothing can be written there ({why})", cure)


def _name_beside(path: Path) -> Path:
    return path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _open(path: Path, flags: int) -> int:
    """A handle of a plain file."""
    cure = "Look who made it; a run of continua has only files and folders."
    if path.is_symlink():
        reject("file", str(path), "this is a link, which is not followed", cure)
    handle = os.open(path, flags | _CAREFULLY, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        reject("file", str(path), "this is no plain file", cure)
    return handle


def _write_new(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)
    try:
        _write_all(handle, content)
        _flush(handle)  # a rename may reach the disk before the content does
    finally:
        os.close(handle)


def _flush(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
