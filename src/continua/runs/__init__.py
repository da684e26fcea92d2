"""Floor 1: what a run leaves on disk, written so that a killed process leaves nothing broken."""
# ruff: noqa: I001 - both lists of names are packed, as in api.py

from continua.runs.figures import (
    LARGE, AbstractFigure, Bars, Cell, Heat, Lines, Note, Passage, Paths, Paper, Scale, Section, Curve, Table,
    Verdict, finite, from_plain, to_plain,
)  # fmt: skip
from continua.runs.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from continua.runs.folder import Run, present_versions, read_records
from continua.runs.storage import check_writable, digest, write_whole

__all__ = [
    "AbstractFigure", "Bars", "Cell", "Checkpoint", "Heat", "LARGE", "Lines", "Note", "Passage", "Paths", "Paper",
    "Run", "Scale", "Section", "Curve", "Table", "Verdict", "check_writable", "digest", "finite", "from_plain",
    "present_versions", "read_checkpoint", "read_records", "to_plain", "write_checkpoint", "write_whole",
]  # fmt: skip
