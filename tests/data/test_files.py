"""Files that are none of what they should be: every reader says what is wrong with them."""

from pathlib import Path

import pytest

from continua.data import Csv, Text, Uea

READERS = {
    "text": (lambda file: Text(file, context_length=4), "bad.txt", "text file"),
    "csv": (Csv, "bad.csv", "CSV file"),
    "uea": (Uea, "Bad_TRAIN.ts", r"\.ts file"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (b" \n\t\r\n ", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "this is no text, its byte 8 is 0"),
        ("t,x\n0,1\n".encode("utf-16"), "this is UTF-16 text. Save the file as UTF-8"),
    ],
)
def test_no_text_is_refused_by_every_reader(tmp_path, reader, content, told):
    build, name, _ = READERS[reader]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=told) as raised:
        _ = build(tmp_path / name).form
    assert name in str(raised.value)


@pytest.mark.parametrize("reader", READERS)
def test_folders_absent_and_closed_files(tmp_path, reader, monkeypatch):
    build, name, what = READERS[reader]
    with pytest.raises(ValueError, match=f"no such file. Pass the path of a {what}"):
        _ = build(tmp_path / name).form
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"this is a folder. Pass the path of a {what}"):
        _ = build(tmp_path / name).form
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text("t,x\n0,1\n")

    def closed(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_bytes", closed)
    with pytest.raises(ValueError, match=r"it cannot be read \(Permission denied\)"):
        _ = build(tmp_path / name).form


def test_letters_of_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("h\u00f6he, die man kennt\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"row 1: byte 1 is not UTF-8. Save the file as UTF-8"):
        _ = Text(tmp_path / "a.txt", context_length=4).form
    ts = "# caf\u00e9\n@classLabel true a b\n@data\n1,2:a\n2,1:b\n".encode("latin-1")
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"A_{part}.ts").write_bytes(ts)
    assert Uea(tmp_path / "A_TRAIN.ts").form.outputs == 2  # comments may be in any encoding
    (tmp_path / "a.txt").write_text("\ufeffabcabcabc" * 20, encoding="utf-8")
    assert Text(tmp_path / "a.txt").alphabet == "abc\ufeff"  # the first mark is no character of the text
    (tmp_path / "b.txt").write_text("\ufeff" + "abc" * 20, encoding="utf-8")
    assert Text(tmp_path / "b.txt").alphabet == "abc"


def test_a_file_that_changed_is_read_again(tmp_path, monkeypatch):
    for folder, letters in (("one", "ab"), ("two", "cde")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tale.txt").write_text(letters * 200)
    task = Text(Path("tale.txt"), context_length=8)
    monkeypatch.chdir(tmp_path / "one")
    assert task.alphabet == "ab" and task.alphabet is task.alphabet
    monkeypatch.chdir(tmp_path / "two")
    assert task.alphabet == "cde"
    Path("tale.txt").write_text("xyz" * 300)
    assert task.alphabet == "xyz"
