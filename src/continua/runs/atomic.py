"""Files that are there whole or not at all."""

import hashlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """A temporary file, flushed to disk, then renamed: a killed process leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as text."""
    return hashlib.sha256(content).hexdigest()
