"""Damaged, torn and hostile files: another checkpoint is taken and that is said, or one sentence refuses them."""

import json
import os
import pickle
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import torch

from continua.core.errors import DamageWarning
from continua.runs import Run, storage
from injections import flips, fork, kill_at, small_run

ALL = os.environ.get("CONTINUA_FAULTS") == "all"  # as `make faults` sets it; else a sample


def read_aloud(run: Run):
    """The update and the state of the checkpoint that is taken, and whether something was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        last = run.last_checkpoint()
    return last.update, last.state["learners"]["continuous"]["w"].tolist(), bool(said)


WHOLE = {1: [0.0, 1.0, 2.0], 2: [0.0, 2.0, 4.0]}


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_seen_or_changes_nothing(tmp_path):
    run, count = small_run(tmp_path / "run"), 0
    for path in sorted(run.checkpoints()[-1].rglob("*.*")):
        for place in flips(path, every=1 if ALL else 9, bits=8 if ALL else 1):
            update, values, said = read_aloud(run)
            assert values == WHOLE[update] and said == (update == 1), place
            count += 1
    assert count > (8000 if ALL else 100) and read_aloud(run) == (2, WHOLE[2], False)


def test_a_flipped_bit_anywhere_in_the_manifest_or_the_records_is_survived(tmp_path):
    run = small_run(tmp_path / "run")
    before = run.manifest
    for place in flips(run.folder / "manifest.json", bits=8 if ALL else 1):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = run.manifest
        assert {**found, "facts": {}} == {**before, "facts": {}}, place
    for _ in flips(run.folder / "records.jsonl", bits=8 if ALL else 1):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert len(run.records()) <= 3


@pytest.mark.parametrize("how", ["half", "empty", "missing", "folder missing"])
def test_what_is_torn_gives_way(tmp_path, how):
    run = small_run(tmp_path / "run")
    newest = run.checkpoints()[-1]
    shutil.copytree(newest, tmp_path / "whole")
    if how == "folder missing":
        shutil.rmtree(newest)
        assert read_aloud(run) == (1, WHOLE[1], False)
        return
    for path in sorted(newest.rglob("*.*")):
        content = path.read_bytes()
        path.unlink() if how == "missing" else path.write_bytes(content[: len(content) // 2 if how == "half" else 0])
        assert read_aloud(run) == (1, WHOLE[1], True), path
        path.write_bytes(content)


def test_all_checkpoints_bad_is_one_sentence(tmp_path):
    run = small_run(tmp_path / "run")
    for path in run.checkpoints():
        (path / "manifest.json").write_bytes(b"")
    with pytest.warns(DamageWarning), pytest.raises(ValueError, match="it cannot be read") as told:
        run.last_checkpoint()
    assert "\n" not in str(told.value)


def test_a_kill_at_every_call_of_a_save_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    """Both checkpoints of the run are whole afterwards, nothing is said, and the next save works."""
    call, survived = 1, 0
    while True:
        run = small_run(tmp_path / f"run{call}")

        def save(run=run, call=call):
            kill_at(call)
            state = {"learners": {"continuous": {"w": torch.arange(3.0) * 3}}}
            run.keep_checkpoint(3, state, {"continuous/model.json": b"{}"})
            run.keep_models()
            return 0

        code = fork(save, tmp_path).wait()
        with run.lock():
            assert not list(run.folder.rglob(".tmp-*")), call
        update, values, said = read_aloud(Run.open(run.folder))
        assert not said and (update, values) in ((2, WHOLE[2]), (3, [0.0, 3.0, 6.0])), call
        assert len(run.checkpoints()) >= 2 and run.keep_checkpoint(4, {}).is_dir()
        shutil.rmtree(run.folder)
        if code == 0:
            break
        assert code == -9
        survived += 1
        call += 1 if ALL else 11
    assert survived > (50 if ALL else 4)


def reseal(checkpoint: Path, **files: bytes) -> None:
    """Replaces files of a checkpoint, as somebody can who knows how it is hashed."""
    manifest = storage.unseal((checkpoint / "manifest.json").read_bytes())
    for name, content in files.items():
        name = name.replace("__", ".")
        if (checkpoint / name).parent.is_dir() and ".." not in name:
            (checkpoint / name).write_bytes(content)
        manifest["files"][name] = storage.digest(content)
    (checkpoint / "manifest.json").write_bytes(storage.seal(manifest))


class Bomb:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def header(size: int) -> bytes:
    return struct.pack("<Q", size) + b"{}"


DEEP = b'{"kind":"list","items":[' * 50_000
HOSTILE = {
    "pickle": {"state__safetensors": pickle.dumps(Bomb())},
    "header of 2^63": {"state__safetensors": header(2**63)},
    "header of 2^31": {"state__safetensors": header(2**31)},
    "no state": {"state__json": b"[]"},
    "other kinds": {"state__json": b'{"kind": "os:system", "items": 3}'},
    "tensors that are not there": {"state__json": b'{"kind": "tensor", "name": "x", "order": []}'},
    "odd order": {"state__json": b'{"kind": "tensor", "name": ".a", "order": [7]}'},
    "nested deeply": {"state__json": DEEP},
    "path above": {"../../outside.json": b"{}"},
    "absolute path": {"/etc/passwd": b"{}"},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_checkpoints_are_refused_in_one_sentence(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = small_run(tmp_path / "run")
    for checkpoint in run.checkpoints():
        reseal(checkpoint, **HOSTILE[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            state = run.last_checkpoint().state
        except ValueError as error:
            assert "it cannot be read" in str(error) and "\n" not in str(error)
        else:
            assert kind == "other kinds" and isinstance(state, dict)  # plain data, which the learner refuses
    assert not (tmp_path / "exploded").exists() and not (tmp_path / "outside.json").exists()


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": 2}'])
def test_odd_manifests_are_refused_in_one_sentence(tmp_path, content):
    run = Run.begin(tmp_path / "run", "train", {})
    (run.folder / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged|it is of format"):
        Run.open(run.folder)
    sealed = {"format": storage.FORMAT, "kind": "train", "config": [], "facts": {}, "versions": {}, "state": "running"}
    (run.folder / "manifest.json").write_bytes(storage.seal(sealed))
    with pytest.raises(ValueError, match="its manifest lacks one of"):
        Run.open(run.folder)
    assert json.loads((run.folder / "manifest.json").read_text())["config"] == []
