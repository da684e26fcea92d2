"""What a run leaves on disk: whole files, honest hashes, rows that are only ever appended."""

import contextlib
import json
import math
import os
import resource

import pytest
import torch

from continua.core.errors import DamageWarning
from continua.runs import Curve, Lines, Run, Scale, digest, read_checkpoint, write_checkpoint, write_whole


@pytest.fixture
def run(tmp_path):
    return Run.begin(tmp_path / "run", "train", {"lr": 0.1, "file": tmp_path}, {"samples": 3})


def test_a_run_says_what_was_asked_for(run):
    manifest = Run.open(run.folder).manifest
    assert manifest["kind"] == "train" and manifest["config"]["lr"] == 0.1 and manifest["state"] == "running"
    assert manifest["facts"] == {"samples": 3} and {"python", "torch", "continua"} <= manifest["versions"].keys()
    run.note(threads=2)
    run.end("finished")
    assert run.manifest["facts"] == {"samples": 3, "threads": 2} and run.manifest["state"] == "finished"


def test_a_run_is_not_overwritten(run):
    with pytest.raises(ValueError, match="a run in it already"):
        Run.begin(run.folder, "train", {})


def test_other_folders_are_no_runs(tmp_path, run):
    with pytest.raises(ValueError, match="no manifest"):
        Run.open(tmp_path)
    (run.folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Run.open(run.folder)


def test_rows_are_appended_and_read_by_kind(run):
    run.record("update", update=1, loss=0.5)
    run.record("update", update=2, loss=math.nan)
    run.record("validation", update=2, metrics={"accuracy": math.inf})
    assert [row["loss"] for row in run.records("update")] == [0.5, None]
    assert [row["kind"] for row in run.records()] == ["update", "update", "validation"]


def test_torn_and_damaged_rows_are_passed_over_and_later_ones_forgotten(run):
    for update in (1, 2, 3):
        run.record("update", update=update)
    with (run.folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "upda')
    assert [row["update"] for row in run.records()] == [1, 2, 3]
    run.record("test")  # behind a line break of its own
    with pytest.warns(DamageWarning, match=r"1 of 5 rows"):
        assert [row["kind"] for row in run.records()] == ["update", "update", "update", "test"]
    with pytest.warns(DamageWarning):
        run.forget(after=2)
    run.record("update", update=3, loss=1.0)
    assert [row.get("update") for row in run.records()] == [1, 2, None, 3]


def test_arrays_come_back_and_damage_is_seen(run):
    path = run.keep_arrays("trajectory", {"points": torch.arange(6.0).view(2, 3).t()})
    assert torch.equal(run.arrays("trajectory")["points"], torch.arange(6.0).view(2, 3).t())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its hash"):
        run.arrays("trajectory")


def test_figures_are_plain_data(run):
    series = Curve.of("loss", [0.0, 1.0], [1.0, math.nan])
    path = run.keep_section("loss", Lines(title="Loss", x=Scale("update"), y=Scale("loss"), curves=(series,)))
    plain = json.loads(path.read_text())
    assert path == run.folder / "figures" / "loss.json" and plain["kind"] == "lines"
    assert plain["curves"][0]["mark"] == "line" and plain["curves"][0]["y"]["values"] == [1.0, None]


def test_a_state_comes_back_as_it_was(tmp_path):
    tree = {"a": [1, 2.5, None, "word"], 3: (True, {"x": torch.arange(3)}), "inf": math.inf, "empty": {}}
    back = read_checkpoint(write_checkpoint(tmp_path, 1, tree, {})).state
    assert torch.equal(back[3][1].pop("x"), torch.arange(3)) and tree[3][1].pop("x") is not None
    assert back == tree


def test_a_state_holds_plain_data_only(tmp_path):
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write_checkpoint(tmp_path, 1, {"a": [object()]}, {})
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_keeps_the_order_of_entries_in_memory(tmp_path):
    """Products of the same numbers in another order differ by rounding, and a resumed run would differ."""
    columns = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))[0]
    kept = {"q": columns, "permuted": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "rows": torch.ones(2, 3)}
    loose = {"spread": torch.ones(4, 1).expand(4, 3), "gaps": torch.arange(24.0).view(4, 6)[:, ::2]}
    back = read_checkpoint(write_checkpoint(tmp_path, 1, {**kept, **loose}, {})).state
    assert columns.stride() == (1, 5) and all(torch.equal(back[n], x) for n, x in {**kept, **loose}.items())
    assert all(back[name].stride() == x.stride() for name, x in kept.items())


