"""Files of the UEA archive: what is read, and what is refused with file, row and cure."""

import dataclasses

import numpy as np
import pytest
import torch

from continua.data import Question, Split, Uea, read_ts

HEADER = "# a comment\n@problemName Toy\n@timeStamps false\n@classLabel true up down\n@data\n"
TRAIN = HEADER + "1,2,3:0,1,0:up\n3,2,1,0:1,0,1,1:down\n"
TEST = HEADER + "1,2:5,6:down\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "Toy_TRAIN.ts").write_text(TRAIN)
    (tmp_path / "Toy_TEST.ts").write_text(TEST)
    return tmp_path / "Toy_TRAIN.ts"


def test_series_of_different_lengths_are_read(files):
    found = read_ts(files)
    assert found.classes == ("up", "down") and found.labels == [0, 1]
    assert torch.equal(found.series[0], torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]))
    assert found.series[1].shape == (4, 2)


def test_batches_are_padded_and_scaled_by_the_training_file(files):
    task = Uea(files)
    assert (task.form.question, task.form.features, task.form.outputs) == (Question.LABEL, 2, 2)
    values, times, present = task.batch(Split.TRAIN, torch.tensor([0, 1])).inputs
    assert present.tolist() == [[True, True, True, False], [True] * 4]
    assert torch.allclose(times, torch.tensor([[0, 1 / 3, 2 / 3, 0], [0, 1 / 3, 2 / 3, 1]]))
    every = values[present]
    assert torch.allclose(every.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(every.std(0), torch.ones(2), atol=1e-6)
    assert task.batch(Split.TEST, torch.tensor([0])).targets.tolist() == [1]
    assert task.facts()["validation"] == "the test examples"
    assert torch.equal(
        task.batch(Split.VALIDATION, torch.tensor([0])).inputs[0], task.batch(Split.TEST, torch.tensor([0])).inputs[0]
    )


def large(tmp_path, up=38, down=25):
    """Series whose first value is their number, so that they can be told apart after scaling."""
    rows = [f"{i},{i % 3},{i % 2}:0,{i % 5},1:{'up' if i < up else 'down'}" for i in range(up + down)]
    (tmp_path / "Large_TRAIN.ts").write_text(HEADER + "\n".join(rows))
    (tmp_path / "Large_TEST.ts").write_text(TEST)
    return Uea(tmp_path / "Large_TRAIN.ts")


def test_a_fifth_of_each_class_of_the_training_file_is_held_out(tmp_path):
    task = large(tmp_path)
    parts = {split: task.batch(split, torch.arange(task.count(split))) for split in (Split.TRAIN, Split.VALIDATION)}
    assert parts[Split.VALIDATION].targets.bincount().tolist() == [7, 5]
    assert parts[Split.TRAIN].targets.bincount().tolist() == [31, 20]
    firsts = torch.cat([part.inputs[0][:, 0, 0] for part in parts.values()])
    assert len(firsts.unique()) == 63  # every series is in one part, and in one alone
    trained = parts[Split.TRAIN].inputs[0].flatten(0, 1)
    assert torch.allclose(trained.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(trained.std(0), torch.ones(2), atol=1e-6)
    facts = task.facts()
    assert (facts["training examples"], facts["validation examples"], facts["test examples"]) == (51, 12, 1)
    assert "validation" not in facts


def test_small_classes_spare_one_series_and_those_of_two_none(tmp_path):
    task = large(tmp_path, up=4, down=2)
    assert (task.count(Split.TRAIN), task.count(Split.VALIDATION)) == (5, 1) and "validation" not in task.facts()
    assert task.batch(Split.VALIDATION, torch.arange(1)).targets.tolist() == [0]


def test_where_nothing_can_be_spared_validation_reads_the_test_and_that_is_said(tmp_path):
    task = large(tmp_path, up=2, down=2)
    assert (task.count(Split.TRAIN), task.count(Split.VALIDATION)) == (4, 1)
    assert task.facts()["validation"] == "the test examples"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "the file is empty"),
        ("# words\n@classLabel true a b\n", "no line @data"),
        (HEADER, "no row behind @data"),
        (HEADER + "1,?,3:0,1,0:up\n", "row 6: a value '\\?'"),
        (HEADER + "1,nan,3:0,1,0:up\n", "row 6: a value 'nan'"),
        (HEADER + "1,2,3:0,1:up\n", "row 6: dimensions of different lengths"),
        (HEADER + "1,2:0,1:up\n1,2:up\n", "row 7: 1 dimensions"),
        (HEADER + "1,2:0,1:left\n", "row 6: a class 'left'"),
        (HEADER + "1,2\n", "row 6: no class"),
        ("1,2:up\n", "row 1: a row of data before @data"),
        ("@timeStamps true\n@data\n", "row 1: series with time stamps"),
        (HEADER + "1,2:3,3:up\n2,1:3,3:down\n", "dimension 2 is constant"),
        ("@data\n1,2:up\n2,1:up\n", "row 2: all series are of one class, up"),
    ],
)
def test_bad_files_are_refused_with_their_row(files, content, told):
    files.write_text(content)
    with pytest.raises(ValueError, match=told) as raised:
        _ = Uea(files).form
    assert "Toy_TRAIN.ts" in str(raised.value)


def test_both_files_are_needed(files, tmp_path):
    with pytest.raises(ValueError, match=r"NAME_TRAIN\.ts"):
        _ = Uea(tmp_path / "Toy.ts").form
    (tmp_path / "Toy_TEST.ts").unlink()
    with pytest.raises(ValueError, match="no such file"):
        _ = Uea(files).form


