"""`continua report`: one page for one run, or for several side by side."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, final

import tyro
from rich.console import Console

from continua.cli.options import Folder
from continua.core.errors import reject
from continua.report import write_report
from continua.runs import check_writable


@final
@dataclasses.dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about one run, or several side by side.

    Reads run folders only, never a model. The page needs no network: losses, cost, steps along depth, token
    trajectories, attention kernels with a depth slider, heads, costates, resolutions and references, as far as the
    runs have them. It goes into the first run, or to --out, and its path is printed.
    """

    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """folders of runs, as training leaves them"""
    out: Folder = None
    """where the page goes (default: report.html in the first run)"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        if not self.folders:
            reject("RUN", (), "there is nothing to report", "Name the folder of a run: continua report RUN.")
        if self.out is not None and self.out.is_dir():
            named = shlex.quote(str(self.out / "report.html"))
            reject("--out", str(self.out), "this is a folder", f"Name a file in it: --out {named}.")
        if self.out is not None:
            check_writable("--out", self.out.parent, self.out)
        console.print(str(write_report(self.folders, self.out)), soft_wrap=True, highlight=False, markup=False)
        return 0
