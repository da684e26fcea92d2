"""Killed, signalled and starved processes: the run goes on to the very weights of an unbroken one."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import continua
from continua.cli.main import main
from continua.runs import Run
from injections import TINY, fork, go_on, kill_at, losses, resume, small_run, train, weights
from short_runs import TASK

pytestmark = pytest.mark.usefixtures("unchecked_module")
ALL = os.environ.get("CONTINUA_FAULTS") == "all"  # as `make faults` sets it; else a sample
full = pytest.mark.faults
WORDS = [*TASK, *TINY, "--quiet", "--output", "run"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run that nothing happened to; its data stay in memory for all children."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert main(["train", *WORDS[:-1], str(folder / "run"), "--save-every", "1"]) == 0
    return folder / "run"


def copy_broken(run: Path, folder: Path) -> Path:
    """A copy of a run as a kill after its second update leaves it."""
    shutil.copytree(run, folder / "run", ignore=lambda place, names: [n for n in names if n in ("models", "00000003")])
    copy = Run(folder / "run")
    copy.go_on()
    return copy.folder


# --- kills

TASKS = {
    "mnist1d": [],
    "text": ["--text", "tale.txt", "--context-length", "8"],
    "digits": [],
    "spirals": [],
    "burgers": ["--points", "16", "--axis-modes", "2"],
    "darcy": ["--points", "8", "--axis-modes", "2"],
    "uea": ["--series", "Own_TRAIN.ts"],
    "csv": ["--series", "own.csv", "--window", "16"],
}
HOW = {
    "adamw": ["--dropout", "0.1", "--integral", "debiased", "--integral-tokens", "3"],
    "recipe": ["--dropout", "0.1", "--integral", "subset", "--integral-tokens", "3", "--optimizer", "recipe"],
}
SAMPLE = [("text", "recipe")]


def write_data(folder: Path) -> None:
    (folder / "tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 12)
    rows = [f"{i},{i % 7},{i % 5}" for i in range(400)]
    (folder / "own.csv").write_text("\n".join(["hour,x,y", *rows]))
    for part in ("TRAIN", "TEST"):
        series = [",".join(str((i * k) % 7) for i in range(12)) + f":{k % 2}" for k in range(1, 31)]
        (folder / f"Own_{part}.ts").write_text("\n".join(["@classLabel true 0 1", "@data", *series]))


@pytest.mark.parametrize(("task", "how"), [(t, h) for t in TASKS for h in HOW] if ALL else SAMPLE)
def test_twenty_and_twenty_updates_with_a_kill_between_are_forty(tmp_path, task, how):
    write_data(tmp_path)
    words = [task, *TASKS[task], *TINY, "--updates", "40", *HOW[how], "--save-every", "20", "--quiet", "--output"]
    last = {name: tmp_path / name / "checkpoints" / "00000040" for name in ("whole", "run")}
    whole = train(tmp_path, *words, "whole")
    whole.wait_for(lambda: last["whole"].exists())
    whole.send(signal.SIGKILL)
    assert whole.wait() == -9, whole.err.read_text()
    broken = train(tmp_path, *words, "run")
    records = tmp_path / "run" / "records.jsonl"
    broken.wait_for(lambda: records.exists() and records.read_bytes().count(b'"kind": "update"') > 20)
    broken.send(signal.SIGKILL)
    assert broken.wait() == -9 and not last["run"].exists(), broken.err.read_text()
    again = resume(tmp_path)
    again.wait_for(last["run"].exists)
    again.send(signal.SIGKILL)
    assert again.wait() == -9, again.err.read_text()
    assert weights(tmp_path / "run", 40) == weights(tmp_path / "whole", 40)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole") and len(losses(tmp_path / "run")) == 40


def saved_updates(run: Path) -> int:
    return max((int(path.name) for path in Run(run).checkpoints()), default=0)


def test_random_kills_end_in_the_weights_of_the_unbroken_run(tmp_path):
    kills, drawn, updates = 500 if ALL else 8, random.Random(0), 300 if ALL else 30
    assert fork(lambda: go_on(tmp_path / "whole", updates), tmp_path).wait() == 0
    code, killed = -9, 0
    while code == -9:
        child = fork(lambda: go_on(tmp_path / "run", updates), tmp_path)
        until, share = time.monotonic() + drawn.expovariate(4.0), updates * (killed + 1) / kills
        while (
            time.monotonic() < until and saved_updates(tmp_path / "run") < share
        ):  # no fast machine ends before all kills
            time.sleep(0.005)
        time.sleep(drawn.uniform(0.0, 0.03))
        if killed < kills:
            child.send(signal.SIGKILL)
        code = child.wait()
        killed += code == -9
    assert code == 0 and killed >= 0.9 * kills, (killed, child.err.read_text())
    assert weights(tmp_path / "run", updates) == weights(tmp_path / "whole", updates)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole") and len(losses(tmp_path / "run")) == updates


@pytest.mark.parametrize("place", range(6 if ALL else 1))
def test_a_kill_at_any_call_of_the_file_system_from_the_last_update_to_the_report(tmp_path, unbroken, place):
    copy_broken(unbroken, tmp_path)

    def work():
        kill_at(150 + 90 * place if ALL else 400)
        return main(["train", "--resume", "run", "--quiet"])

    assert fork(work, tmp_path).wait() == -9
    again = resume(tmp_path)
    code = again.wait()
    assert code == 0 or "this run is finished" in again.told()
    assert Run.open(tmp_path / "run").manifest["state"] == "finished"
    model = Path("models") / "continuous" / "model.safetensors"  # the weights, with outputs settled by validation
    assert (tmp_path / "run" / model).read_bytes() == (unbroken / model).read_bytes()
    assert weights(unbroken) == weights(tmp_path / "run")


# --- signals

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize(
    ("moment", "number"),
    [(m, n) for m in range(1, 17, 2) for n in SIGNALS] if ALL else [(2, signal.SIGTERM), (8, signal.SIGHUP)],
)
def test_a_signal_at_any_moment_saves_and_says_one_sentence(tmp_path, unbroken, moment, number):
    """From start-up over training, validation and measuring to the report."""
    child = train(tmp_path, *WORDS, "--updates", "6", "--validations", "6")
    time.sleep(0.05 + 0.15 * moment)
    child.send(number)
    began = time.monotonic()
    code = child.wait()
    assert time.monotonic() - began < 20.0  # of which a busy machine needs some
    if code == 0 or code == -number:  # it was done before the signal came, or did not listen yet
        return
    if code == 130:  # Ctrl-C before anything was begun: as shells have it, and there is nothing to go on with
        assert number == signal.SIGINT and child.told() == "continua: stopped\n" and not (tmp_path / "run").exists()
        return
    assert code == 75, child.err.read_text()
    assert f"stopped by {number.name}" in child.told() and not list(tmp_path.rglob(".tmp-*"))
    if (tmp_path / "run" / "manifest.json").exists():
        state = Run.open(tmp_path / "run").manifest["state"]
        printing = state == "finished" and (tmp_path / "run" / "report.html").exists()  # all is written by then
        assert printing or state in ("interrupted", "running")


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02] if ALL else [0.005])
def test_a_second_signal_leaves_at_once_and_nothing_half(tmp_path, delay):
    child = train(tmp_path, *WORDS, "--updates", "2000", "--save-every", "1")
    child.wait_for((tmp_path / "run" / "checkpoints" / "00000003").exists)
    child.send(signal.SIGTERM)
    time.sleep(delay)
    child.send(signal.SIGINT)
    assert child.wait() == 75 and "stopped by" in child.told() and not list(tmp_path.rglob(".tmp-*"))
    assert Run.open(tmp_path / "run").last_checkpoint().update >= 3


@full
@pytest.mark.parametrize("lines", ["--json", "--no-json"])
def test_a_reader_that_leaves_ends_the_run_resumably(tmp_path, lines):
    """A whole process: Python itself writes to the pipe at its end."""
    command = [sys.executable, "-m", "continua.cli.main", "train", *WORDS, "--no-quiet", lines, "--updates", "900"]
    here = {**os.environ, "PYTHONPATH": str(Path(continua.__file__).parents[1])}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here) as child:
        first = child.stdout.readline()
        assert json.loads(first)["kind"] == "begin" if lines == "--json" else b"parameters" in first
        child.stdout.close()
        told = child.stderr.read().decode()
    assert child.returncode == 75 and told.count("\n") == 1 and "nobody reads the output any more" in told
    assert Run.open(tmp_path / "run").manifest["state"] == "interrupted"


# --- two at a time


@full
def test_two_runs_never_share_a_folder(tmp_path, unbroken):
    children = [train(tmp_path, *TASK, *TINY, "--quiet") for _ in range(4 if ALL else 2)]
    assert [child.wait() for child in children] == [0] * len(children)
    for child in range(len(children)):
        assert len(losses(tmp_path / "runs" / f"uea-{child + 1:03d}")) == 3
    children = [train(tmp_path, *WORDS) for _ in range(2)]
    assert sorted(child.wait() for child in children) == [0, 2]
    copy_broken(unbroken, tmp_path / "other")
    children = [resume(tmp_path / "other") for _ in range(2)]
    assert sorted(child.wait() for child in children) == [0, 2]
    assert losses(tmp_path / "other" / "run") == losses(unbroken)


# --- a disk, rights and memory that are not there


def mounted(folder: Path, size: int, *options: str) -> bool:
    words = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}k", *options]), "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.parametrize("kib", range(16, 176, 8) if ALL else [64])
def test_a_disk_that_fills_up_is_survived_when_there_is_space_again(tmp_path, kib):
    (disk := tmp_path / "disk").mkdir()
    if not mounted(disk, kib):
        pytest.skip("needs the right to mount a small file system")
    try:
        child = fork(lambda: go_on(disk / "run", 4), tmp_path)
        code = child.wait()
        assert code == 0 or "No space left on device" in child.err.read_text()
        assert not list(disk.rglob(".tmp-*"))
        assert mounted(disk, 64 * 1024, "remount")
        assert fork(lambda: go_on(disk / "run", 4), tmp_path).wait() == 0
        assert fork(lambda: go_on(tmp_path / "whole", 4), tmp_path).wait() == 0
        assert weights(disk / "run") == weights(tmp_path / "whole") and losses(disk / "run") == losses(
            tmp_path / "whole"
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the rights of root")
@full
def test_a_folder_without_rights_is_named_and_eval_still_shows_its_results(tmp_path, unbroken):
    shutil.copytree(unbroken, tmp_path / "run")
    for place in (tmp_path, *tmp_path.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    for above in tmp_path.parents[:3]:
        above.chmod(above.stat().st_mode | 0o055)

    def as_nobody(*words):
        def work():
            os.setgid(65534)
            os.setuid(65534)
            return main(list(words))

        return fork_with_files(work, tmp_path)

    evaluated = as_nobody("eval", "run", "--json")
    assert evaluated.wait() == 0 and "not noted" in evaluated.told() and "samplings" in evaluated.out.read_text()
    for words in (["train", *WORDS[:-1], "new"], ["train", "--resume", "run"]):
        child = as_nobody(*words)
        assert (child.wait() in (1, 2) and "ermi" in child.told()) or "no right" in child.told()


def fork_with_files(work, folder):
    (beside := folder.parent / f"{folder.name}-told").mkdir(exist_ok=True)
    beside.chmod(0o777)

    def there():
        os.chdir(folder)
        return work()

    return fork(there, beside)


@full
def test_too_little_memory_is_told(tmp_path, unbroken):
    def work():
        here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (here + 2**26, here + 2**26))
        return main(["train", *WORDS, "--width", "4096", "--hidden", "8192", "--axis-nodes", "1", "--head-modes", "0"])

    child = fork(work, tmp_path)
    assert child.wait() == 1 and "not enough memory" in child.told()


# --- numbers, options and places that change


@full
def test_a_diverged_run_goes_back_to_its_last_good_state(tmp_path):
    child = train(tmp_path, *WORDS, "--updates", "8", "--max-skipped", "2", "--lr", "1e6", "--clip", "1e30")
    assert child.wait() == 1 and "diverged" in child.told()
    assert Run.open(tmp_path / "run").manifest["state"] == "diverged"
    again = resume(tmp_path, "run", "--override", "lr=0.001", "clip=1")
    assert again.wait() == 0, again.err.read_text()
    assert None not in losses(tmp_path / "run") and len(losses(tmp_path / "run")) == 8


@full
def test_a_moved_run_goes_on_elsewhere(tmp_path):
    (tmp_path / "there").mkdir()
    write_data(tmp_path)
    words = ["text", *TASKS["text"], *TINY, "--quiet", "--output", "run", "--updates", "4000", "--save-every", "1"]
    child = train(tmp_path, *words)
    child.wait_for((tmp_path / "run" / "checkpoints" / "00000002").exists)
    child.send(signal.SIGTERM)
    assert child.wait() == 75
    (tmp_path / "run").rename(tmp_path / "there" / "moved")
    done = len(losses(tmp_path / "there" / "moved"))
    again = resume(tmp_path / "there", "moved", "--override", f"updates={done + 2}")
    assert again.wait() == 0, again.err.read_text()


@full
def test_a_strangers_links_do_no_harm(tmp_path, unbroken):
    """Records that are a link to a start-up file of the shell; checkpoints elsewhere; a FIFO that nobody writes to."""
    for name, make in (
        ("records.jsonl", lambda path: path.symlink_to(tmp_path / "profile")),
        ("checkpoints", lambda path: path.symlink_to(tmp_path / "elsewhere" / "checkpoints")),
        ("manifest.json", os.mkfifo),
    ):
        shutil.rmtree(tmp_path, ignore_errors=True)
        (tmp_path / "elsewhere").mkdir(parents=True)
        (tmp_path / "profile").write_text("mine\n")
        small_run(tmp_path / "elsewhere" / "x").folder.joinpath("checkpoints").rename(
            tmp_path / "elsewhere" / "checkpoints"
        )
        before = sorted(tmp_path.joinpath("elsewhere").rglob("*"))
        run = copy_broken(unbroken, tmp_path)
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        make(run / name)
        for words in (["eval", "run"], ["train", "--resume", "run"], ["report", "run"]):
            child = fork(lambda words=words: main(words), tmp_path)
            assert child.wait() == 2 and name in child.told()
        assert (tmp_path / "profile").read_text() == "mine\n"
        assert sorted(tmp_path.joinpath("elsewhere").rglob("*")) == before


@full
def test_a_path_that_is_no_text_is_no_matter(tmp_path):
    name = os.fsdecode(b"run\xff")
    child = train(tmp_path, *WORDS[:-1], name, "--no-quiet")
    assert child.wait() == 0, child.err.read_text()
    assert (tmp_path / name / "report.html").exists()
