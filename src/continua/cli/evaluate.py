"""`continua eval`: what the models of a run are worth."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, final

import torch
import tyro
from rich.console import Console

from continua.cli.loading import models_of, opened
from continua.cli.measuring import BEGUN, measured, results_tables
from continua.cli.options import Flag
from continua.core.errors import reject
from continua.runs import finite


@final
@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measure the models of a run: test, other samplings, other depth steps.

    Nothing is trained. The test split is read as it is and in the other samplings that the task knows (resolution), and
    with 1 to 16 depth steps (anytime depth); the largest gap to a tight adaptive solve says how far the model leans on
    its grid. The numbers are added to the run's records.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """the folder of a run"""
    threads: int = 0
    """threads of torch, 0 for its own choice"""
    json: Flag = False
    """print one JSON object instead of tables"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        if self.threads < 0:
            reject("--threads", self.threads, "threads are counted", "Pass 0 for torch's own choice, or more.")
        if self.threads:
            torch.set_num_threads(self.threads)
        run, task = opened(self.folder)
        if not self.json:
            console.print(BEGUN, highlight=False, soft_wrap=True)
        results = measured(run, task, models_of(run))
        if self.json:
            print(json.dumps(finite({"run": str(self.folder), "results": results}), allow_nan=False))
            return 0
        console.print(*results_tables(results), sep="\n")
        for name, found in results.items():
            gap = found.get("gap to a tight solve")
            if gap is not None:
                console.print(f"{name}: largest gap to a tight adaptive solve {gap:.1%} of the largest output")
        return 0
