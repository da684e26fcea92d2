"""Floor 1: what a run leaves on disk, written so that a killed process leaves nothing broken."""

from continua.runs.atomic import digest, write_whole
from continua.runs.checkpoints import checkpoints, read_checkpoint, write_checkpoint
from continua.runs.folder import Run, finite
from continua.runs.places import check_writable
from continua.runs.tree import joined_tree, split_tree

__all__ = [
    "Run",
    "check_writable",
    "checkpoints",
    "digest",
    "finite",
    "joined_tree",
    "read_checkpoint",
    "split_tree",
    "write_checkpoint",
    "write_whole",
]
