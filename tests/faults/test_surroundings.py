"""What a run stands on goes away: its terminal, its log, its folder, its records, a file system that can all things."""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct
import termios
from pathlib import Path

import pytest

from continua.cli.main import main
from continua.runs import Run
from injections import TINY, Child, fork, losses, resume, train
from short_runs import TASK

pytestmark = [pytest.mark.usefixtures("unchecked_module"), pytest.mark.faults]
WORDS = [*TASK, *TINY, "--output", "run"]


def train_on_terminal(folder: Path, hangup: signal.Handlers, *words: str) -> tuple[Child, int]:
    """`continua train` on a terminal of its own, and the other end of that terminal."""
    ours, theirs = os.openpty()

    def work():
        os.close(ours)
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, hangup)
        return main(["train", *WORDS, *words])

    child = fork(work, folder, theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    return child, ours


def close_after(child: Child, terminal: int, place: Path) -> None:
    """Reads what is written to a terminal until a file is there, and then closes it, as a lost connection does."""

    def is_there() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 65536)
        return place.exists()

    child.wait_for(is_there)
    os.close(terminal)


def test_a_lost_terminal_is_a_signal_and_not_a_broken_disk(tmp_path):
    child, terminal = train_on_terminal(tmp_path, signal.SIG_DFL, "--updates", "2000", "--save-every", "3")
    close_after(child, terminal, tmp_path / "run" / "checkpoints" / "00000003")
    assert child.wait() == 75 and "stopped by SIGHUP" in child.told()
    run = Run.open(tmp_path / "run")
    assert run.manifest["state"] == "interrupted" and run.last_checkpoint().update == len(losses(run.folder))


def test_a_run_that_ignores_hangups_goes_on_without_its_terminal(tmp_path):
    child, terminal = train_on_terminal(tmp_path, signal.SIG_IGN, "--updates", "30", "--save-every", "3")
    close_after(child, terminal, tmp_path / "run" / "checkpoints" / "00000003")
    assert child.wait() == 0, child.err.read_text()
    assert len(losses(tmp_path / "run")) == 30 and Run.open(tmp_path / "run").manifest["state"] == "finished"


def test_a_log_on_a_full_disk_stops_the_run_with_a_save(tmp_path):
    full = os.open("/dev/full", os.O_WRONLY)
    child = train(tmp_path, *WORDS, "--updates", "2000", "--json", stdout=full)
    os.close(full)
    assert child.wait() == 75 and "the output cannot be written (No space left on device)" in child.told()
    run = Run.open(tmp_path / "run")
    assert run.manifest["state"] == "interrupted" and run.last_checkpoint().update == len(losses(run.folder)) > 0


def test_a_folder_that_is_taken_away_is_named_and_goes_on_elsewhere(tmp_path):
    child = train(tmp_path, *WORDS, "--quiet", "--updates", "2000")
    records = tmp_path / "run" / "records.jsonl"
    child.wait_for(lambda: records.exists() and records.read_bytes().count(b"\n") > 3)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert child.wait() == 1 and "the run could not be written (No such file or directory" in child.told()
    again = resume(tmp_path, "moved", "--override", "updates=3")
    assert again.wait() == 0, again.err.read_text()


def test_records_that_are_gone_are_missed_aloud(tmp_path):
    child = train(tmp_path, *WORDS, "--quiet", "--updates", "2000", "--save-every", "1")
    child.wait_for((tmp_path / "run" / "checkpoints" / "00000003").exists)
    child.send(signal.SIGTERM)
    assert child.wait() == 75
    done = len(losses(tmp_path / "run"))
    (tmp_path / "run" / "records.jsonl").unlink()
    again = resume(tmp_path, "run", "--override", f"updates={done + 2}")
    assert again.wait() == 0 and f"the records end before update {done}" in again.told()
    assert [row["update"] for row in Run.open(tmp_path / "run").records("update")] == [done + 1, done + 2]


CALLS = {"x86_64": {"flock": 73, "fsync": 74}, "aarch64": {"flock": 32, "fsync": 82}}


def take_away(call: str, error: int) -> None:
    """From now on the system answers a call of this process with an error, as file systems do that do not know it.

    A filter of seccomp(2): load the number of the call, compare, return the error or allow it.
    """
    number = CALLS[platform.machine()][call]
    rows = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    head = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(program))
    control = ctypes.CDLL(None, use_errno=True).prctl
    assert control(38, 1, 0, 0, 0) == 0  # no new privileges, without which only root may filter
    assert control(22, 2, head, 0, 0) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.skipif(platform.machine() not in CALLS, reason="the numbers of system calls here are not known")
def test_a_file_system_without_locks_and_flushes_is_told_of_and_used(tmp_path):
    def work():
        take_away("flock", errno.ENOSYS)
        take_away("fsync", errno.EINVAL)
        return main(["train", *WORDS, "--quiet"])

    child = fork(work, tmp_path)
    assert child.wait() == 0, child.err.read_text()
    assert "run cannot be locked (Function not implemented)" in child.told()
    assert Run.open(tmp_path / "run").manifest["state"] == "finished"
    assert len(losses(tmp_path / "run")) == 3
