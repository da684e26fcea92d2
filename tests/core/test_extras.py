"""A missing extra is named; a broken one shows its own error."""

import sys

import pytest

from continua.cli.main import main
from continua.core.extras import MissingExtraError, extra


def test_an_installed_library_is_given():
    assert extra("json", "none") is sys.modules["json"]


def test_a_missing_one_says_how_to_get_it():
    with pytest.raises(MissingExtraError, match=r"no_such_library is not installed.*-e '\.\[peers\]'"):
        extra("no_such_library.part", "peers")


def test_a_library_that_lacks_something_itself_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library") as failure:
        extra("broken_library", "peers")
    assert not isinstance(failure.value, MissingExtraError)


def test_on_the_command_line_it_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    assert main(["bench", "speed", "--quick", "--output", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "pip install -c constraints.txt -e '.[peers]'" in printed
