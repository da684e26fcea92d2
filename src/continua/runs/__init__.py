"""Floor 1: what a run leaves on disk, written so that a killed process leaves nothing broken."""

from continua.runs.figures import (
    LARGE,
    AbstractFigure,
    Bars,
    Cell,
    Heat,
    Lines,
    Note,
    Paths,
    Reference,
    Scale,
    Section,
    Series,
    Table,
    Verdict,
    finite,
    from_plain,
    to_plain,
)
from continua.runs.folder import Run, read_records
from continua.runs.storage import check_writable, checkpoints, digest, read_checkpoint, write_checkpoint, write_whole

__all__ = [
    "AbstractFigure", "Bars", "Cell", "Heat", "LARGE", "Lines", "Note", "Paths", "Reference", "Run", "Scale",
<<<<<<< HEAD
    "Section", "Series", "Table", "Verdict", "check_writable", "checkpoints", "digest", "finite",
    "from_plain", "join_tree", "read_checkpoint", "read_records", "split_tree", "to_plain", "write_checkpoint",
    "write_whole",
=======
    "Section", "Series", "Stairs", "Steps", "Table", "Verdict", "check_writable", "checkpoints", "digest", "finite",
    "from_plain", "read_checkpoint", "read_records", "to_plain", "write_checkpoint", "write_whole",
>>>>>>> f55385e (Control, optimisers and runs say the same in fewer lines; checkpoints are written by torch.save)
]  # fmt: skip
