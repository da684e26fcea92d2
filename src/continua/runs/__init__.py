"""Floor 1: what a run leaves on disk, written so that a killed process leaves nothing broken."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.runs.figures import (
    LARGE, AbstractFigure, Bars, Cell, Heat, Lines, Note, Paths, Reference, Scale, Section, Series, Table, Verdict,
    finite, from_plain, to_plain,
)  # fmt: skip
from continua.runs.folder import Run, read_records
from continua.runs.storage import check_writable, checkpoints, digest, read_checkpoint, write_checkpoint, write_whole

__all__ = [
    "AbstractFigure", "Bars", "Cell", "Heat", "LARGE", "Lines", "Note", "Paths", "Reference", "Run", "Scale",
    "Section", "Series", "Table", "Verdict", "check_writable", "checkpoints", "digest", "finite", "from_plain",
    "read_checkpoint", "read_records", "to_plain", "write_checkpoint", "write_whole",
]  # fmt: skip
