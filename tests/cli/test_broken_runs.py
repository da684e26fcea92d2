"""Runs that do not come to their end, and folders that are not what they should be: told in one line, with the cure."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest

from continua.cli.main import main
from continua.model.storage import hash_model
from continua.runs import Run, storage
from short_runs import SMALL, TASK, stop_after

OPTIONS = [*SMALL, "--depth-steps", "1", "--quiet"]
TRAIN = ["train", *TASK, *OPTIONS]


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
        stop_after(patch, 2, signal.SIGTERM)
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
        (["--threads", "2"], "--threads = 2"),
        (["--override", "lr"], "--override = 'lr': this changes no option"),
        (["--override", "lr=fast"], "--override: --learning-rate = 'fast': this is no number"),
        (["--override", "width=16"], "it is of another model"),
    ):
        assert main(["train", "--resume", str(interrupted), *words]) == 2
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
    damage(last)
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert "does not match its hash" in (printed := told(capsys)) and "Going back to the one before it" in printed
    assert [row["update"] for row in Run.open(run).records("update")] == [1, 2, 3]
    shutil.rmtree(run)
    shutil.copytree(interrupted, run)
    damage(first)
    damage(last)
    assert main(["train", "--resume", str(run), "--quiet"]) == 2
    assert "does not match its hash" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    assert main(["train", "--resume", str(run), "--quiet"]) == 2
    assert "it has records of updates, but its checkpoints are gone" in told(capsys)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_says_so(interrupted, tmp_path, capsys):
    run = tmp_path / "copy"
    shutil.copytree(interrupted, run)
    shutil.rmtree(run / "checkpoints")
    (run / "records.jsonl").unlink()
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert "no checkpoint yet: it begins anew" in told(capsys)


@pytest.mark.faults  # `tests/faults` fills a small disk in every run
def test_a_disk_that_is_full_fails_with_the_way_to_go_on(capsys):
    assert main([*TRAIN, "--updates", "2", "--output", "small"]) == 0
    largest = max(path.stat().st_size for path in Path("small/checkpoints/00000002").iterdir() if path.is_file())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, before[1]))
    try:
        assert main([*TRAIN, "--output", "run"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    printed = told(capsys)
    assert "File too large" in printed and "continua train --resume run" in printed
    assert Run.open(Path("run")).manifest["state"] == "failed" and not list(Path("run").rglob(".tmp-*"))
    assert main(["train", "--resume", "run", "--quiet"]) == 0


def test_a_run_stopped_at_its_test_has_lost_nothing(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("continua.cli.measuring.measure_models", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert main([*TRAIN, "--output", "run"]) == 75
    printed = told(capsys)
    assert "stopped by SIGTERM; 3 of 3 updates are saved. Go on with: continua train --resume run" in printed
    assert main(["train", "--resume", "run", "--quiet"]) == 0
    assert len(Run.open(Path("run")).records("test")) == 1


def test_a_second_signal_leaves_at_once(monkeypatch, capsys):
    def stopped(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr("continua.train.learner.Learner.update", stopped)
    assert main([*TRAIN, "--output", "run"]) == 75
    assert "stopped by SIGHUP; 0 of 3 updates are saved. Go on with: continua train --resume run" in told(capsys)


def test_a_living_run_is_left_alone(interrupted, capsys):
    with Run.open(interrupted).lock():
        assert main(["train", "--resume", str(interrupted), "--quiet"]) == 2
        assert f"process {os.getpid()} on" in told(capsys)
        assert main(["eval", str(interrupted), "--json"]) == 0
        printed = capsys.readouterr()
        assert "not noted" in printed.err and "samplings" in printed.out


def test_a_diverged_run_goes_back_and_on_with_a_lower_rate(capsys):
    assert main([*TRAIN, "--lr", "1e6", "--clip", "1e30", "--max-skipped", "1", "--output", "run"]) == 1
    assert "diverged" in (printed := told(capsys)) and "with half the learning rate: continua train" in printed
    run = Run.open(Path("run"))
    assert run.manifest["state"] == "diverged"
    assert main(["train", "--resume", "run", "--quiet"]) == 1  # half of it is no better, but it was tried
    assert run.manifest["config"]["learning_rate"] == 5e5
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--quiet", "--override", "lr=0.001", "clip=1"]) == 0
    changes = [row["changes"] for row in run.records("override")]
    assert changes[0]["learning_rate"] == [1e6, 5e5] and changes[-1]["learning_rate"] == [5e5, 1e-3]
    assert all(row["loss"] is not None for row in run.records("update"))


def test_what_changed_before_a_resume_is_shown_and_refused(tmp_path, capsys):
    text = tmp_path / "tale.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 12)
    words = ["train", "text", "--text", "tale.txt", "--context-length", "8", *OPTIONS, "--output", "run"]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2, signal.SIGTERM)
        assert main(words) == 75
    capsys.readouterr()
    text.write_text(text.read_text().replace("quick", "kciuq"))
    assert main(["train", "--resume", "run"]) == 2
    assert "data was " in (printed := told(capsys)) and "--override data=" in printed
    text.rename(tmp_path / "elsewhere.txt")
    text = tmp_path / "elsewhere.txt"
    text.write_text(text.read_text().replace("kciuq", "quick"))
    assert main(["train", "--resume", "run"]) == 2
    assert "tale.txt" in told(capsys)
    manifest = tmp_path / "run" / "manifest.json"
    torch_version = json.loads(manifest.read_text())["versions"]["torch"]
    Run.open(tmp_path / "run").go_on(versions={**Run.open(tmp_path / "run").manifest["versions"], "torch": "1.0"})
    words = ["train", "--resume", "run", "--quiet", "--override", "text=elsewhere.txt"]
    assert main(words) == 2
    printed = told(capsys)
    assert f"torch was 1.0 and is {torch_version}" in printed
    accepted = printed.partition("--override ")[2].strip(" .\n").split()
    assert main([*words, *accepted]) == 0
    (row,) = Run.open(tmp_path / "run").records("override")
    assert row["after"] == 2 and set(row["changes"]) == {"torch", "text"}


def test_the_same_command_begins_a_run_and_goes_on_with_it(capsys):
    words = [*TRAIN, "--output", "run", "--autoresume"]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2, signal.SIGTERM)
        assert main(words) == 75
    capsys.readouterr()
    assert main([*words, "--lr", "1"]) == 2
    assert "--learning-rate = 1.0: the run in run began with 0.003" in (printed := told(capsys))
    assert "continua train --resume run --override learning_rate=1.0" in printed
    assert main(words) == 0 and len(Run.open(Path("run")).records("update")) == 3
    assert main(words) == 0 and len(Run.open(Path("run")).records("test")) == 1  # it was finished
    assert main([*TRAIN, "--autoresume"]) == 2
    assert "--output RUN" in told(capsys)


def test_numbers_whose_products_end_the_process_on_some_processors_are_refused(capsys):
    assert main([*TRAIN, "--output", "run", "--dtype", "bfloat16"]) == 2
    assert "there is no such dtype" in told(capsys) and not Path("run").exists()


def test_a_run_of_an_older_format_is_refused_by_every_command(interrupted, tmp_path, capsys):
    run = tmp_path / "old"
    shutil.copytree(interrupted, run)
    manifest = storage.unseal((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_bytes(storage.seal({**manifest, "format": 1}))
    for words in (["train", "--resume", "old"], ["eval", "old"], ["report", "old"]):
        assert main(words) == 2
        assert "it is of format 1, and this version reads 2" in told(capsys)


@pytest.mark.parametrize("name", ["os:system", "torch.nn:Linear", "continua.cli.main:main", "continua.model:../x"])
def test_a_checkpoint_that_names_other_classes_builds_none_of_them(interrupted, tmp_path, capsys, name):
    """Somebody who knows how checkpoints are hashed has put it there."""
    run = tmp_path / "strange"
    shutil.copytree(interrupted, run)
    for checkpoint in (run / "checkpoints").iterdir():
        path = checkpoint / "continuous" / "model.json"
        description = json.loads(path.read_text())
        description["model"] = {"class": name, "arguments": {"command": "touch made"}}
        values = (path.parent / "model.safetensors").read_bytes()
        path.write_text(json.dumps({**description, "sha256": hash_model(values, description)}))
        manifest = storage.unseal((checkpoint / "manifest.json").read_bytes())
        manifest["files"]["continuous/model.json"] = storage.digest(path.read_bytes())
        (checkpoint / "manifest.json").write_bytes(storage.seal(manifest))
    for words in (["train", "--resume", "strange", "--quiet"], ["eval", "strange"]):
        assert main(words) == 2
        assert "class = " in told(capsys) and not Path("made").exists()


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
