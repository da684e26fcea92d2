"""Run a script on every rank of a small world, and read what each rank found."""

import json
import os
import subprocess
import sys
from pathlib import Path

WORLD = 2
ALL = os.environ.get("CONTINUA_FAULTS") == "all"  # as `make faults` sets it; else a sample


def start_ranks(script: str, folder: Path) -> list[dict]:
    """What `python SCRIPT FOLDER` leaves as RANK.json for each rank; the script lies beside this file.

    It imports torch, which takes seconds, and forks the ranks: all cases of a script belong into one start.
    """
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / script), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]
