"""Two ranks, wrapped by DDP or sharded by FSDP2, train by the objective to the losses of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = 2


@pytest.mark.slow
def test_wrapped_models_train_as_one_process_does(tmp_path):
    script = Path(__file__).parents[1] / "training_ranks.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(WORLD), str(tmp_path / "meeting")], stdout=-1, stderr=-1, text=True)
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:  # a rank that waits for one that failed would wait for ever
            process.kill()
    for process, (out, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
        found = json.loads(out.splitlines()[-1])
        assert len(found) == 9
        for case, (gap, fall) in found.items():
            assert gap < (1e-10 if "float64" in case else 1e-5) and fall > 0.1, case
