"""Start a script once on every rank of a small world, and read the JSON that each rank prints last."""

import json
import subprocess
import sys
from pathlib import Path

WORLD = 2


def start_ranks(script: str, meeting: Path) -> list[dict]:
    """What each rank of `python SCRIPT RANK WORLD FILE` found; `script` lies beside this file, the ranks meet in FILE.

    A start imports torch once for each rank, so that all cases of a script belong into one start.
    """
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(WORLD), str(meeting)], stdout=-1, stderr=-1, text=True)
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:  # a rank that waits for one that failed would wait for ever
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]
