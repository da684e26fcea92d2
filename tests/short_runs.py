"""Training from the command line at a size of moments, and runs that are stopped on the way."""

import os
import signal
from pathlib import Path

import pytest

from continua.train import learner

SMALL = [
    *("--updates", "3", "--batch-size", "4", "--width", "8", "--axis-nodes", "2", "--axis-modes", "2"),
    *("--head-nodes", "2", "--hidden", "8", "--depth-modes", "2", "--validations", "1", "--threads", "1"),
]

TASK = ["uea", "--series", str(Path(__file__).parent / "tiny_TRAIN.ts")]
"""Ten series of twelve numbers: whole runs are broken by hundreds, and are measured and reported in a second."""


def stop_after(patch: pytest.MonkeyPatch, updates: int, kind: signal.Signals) -> list[object]:
    """Lets this process get a signal after so many updates; the rows of all updates, as they come."""
    plain, done = learner.Learner.update, []

    def stopping(self, *arguments):
        row = plain(self, *arguments)
        done.append(row)
        if len(done) == updates:
            os.kill(os.getpid(), kind)
        return row

    patch.setattr(learner.Learner, "update", stopping)
    return done
