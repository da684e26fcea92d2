"""Runs that do not come to their end, and folders that are not what they should be: told in one line, with the cure."""

import errno
import json
import shutil
import signal
from pathlib import Path

import pytest

from continua.cli.main import main
from continua.runs import Run, storage
from short_runs import SMALL, stop_after

TRAIN = ["train", "spirals", *SMALL, "--steps", "1", "--quiet"]


pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped after two of three updates, with two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2, signal.SIGINT)
        assert main([*TRAIN, "--output", str(folder)]) == 75
    return folder


def told(capsys) -> str:
    printed = capsys.readouterr().err
    assert printed.startswith("continua: ") and printed.count("\n") == 1
    return printed


def test_a_stopped_run_says_so_and_can_be_looked_at(interrupted, capsys):
    assert Run.open(interrupted).manifest["state"] == "interrupted"
    assert main(["eval", str(interrupted), "--json"]) == 0
    assert "samplings" in json.loads(capsys.readouterr().out)["results"]["continuous"]
    assert main(["report", str(interrupted)]) == 0


def test_a_run_is_never_overwritten(interrupted, capsys):
    assert main([*TRAIN, "--output", str(interrupted)]) == 2
    assert f"continua train --resume {interrupted}" in told(capsys)


def test_options_beside_resume_are_refused(interrupted, capsys):
    for words, name in (
        (["--updates", "9"], "--updates = 9"),
        (["--lr", "1"], "--learning-rate = 1.0"),
        (["text"], "TASK = "),
    ):
        assert main(["train", *words, "--resume", str(interrupted)]) == 2
        assert name in told(capsys)


def damage(checkpoint: Path) -> None:
    """Flips one bit of the numbers."""
    values = bytearray((checkpoint / "state.safetensors").read_bytes())
    values[-1] ^= 1
    (checkpoint / "state.safetensors").write_bytes(values)


def test_damaged_checkpoints_give_way_to_earlier_ones_or_are_named(interrupted, tmp_path, capsys):
    run = tmp_path / "copy"
    shutil.copytree(interrupted, run)
    first, last = sorted((run / "checkpoints").iterdir())
    damage(first)
    damage(last)
    assert main(["train", "--resume", str(run), "--quiet"]) == 2
    assert "does not match its hash" in told(capsys)
    shutil.rmtree(run)
    shutil.copytree(interrupted, run)
    damage(last)
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert [row["update"] for row in Run.open(run).records("update")] == [1, 2, 3]


def test_a_disk_that_is_full_fails_with_the_way_to_go_on(monkeypatch, capsys):
    plain = storage.write_checkpoint

    def full(folder: Path, update: int, *rest):
        if update == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        return plain(folder, update, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_checkpoint", full)
        assert main([*TRAIN, "--output", "run"]) == 1
    printed = told(capsys)
    assert "No space left on device" in printed and "continua train --resume run" in printed
    assert Run.open(Path("run")).manifest["state"] == "failed"
    assert main(["train", "--resume", "run", "--quiet"]) == 0


def test_a_run_stopped_at_its_test_has_lost_nothing(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("continua.cli.train.measure_models", stopped)
        assert main([*TRAIN, "--output", "run"]) == 75
    printed = told(capsys)
    assert "nothing is lost. Measure the test with: continua train --resume run" in printed
    assert main(["train", "--resume", "run", "--quiet"]) == 0
    assert len(Run.open(Path("run")).records("test")) == 1


def test_an_update_that_is_stopped_at_once_is_lost(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("continua.train.learner.Learner.update", stopped)
    assert main([*TRAIN, "--output", "run"]) == 75
    assert "updates since the last checkpoint are lost. Go on with: continua train --resume run" in told(capsys)


def test_a_loss_that_is_lost_fails_the_run(capsys):
    assert main([*TRAIN, "--lr", "1e30", "--clip", "1e30", "--output", "run"]) == 1
    printed = told(capsys)
    assert "learning rate" in printed or "--lr" in printed
    assert Run.open(Path("run")).manifest["state"] == "failed"


def test_where_nothing_can_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for where in ("file", "file/run"):
        assert main([*TRAIN, "--output", where]) == 2
        assert f"--output = '{where}': nothing can be written there" in told(capsys)


def test_what_is_no_run_or_half_of_one(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    Run.begin(Path("begun"), "train", {"task": "spirals"})
    Run.begin(Path("other"), "lab", {})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text('{"format": 1, ')
    for words, why in (
        (["report", "empty"], "there is no manifest.json in it"),
        (["eval", "begun"], "it has no model yet"),
        (["eval", "other"], "this is a run of kind 'lab'"),
        (["train", "--resume", "other"], "this is a run of kind 'lab'"),
        (["eval", "torn"], "manifest.json is damaged"),
        (["report", "torn"], "manifest.json is damaged"),
    ):
        assert main(words) == 2, words
        assert why in told(capsys)


def test_a_damaged_record_is_named_by_its_line(tmp_path):
    run = Run.begin(tmp_path / "run", "train", {})
    run.record("update", update=1)
    with (run.folder / "records.jsonl").open("a") as file:
        file.write("{torn\n")
    with pytest.raises(ValueError, match="line 2"):
        list(run.records())
