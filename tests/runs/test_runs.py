"""What a run leaves on disk: whole files, honest hashes, rows that are only ever appended."""

import json
import math

import pytest
import torch

from continua.runs import (
    Lines,
    Run,
    Scale,
    Series,
    checkpoints,
    digest,
    read_checkpoint,
    write_checkpoint,
    write_whole,
)


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


def test_a_half_written_row_is_passed_over_and_later_rows_are_forgotten(run):
    for update in (1, 2, 3):
        run.record("update", update=update)
    with (run.folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "upda')
    assert [row["update"] for row in run.records()] == [1, 2, 3]
    run.forget(after=2)
    run.record("update", update=3, loss=1.0)
    assert [row["update"] for row in run.records()] == [1, 2, 3]
    assert (run.folder / "records.jsonl").read_text().endswith("\n")


def test_arrays_come_back_and_damage_is_seen(run):
    path = run.keep_arrays("trajectory", {"points": torch.arange(6.0).view(2, 3).t()})
    assert torch.equal(run.arrays("trajectory")["points"], torch.arange(6.0).view(2, 3).t())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its hash"):
        run.arrays("trajectory")


def test_figures_are_plain_data(run):
    series = Series.of("loss", [0.0, 1.0], [1.0, math.nan])
    path = run.keep_section("loss", Lines(title="Loss", x=Scale("update"), y=Scale("loss"), series=(series,)))
    plain = json.loads(path.read_text())
    assert path == run.folder / "figures" / "loss.json" and plain["kind"] == "lines"
    assert plain["series"][0]["mark"] == "line" and plain["series"][0]["y"]["values"] == [1.0, None]


def test_a_state_comes_back_as_it_was(tmp_path):
    tree = {"a": [1, 2.5, None, "word"], 3: (True, {"x": torch.arange(3)}), "inf": math.inf, "empty": {}}
    back = read_checkpoint(write_checkpoint(tmp_path, 1, tree))
    assert torch.equal(back[3][1].pop("x"), torch.arange(3)) and tree[3][1].pop("x") is not None
    assert back == tree


def test_a_state_holds_plain_data_only(tmp_path):
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write_checkpoint(tmp_path, 1, {"a": [object()]})
    assert not checkpoints(tmp_path)


def test_a_checkpoint_keeps_the_order_of_entries_in_memory(tmp_path):
    """Products of the same numbers in another order differ by rounding, and a resumed run would differ."""
    columns = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))[0]
    kept = {"q": columns, "permuted": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "rows": torch.ones(2, 3)}
    loose = {"spread": torch.ones(4, 1).expand(4, 3), "gaps": torch.arange(24.0).view(4, 6)[:, ::2]}
    back = read_checkpoint(write_checkpoint(tmp_path, 1, {**kept, **loose}))
    assert columns.stride() == (1, 5) and all(torch.equal(back[n], x) for n, x in {**kept, **loose}.items())
    assert all(back[name].stride() == x.stride() for name, x in kept.items())


def test_the_state_of_an_optimiser_survives(run):
    weight = torch.nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    weight.square().sum().backward()
    optimiser.step()
    run.keep_checkpoint(1, {"update": 1, "optimiser": optimiser.state_dict()})
    state = run.last_checkpoint()["optimiser"]
    expected = optimiser.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert all(torch.equal(state["state"][0][key], value) for key, value in expected["state"][0].items())


def test_the_two_latest_checkpoints_stay_and_a_damaged_one_gives_way(run):
    for update in (10, 20, 30):
        run.keep_checkpoint(update, {"update": update, "w": torch.ones(4) * update})
    folder = run.folder / "checkpoints"
    assert [path.name for path in checkpoints(folder)] == ["00000020", "00000030"]
    values = folder / "00000030" / "state.safetensors"
    content = bytearray(values.read_bytes())
    content[-1] ^= 1
    values.write_bytes(content)
    assert run.last_checkpoint()["update"] == 20
    (folder / "00000020" / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        run.last_checkpoint()


def test_an_unfinished_checkpoint_is_not_read(tmp_path):
    write_checkpoint(tmp_path, 5, {"update": 5})
    (tmp_path / "00000006").mkdir()
    (tmp_path / "00000006" / "state.safetensors").write_bytes(b"")
    assert [path.name for path in checkpoints(tmp_path)] == ["00000005"]
    assert read_checkpoint(tmp_path / "00000005") == {"update": 5}


def test_a_run_without_checkpoints_has_none(run):
    assert run.last_checkpoint() is None


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and digest(b"old") == digest(path.read_bytes())
