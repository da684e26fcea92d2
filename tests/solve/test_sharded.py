"""Two ranks, sharded by FSDP2: the same steps and the same parameters as one process on the whole batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # two more processes to start
WORLD = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank of `ranks.py` found."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    script = Path(__file__).parents[1] / "ranks.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(WORLD), str(meeting)], stdout=-1, stderr=-1, text=True)
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:  # a rank that waits for one that failed would wait for ever
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.parametrize("name", ["Direct", "Checkpointed", "Checkpointed, resharded"])
def test_a_sharded_model_trains_as_one_process_does(ranks, name):
    for found in ranks:
        assert found[name]["gap"] < 1e-9
        assert found[name]["grids"] < 1e-9


def test_the_backward_solve_takes_the_same_steps_on_every_rank(ranks):
    """It ends at all, and agrees to ten times its tolerance, the parameters as well as the grids that they lead to.

    Not to rounding: costates are scaled by the largest of each rank, so the way back has other steps than alone.
    """
    for found in ranks:
        assert found["Backsolve"]["gap"] < 1e-5
        assert found["Backsolve"]["grids"] < 1e-5


PARTS = [
    "parts, Direct",
    "parts, Checkpointed",
    "parts, Checkpointed, fixed steps",
    "fields, Direct",
    "fields, Checkpointed",
]


@pytest.mark.parametrize("name", PARTS)
def test_parts_sharded_on_their_own_train_as_one_process_does(ranks, name):
    for found in ranks:
        assert found[name]["gap"] < 1e-9
        assert found[name]["losses"] < 1e-10


def test_parts_sharded_on_their_own_are_refused_where_gradients_would_be_lost(ranks):
    for found in ranks:
        refusal = found["parts, Backsolve"]["refused"]
        assert "a part of the flow is sharded on its own, where Backsolve loses gradients" in refusal
        assert "fully_shard(model)" in refusal and "Checkpointed() or Direct()" in refusal
