"""Floor 1: what a run leaves on disk, written so that a killed process leaves nothing broken."""

from continua.runs.atomic import digest, write_whole
from continua.runs.checkpoints import checkpoints, read_checkpoint, write_checkpoint
from continua.runs.figures import (
    AbstractFigure,
    Bars,
    Heat,
    Lines,
    Note,
    Paths,
    Scale,
    Section,
    Series,
    Stairs,
    Steps,
    Table,
    Verdict,
    from_plain,
    keep_section,
    kept_sections,
    to_plain,
)
from continua.runs.figures.plain import LARGE
from continua.runs.figures.table import Cell
from continua.runs.folder import Run, finite
from continua.runs.places import check_writable
from continua.runs.references import Reference
from continua.runs.tree import joined_tree, split_tree

__all__ = [
    "AbstractFigure", "Bars", "Cell", "Heat", "LARGE", "Lines", "Note", "Paths", "Reference", "Run", "Scale",
    "Section", "Series", "Stairs", "Steps", "Table", "Verdict", "check_writable", "checkpoints", "digest", "finite",
    "from_plain", "joined_tree", "keep_section", "kept_sections", "read_checkpoint", "split_tree", "to_plain",
    "write_checkpoint", "write_whole",
]  # fmt: skip
