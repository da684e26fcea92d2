"""Ranks of one run that are really killed, stopped and starved: the others end, and the same command goes on."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import continua
from continua.cli.main import main
from continua.runs import Run
from injections import TINY, Child, fork, losses
from short_runs import TASK

pytestmark = pytest.mark.usefixtures("unchecked_module")
full = pytest.mark.faults
WORDS = ["train", *TASK, *TINY, "--quiet", "--output", "run", "--autoresume", "--save-every", "1", "--updates"]


def start(folder: Path, words: list[str], size: int = 2) -> list[Child]:
    """Every rank as a forked child, with what `torchrun` tells its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def join(rank: int):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        os.environ["WORLD_SIZE"] = str(size)
        return main(words)

    return [fork(lambda rank=rank: join(rank), folder) for rank in range(size)]


def end(ranks: list[Child], lost: int, number: int, folder: Path) -> tuple[int, str, float]:
    """What becomes of the other rank when one gets a signal in the middle of the training: code, words and seconds."""
    ranks[0].wait_for((folder / "run" / "checkpoints" / "00000003").exists)
    ranks[lost].send(number)
    began = time.monotonic()
    code = ranks[1 - lost].wait()
    taken = time.monotonic() - began
    ranks[lost].send(signal.SIGKILL)
    ranks[lost].wait()
    return code, ranks[1 - lost].err.read_text(), taken


def test_a_killed_rank_ends_the_other_and_the_same_command_goes_on(tmp_path):
    code, told, seconds = end(start(tmp_path, [*WORDS, "8"]), 1, signal.SIGKILL, tmp_path)
    assert code == 75 and "another rank has ended" in told and "Go on with" in told and seconds < 60.0, told
    before = losses(tmp_path / "run")
    (again,) = start(tmp_path, [*WORDS, "8"], size=1)  # fewer machines are left: noted, and no matter
    assert again.wait() == 0, again.err.read_text()
    assert losses(tmp_path / "run")[: len(before) - 1] == before[:-1] and len(losses(tmp_path / "run")) == 8
    run = Run.open(tmp_path / "run")
    assert [row["changes"]["ranks"] for row in run.records("override")] == [[2, 1]]
    assert run.manifest["state"] == "finished"


@full
def test_a_lost_rank_0_ends_the_others(tmp_path):
    code, told, seconds = end(start(tmp_path, [*WORDS, "2000"]), 0, signal.SIGKILL, tmp_path)
    assert code == 75 and "rank 1" in told and "the same command again" in told and seconds < 60.0, told


@full
def test_a_rank_that_hangs_is_missed_within_a_minute(tmp_path):
    """A machine that vanishes closes no connection: nothing but the missing signs of life tells of it."""
    code, told, seconds = end(start(tmp_path, [*WORDS, "2000"]), 1, signal.SIGSTOP, tmp_path)
    assert code == 75 and "rank 1 gives no sign of life" in told and 20.0 < seconds < 60.0, told
    assert Run.open(tmp_path / "run").last_checkpoint().update >= 3


@full
def test_a_signal_to_one_rank_stops_all_with_one_save(tmp_path):
    ranks = start(tmp_path, [*WORDS, "2000"])
    ranks[0].wait_for((tmp_path / "run" / "checkpoints" / "00000003").exists)
    ranks[1].send(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [75, 75]
    assert "stopped by a signal to another rank" in ranks[0].told() and ranks[1].err.read_text() == ""
    run = Run.open(tmp_path / "run")
    assert run.manifest["state"] == "interrupted" and run.last_checkpoint().update == len(losses(tmp_path / "run"))


@full
def test_what_is_refused_is_refused_once(tmp_path):
    for words, why in (
        (["--sharding", "fsdp2", "--gradient", "backsolve"], "the adjoint equation sums gradients along depth"),
        (["--sharding", "fsdp2", "--optimizer", "recipe"], "computes with whole matrices"),
        (["--sharding", "fsdp2", "--jacobian-cost", "0.1"], "at a depth that each rank draws"),
        (["--width", "7"], "it does not split into parts of even size"),
    ):
        first, second = start(tmp_path, [*WORDS, "3", *words])
        assert first.wait() == 2 and why in first.told()
        assert second.wait() != 0 and second.err.read_text() == "" and not (tmp_path / "run").exists()


@full
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_torchrun_is_started_again_until_the_run_is_finished(tmp_path, sharding):
    """The outer loop of docs/runs.md, with a rank that is killed on the way."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "continua"]
    words += [*WORDS, "12", "--sharding", sharding]
    here = {**os.environ, "PYTHONPATH": str(Path(continua.__file__).parents[1])}
    with subprocess.Popen(words, cwd=tmp_path, env=here, stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "run" / "checkpoints" / "00000003").exists():
            time.sleep(0.01)
        os.kill(find_rank(tmp_path, 1), signal.SIGKILL)
        began = time.monotonic()
        told = child.stderr.read()
        assert child.wait() != 0 and time.monotonic() - began < 60.0, told
    again = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=1800)
    assert again.returncode == 0, again.stderr
    assert len(losses(tmp_path / "run")) == 12 and Run.open(tmp_path / "run").manifest["state"] == "finished"
    again = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=1800)
    assert again.returncode == 0, again.stderr  # an outer loop ends here


def find_rank(folder: Path, rank: int) -> int:
    """The process of a rank that works in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            there = (process / "cwd").resolve() == folder.resolve()
            if there and f"\0RANK={rank}\0".encode() in b"\0" + (process / "environ").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise AssertionError("there is no such rank")