def test_the_reference_reads_the_samples_that_are_left_and_never_the_series_itself(tmp_path):
    random = torch.Generator().manual_seed(0)
    rows = [",".join(f"{x:.3f}" for x in torch.randn(12, generator=random).cumsum(0).tolist()) for _ in range(20)]
    labelled = [f"{row}:{'up' if i % 2 else 'down'}" for i, row in enumerate(rows)]
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Gaps_{part}.ts").write_text(HEADER + "\n".join(labelled))
    task, whole = (Uea(tmp_path / "Gaps_TRAIN.ts", missing=missing) for missing in (0.8, 0.0))
    trained = task.count(Split.TRAIN)

    def logits(batch, own):
        values, times, present = batch.inputs
        seen = [(t[p].double().numpy(), x[p].double().numpy()) for x, t, p in zip(values, times, present, strict=True)]
        return torch.from_numpy(task.transform.reference.logits_without(seen, own)).float()

    batch = task.training_batch(6, 0, 3)
    assert int(batch.inputs[2].sum()) < 6 * 12  # samples are missing
    torch.testing.assert_close(batch.offset, logits(batch, batch.index.tolist()))
    index = torch.arange(task.count(Split.VALIDATION))
    held = task.batch(Split.VALIDATION, index)
    assert held.inputs[2].sum(1).tolist() == [7] * len(index)  # the mean of training is missing, 0.4 of 12
    torch.testing.assert_close(held.offset, logits(held, (trained + index).tolist()))
    complete = whole.batch(Split.VALIDATION, index)
    assert torch.equal(complete.offset, task.transform.left_out_logits[trained + index])
    torch.testing.assert_close(complete.offset, logits(complete, (trained + index).tolist()))
    assert not torch.allclose(complete.offset, logits(complete, [-1] * len(index)))  # as if it had not been left out


def test_where_samples_are_missing_series_are_read_in_eight_samplings_and_networks_answer_alone(tmp_path, monkeypatch):
    random = torch.Generator().manual_seed(0)
    rows = [",".join(f"{x:.3f}" for x in torch.randn(20, generator=random).tolist()) for _ in range(20)]
    for part in ("TRAIN", "TEST"):
        labelled = [f"{row}:{'up' if i % 2 else 'down'}" for i, row in enumerate(rows)]
        (tmp_path / f"Gaps_{part}.ts").write_text(HEADER + "\n".join(labelled))
    task, whole = (Uea(tmp_path / "Gaps_TRAIN.ts", missing=missing) for missing in (0.8, 0.0))
    assert (task.form.outputs, task.form.alone, whole.form.outputs, whole.form.alone) == (3, True, 2, False)
    found = list(task.readings(Split.VALIDATION))
    assert [int(batch.inputs[2].sum(1).max()) for batch in found] == [19, 17, 15, 13, 11, 9, 7, 5]
    assert all(torch.equal(batch.targets, found[0].targets) for batch in found)
    seen = [set(batch.inputs[1][0][batch.inputs[2][0]].tolist()) for batch in found]
    assert not seen[-1] <= seen[-2]  # each sampling is drawn anew, and not the last one without some more
    (only,) = whole.readings(Split.VALIDATION)
    assert torch.equal(only.offset, whole.batch(Split.VALIDATION, only.index).offset) and bool(only.inputs[2].all())
    monkeypatch.setattr("continua.data.uea._MOST", 5)
    assert next(task.readings(Split.TRAIN)).index.tolist() == [0, 4, 8, 11, 15]


def test_samples_are_dropped_in_training_and_always_the_same_in_the_test(tmp_path):
    rows = [",".join(str(100 * i + k) for k in range(10 + i)) + ":" + ("up" if i % 2 else "down") for i in range(6)]
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Long_{part}.ts").write_text(HEADER + "\n".join(rows))
    task = Uea(tmp_path / "Long_TRAIN.ts", missing=0.8, test_missing=0.5, whole=True)
    values, times, present = task.batch(Split.TEST, torch.tensor([1, 4])).inputs
    assert present.sum(1).tolist() == [6, 7] and task.form.gaps  # 5.5 and 7 of 11 and 14
    assert torch.equal(values[1, present[1]], task.batch(Split.TEST, torch.tensor([4])).inputs[0][0])
    whole = Uea(tmp_path / "Long_TRAIN.ts", whole=True).batch(Split.TEST, torch.tensor([1, 4])).inputs
    for row in range(2):  # values keep their times
        known = dict(zip(whole[1][row].tolist(), whole[0][row, :, 0].tolist(), strict=True))
        seen = times[row][present[row]]
        assert (
            bool((seen.diff() > 0).all()) and [known[t] for t in seen.tolist()] == values[row, present[row], 0].tolist()
        )
    counts = {tuple(task.training_batch(4, 0, update).inputs[2].sum(1).tolist()) for update in range(20)}
    assert len(counts) > 10 and min(min(c) for c in counts) >= 2
    assert "0 to 80% of the samples missing" in task.facts()["augmentation"]
    assert set(task.variants()) == {f"{part}% of the samples missing" for part in (30, 50, 70)}
    filled = dataclasses.replace(task, interpolated=True).batch(Split.TEST, torch.tensor([1, 4])).inputs
    for row in range(2):  # as numpy fills them
        kept = times[row][present[row]].numpy()
        grid = filled[1][row][filled[2][row]].numpy()
        assert len(grid) == round((kept[-1] - kept[0]) * 14) + 1
        own = np.interp(grid, kept, values[row, present[row], 0].numpy())
        assert np.allclose(own, filled[0][row, filled[2][row], 0].numpy(), atol=1e-5)