def test_the_state_of_an_optimiser_survives(run):
    weight = torch.nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    weight.square().sum().backward()
    optimiser.step()
    run.keep_checkpoint(1, {"optimiser": optimiser.state_dict()})
    state = run.last_checkpoint().state["optimiser"]
    expected = optimiser.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert all(torch.equal(state["state"][0][key], value) for key, value in expected["state"][0].items())


def test_the_latest_checkpoints_and_the_best_stay_and_a_damaged_one_gives_way(run):
    run.note(best={"update": 10, "loss": 0.5})
    for update in (10, 20, 30, 40):
        run.keep_checkpoint(update, {"w": torch.ones(4) * update}, {"a/b.txt": b"x"})
    assert [path.name for path in run.checkpoints()] == ["00000010", "00000030", "00000040"]
    flip(run.checkpoints()[-1] / "state.safetensors")
    with pytest.warns(DamageWarning, match=r"state\.safetensors does not match its hash.*Going back"):
        assert run.last_checkpoint().update == 30
    assert run.last_checkpoint(before=30).update == 10  # what is asked for is before the damage
    flip(run.checkpoints()[1] / "state.json")
    flip(run.checkpoints()[0] / "a" / "b.txt")
    with pytest.raises(ValueError, match="cannot be read"), pytest.warns(DamageWarning):
        run.last_checkpoint()


def test_a_damaged_or_edited_manifest_gives_way_to_that_of_the_checkpoint(run):
    run.keep_checkpoint(10, {})
    (run.folder / "manifest.json").write_text((run.folder / "manifest.json").read_text().replace("0.1", "0.2"))
    with pytest.warns(DamageWarning, match=r"damaged, or was edited.*that of checkpoint 00000010"):
        assert Run.open(run.folder).manifest["config"]["lr"] == 0.1
    (run.folder / "manifest.json").unlink()
    with pytest.warns(DamageWarning, match="No such file"):
        assert Run.open(run.folder).manifest["config"]["lr"] == 0.1


def test_models_are_a_copy_of_the_latest_checkpoint(run):
    for update in (1, 2):
        run.keep_checkpoint(update, {}, {"continuous/model.json": str(update).encode()})
        run.keep_models()
        assert (run.folder / "models" / "continuous" / "model.json").read_text() == str(update)
    assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "checkpoints", "manifest.json", "models"]


def test_one_process_at_a_time_writes_into_a_run(run):
    (run.folder / ".tmp-of-a-killed-one").mkdir()
    with run.lock():
        assert not (run.folder / ".tmp-of-a-killed-one").exists()
        with pytest.raises(ValueError, match=f"process {os.getpid()} on .* is writing into it"), run.lock():
            pass
    with run.lock():
        pass


@pytest.mark.parametrize("name", ["records.jsonl", "checkpoints", "manifest.json", "figures", ".lock"])
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_links_and_fifos_in_a_run_are_refused(run, tmp_path, name, kind):
    """By whoever opens the run, and by whoever writes without having looked."""
    (outside := tmp_path / "outside").write_text("mine")
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(outside) if kind == "link" else os.mkfifo(run.folder / name)
    with pytest.raises(ValueError, match=f"{name} in it is (a link|no plain file)"):
        Run.open(run.folder)
    for write in (lambda: run.record("test"), lambda: run.lock().__enter__(), lambda: run.keep_checkpoint(1, {})):
        with contextlib.suppress(ValueError, OSError):
            write()
    assert outside.read_text() == "mine"


def test_a_second_name_of_the_records_is_not_written_to(run, tmp_path):
    (tmp_path / "outside").write_text("mine\n")
    os.link(tmp_path / "outside", run.folder / "records.jsonl")
    with pytest.raises(ValueError, match="second name"):
        run.record("test")
    assert (tmp_path / "outside").read_text() == "mine\n"


def test_only_a_new_or_empty_folder_becomes_a_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="something else in it"):
        Run.begin(tmp_path, "train", {})
    (tmp_path / "empty").mkdir()
    Run.begin(tmp_path / "empty", "train", {})


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_an_old_format_is_named(run):
    (run.folder / "manifest.json").write_text(json.dumps({"format": 1, "kind": "train"}))
    with pytest.raises(ValueError, match="it is of format 1, and this version reads 2"):
        Run.open(run.folder)


def test_a_run_without_checkpoints_has_none(run):
    assert run.last_checkpoint() is None


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_whole(path, bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old" and digest(b"old") == digest(path.read_bytes())
    assert list(tmp_path.iterdir()) == [path]
