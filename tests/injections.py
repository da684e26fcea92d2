"""Real faults: forked children that are killed, signalled and starved, and files that are damaged on disk."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from continua.cli.main import main
from continua.core.errors import DamageWarning
from continua.data import Spirals
from continua.optim import adamw
from continua.runs import Run
from continua.train import Learner, Plan, Preset, Training, TrainingGrids, build_continuous, objective_of

TINY = ["--updates", "3", "--batch-size", "4", "--width", "8", "--axis-nodes", "2", "--head-nodes", "2",
        "--hidden", "8", "--depth-modes", "2", "--depth-steps", "1", "--validations", "1",
        "--threads", "1"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Child:
    """A forked process: torch is imported already, so that it starts at once."""

    pid: int
    out: Path
    err: Path

    def wait(self) -> int:
        """Its exit code, negative the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send(self, *numbers: int) -> None:
        """Signals, as long as it lives."""
        for number in numbers:
            os.kill(self.pid, number)

    def wait_for(self, moment: Callable[[], bool], seconds: float = 600.0) -> None:
        """Until something has happened; a child that has ended by then is an error, and its words say why."""
        until = time.monotonic() + seconds
        while not moment() and time.monotonic() < until:
            time.sleep(0.002)
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                assert moment(), self.err.read_text()

    def told(self) -> str:
        """What it said on standard error, which is one line."""
        text = self.err.read_text()
        assert text.startswith("continua: ") and text.count("\n") == 1, text
        return text


def fork(work: Callable[[], int], folder: Path, stdout: int | None = None) -> Child:
    """Does the work in a child, in a folder; what it prints goes into files beside it, or to `stdout`."""
    count = len(list(folder.parent.glob("*.err")))
    out, err = (folder.parent / f"{folder.name}{count}.{kind}" for kind in ("out", "err"))
    err.touch()  # the next child has another name
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, out, err)
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what runs in the background ignore it
        os.chdir(folder)
        os.dup2(stdout if stdout is not None else os.open(out, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        code = work()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def train(folder: Path, *words: str, stdout: int | None = None) -> Child:
    """`continua train ...` in a child."""
    return fork(lambda: main(["train", *words]), folder, stdout)


def resume(folder: Path, run: str = "run", *words: str) -> Child:
    return train(folder, "--resume", run, "--quiet", *words)


def go_on(folder: Path, updates: int) -> int:
    """Trains a small model from its latest checkpoint or from the beginning, without the command line."""
    task = Spirals(examples=40, tokens=8, queries=3)
    preset = Preset().replace(
        width=8, head_nodes=2, hidden=16, axis_nodes=2, head_modes=2, depth_modes=2, depth_length=1.0, depth_steps=1
    )
    torch.manual_seed(0)
    model = build_continuous(task.form, preset.replace(dropout=0.1))
    optimiser = adamw(model, 1e-2, 0.01, (0.9, 0.98))
    learner = Learner("continuous", model, objective_of(task.form, model), optimiser, grids=TrainingGrids(1.0, 0.25))
    run = Run.open(folder) if (folder / "manifest.json").exists() else Run.begin(folder, "train", {})
    with run.lock(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)  # that there is no checkpoint yet
        training = Training(run, task, [learner], Plan(updates, 4, validations=3, save_every=1))
        training.go(training.resume())
    return 0


def kill_at(call: int) -> None:
    """Lets this process kill itself, as `kill -9` does, right before its `call`-th call of the file system."""
    left = [call]

    def count(frame, event, function):
        if event == "c_call" and getattr(function, "__module__", None) in ("posix", "fcntl"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def flips(path: Path, every: int = 1, bits: int = 1) -> Iterator[str]:
    """Damages a file by one bit after the other, `bits` of every `every`-th byte, and mends it in the end."""
    whole = path.read_bytes()
    try:
        for place in range(0, len(whole), every):
            for bit in range(bits):
                content = bytearray(whole)
                content[place] ^= 1 << (place + bit) % 8
                path.write_bytes(content)
                yield f"{path.name}, byte {place}"
    finally:
        path.write_bytes(whole)


def weights(run: Path, update: int | None = None) -> bytes:
    """The file of the weights in the latest checkpoint, or in that of an update."""
    last = Run(run).checkpoints()[-1].name if update is None else f"{update:08d}"
    return (run / "checkpoints" / last / "continuous" / "model.safetensors").read_bytes()


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in Run(run).records("update")]


def small_run(folder: Path) -> Run:
    """A run with two small checkpoints, of updates 1 and 2."""
    run = Run.begin(folder, "train", {"lr": 0.1})
    for update in (1, 2):
        run.record("update", update=update, loss=0.5)
        state = {"learners": {"continuous": {"w": torch.arange(3.0) * update, "betas": (0.9, 0.98)}}}
        run.keep_checkpoint(update, state, {"continuous/model.json": json.dumps({"update": update}).encode()})
    return run
