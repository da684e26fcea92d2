"""One measurement of a sweep, and the shelf that keeps what was measured."""

import abc
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import continua
from continua.runs import write_whole

Row: TypeAlias = Mapping[str, Any]
"""Plain data: what one cell measured."""


class AbstractCell(abc.ABC):
    """One measurement, given by its fields (plain numbers) alone: the same fields give the same row."""

    @abc.abstractmethod
    def measure(self) -> Row:
        """Measures; plain data, as JSON can hold it."""

    @final
    def key(self) -> str:
        """A name that changes with the fields and with any line of the package."""
        assert dataclasses.is_dataclass(self), "the fields of a cell are its sizes"
        fields = json.dumps(dataclasses.asdict(self), sort_keys=True)
        content = f"{type(self).__qualname__}{fields}{code_digest()}"
        return f"{type(self).__name__.lower()}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@final
@dataclasses.dataclass(frozen=True)
class Shelf:
    """Rows in a folder, one file a cell, each there whole or not at all; without a folder nothing is kept."""

    folder: Path | None = None

    def read(self, cell: AbstractCell) -> Row | None:
        """The row of a cell that was measured before; a damaged file is as good as none."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / f"{cell.key()}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def write(self, cell: AbstractCell, row: Row) -> None:
        """Keeps a row."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{cell.key()}.json", json.dumps(dict(row)).encode())


@functools.cache
def code_digest() -> str:
    """A digest of every source file of the package: results of other code are not taken up again."""
    total = hashlib.sha256()
    for root in continua.__path__:
        for path in sorted(Path(root).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()
