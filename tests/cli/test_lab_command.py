"""`continua lab`: list, run, report; single questions; refusals."""

import dataclasses
import html
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from continua.cli.main import main
from continua.core.errors import SolveError
from continua.lab import CellStore, ExperimentResult
from continua.lab.command import EXPERIMENTS, list_experiments, show_record
from continua.lab.experiment import AtMost, plain
from continua.lab.intervals import Interval
from continua.lab.standing import Unfinished, find_unfinished, note_measuring
from continua.runs import Run

pytestmark = pytest.mark.usefixtures("unchecked_module")


def test_the_list_names_every_experiment(capsys):
    assert main(["lab", "list"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split("\t") for line in shown.splitlines()]
    assert rows == [[name, each.claim, each.source] for name, each in EXPERIMENTS.items()]  # a pipe: a line for each
    assert main(["lab", "list", "--json"]) == 0
    assert [json.loads(line)["experiment"] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


@pytest.mark.parametrize(("width", "longest"), [(40, 40), (80, 80), (200, 100)])
def test_the_list_fits_the_terminal(width, longest):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, no_color=True, color_system=None)
    list_experiments(console, EXPERIMENTS, as_json=False)
    lines = console.file.getvalue().splitlines()
    assert longest - 15 < max(map(len, lines)) <= longest
    assert [line for line in lines if line and line[0] != " "][: len(EXPERIMENTS)] == list(EXPERIMENTS)
    words = " ".join(" ".join(lines).split())
    assert all(" ".join(each.claim.split()) in words for each in EXPERIMENTS.values())


def test_a_question_is_one_line_of_json(capsys):
    assert main(["lab", "run", "clusters", "--tokens", "8", "--beta", "4", "--depth", "2", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert list(record) == ["experiment", "claim", "source", "measured", "bound", "verdict", "seconds"]
    assert record["measured"]["overlap"] == pytest.approx(0.09365213, abs=6e-9)
    assert record["measured"]["exact"] == pytest.approx(0.09365213, abs=6e-9)
    assert record["verdict"] == "holds"


def test_a_limit_is_shown_as_a_limit(capsys):
    """A claim of a value and a claim of a limit are told apart, on the terminal and in the record."""
    record = {
        "experiment": "clusters", "claim": "c", "source": "s", "verdict": "holds", "seconds": 0.0,
        "measured": {"gap": 1e-9, "rate": plain(Interval(2.0, 2.0 - 1e-7, 2.0 + 1e-7)), "reason": "r"},
        "bound": plain({"gap": AtMost(5e-8), "rate": 2.0}),
    }  # fmt: skip
    show_record(Console(), record)
    printed = capsys.readouterr().out
    assert "gap: 1e-09   (claimed at most 5e-08)" in printed
    assert "rate: 2.00000000 [1.99999990, 2.00000010]   (claimed 2)" in printed


def test_the_circle_answers_from_the_particles(capsys):
    assert main(["lab", "run", "clusters", "--circle", "--beta", "9", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["mode"] == 4 and measured["rate"] == pytest.approx(0.704497, abs=6e-7)


def test_results_are_kept_and_reported(capsys, tmp_path):
    folder = str(tmp_path / "lab")
    assert main(["lab", "run", "lions-derivative", "--quick", "--json", "--output", folder]) == 0
    first = json.loads(capsys.readouterr().out)
    cells = sorted((tmp_path / "lab" / "cells").iterdir())
    assert len(cells) == len(EXPERIMENTS["lions-derivative"].quick().cells())
    assert main(["lab", "run", "lions-derivative", "--quick", "--output", folder]) == 0
    again = capsys.readouterr().out
    assert "holds" in again and "N times" in again.replace("\n", " ")
    assert sorted((tmp_path / "lab" / "cells").iterdir()) == cells
    assert main(["lab", "report", "--output", folder]) == 0
    page = (tmp_path / "lab" / "report.html").read_text()
    assert "criteria are met" in page and "continua lab run lions-derivative --quick" in page
    assert "1 of 1 hold at these sizes" in page
    assert first["verdict"] == "holds"


class KilledError(BaseException):
    """Ends a sweep in the middle, as a kill does: nothing is written any more."""


def test_a_report_after_a_kill_says_what_is_incomplete_and_how_to_go_on(capsys, tmp_path, monkeypatch):
    folder, name = str(tmp_path / "lab"), "lions-derivative"
    cells = EXPERIMENTS[name].quick().cells()
    kept = CellStore.write

    def killed_at_the_third(store, cell, row):
        if cell == cells[2]:
            raise KilledError
        kept(store, cell, row)

    def reported() -> tuple[str, str]:
        assert main(["lab", "report", "--output", folder]) == 0
        return capsys.readouterr().out, (tmp_path / "lab" / "report.html").read_text()

    command = f"continua lab run {name} --quick --output {folder}"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(CellStore, "write", killed_at_the_third)
        main(["lab", "run", name, "--quick", "--output", folder])
    said, page = reported()
    assert f"incomplete: {name}, 2 of {len(cells)} cells are done; go on with `{command}`" in said
    assert f"Incomplete: {name}." in page and command in page and " · running · " in page
    assert main(command.split()[1:]) == 0
    capsys.readouterr()
    said, page = reported()
    assert "ncomplete" not in said and "Incomplete" not in page and " · finished · " in page
    with monkeypatch.context() as patch, pytest.raises(KilledError):  # another size, beside a verdict that stays
        patch.setattr(ExperimentResult, "measure", lambda *_: (_ for _ in ()).throw(KilledError()))
        main(["lab", "run", name, "--output", folder])
    said, page = reported()
    assert f"incomplete: {name}, " in said and f"go on with `{command.replace(' --quick', '')}`" in said
    assert "1 of 1 hold" in page and f"Incomplete: {name}." in page and " · running · " in page


def test_a_full_verdict_closes_a_quick_run_that_was_killed(tmp_path):
    run = Run.begin(tmp_path / "lab", "lab", {})
    chosen = [EXPERIMENTS["clusters"], EXPERIMENTS["mean-field"]]

    def left():
        return [(one.experiment, one.quick) for one in find_unfinished(run, EXPERIMENTS)]

    for quick in (True, False):
        with pytest.raises(KilledError), note_measuring(run, chosen, quick):
            raise KilledError
    run.record("experiment", experiment="clusters", quick=True)
    assert left() == [("mean-field", True), ("mean-field", False), ("clusters", False)]
    run.record("experiment", experiment="mean-field", quick=False)
    assert left() == [("clusters", False)]


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [(KeyboardInterrupt(), 130, "interrupted"), (SolveError("no step is short enough", 0.5, "Try."), 2, "failed")],
)
def test_a_sweep_that_does_not_reach_its_end_says_so(error, code, state, tmp_path, monkeypatch, capsys):
    def stopped(*_):
        raise error

    monkeypatch.setattr(ExperimentResult, "measure", stopped)
    assert main(["lab", "run", "clusters", "--quick", "--output", str(tmp_path / "lab")]) == code
    assert Run.open(tmp_path / "lab").manifest["state"] == state
    assert capsys.readouterr().err.strip().startswith("continua: ")


def test_commands_and_paths_of_an_odd_folder_can_be_copied(tmp_path, monkeypatch, capsys):
    """Brackets are no markup, a space is quoted, and a folder that is not the usual one is named."""
    monkeypatch.chdir(tmp_path)
    folder = "my lab [bold]"
    assert main(["lab", "report", "--output", folder]) == 2
    begun = capsys.readouterr().err.split("`")[1]
    assert begun == f"continua lab run clusters --quick --output '{folder}'"
    words = shlex.split(begun.replace("clusters", "lions-derivative"))
    assert main(words[1:]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"kept in {folder}; `continua lab report --output '{folder}'` tells all of it"
    assert main(shlex.split(last.split("`")[1])[1:]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"
    page = html.unescape((tmp_path / folder / "report.html").read_text())
    assert f"continua lab run lions-derivative --quick --output '{folder}'" in page
    assert Unfinished("clusters", False, 1, 2, Path("a b")).command == "continua lab run clusters --output 'a b'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nothing"], "there is no such experiment"),
        (["dance"], "Choose from list, run, report"),
        (["run", "clusters", "--circle", "--beta", "-1"], "beta = -1.0"),
        (["run", "clusters", "--circle", "--beta", "0"], "beta = 0.0"),
        (
            ["run", "clusters", "--tokens", "8", "--beta", "4"],
            "--depth is not given: the question needs --tokens, --beta, --depth",
        ),
        (["run", "clusters", "--tokens", "8", "--depth", "4"], "--beta is not given: the question needs"),
        (["run", "clusters", "--tokens", "0"], "tokens = 0: it must be a whole number, at least 2"),
        (["run", "clusters", "--tokens", "8", "--beta", "nan", "--depth", "1"], "beta = nan"),
        (["run", "clusters", "--circle", "--beta", "4", "--depth", "2"], "without depth"),
        (["run", "mean-field", "--beta", "4"], "only clusters"),
        (["run", "clusters", "--engine", "cloud"], "there is no such engine"),
        (["run", "clusters", "--processes", "0"], "processes = 0"),
        (["report", "--output", "nowhere"], "nothing was measured there yet"),
        (["report", "clusters"], "Leave the name out"),
        (["run"], "the lab needs to know what to run"),
        (["list", "--tokens", "3"], "--tokens = 3: `lab list` does not read it"),
        (["list", "--output", "here"], "--output = 'here': `lab list` does not read it"),
        (["report", "--quick"], "--quick = True: `lab report` does not read it"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_read_by_trained_networks_alone_and_named_in_the_command_that_goes_on(capsys, tmp_path):
    assert main(["lab", "run", "clusters", "--text", __file__]) == 2
    assert "clusters reads no text" in capsys.readouterr().err
    assert main(["lab", "run", "trained-networks", "--text", str(tmp_path / "missing")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    run = Run.begin(tmp_path / "lab", "lab", {})
    own = dataclasses.replace(EXPERIMENTS["trained-networks"], text="a text")
    with pytest.raises(KeyboardInterrupt), note_measuring(run, [own], quick=True):
        raise KeyboardInterrupt
    (left,) = find_unfinished(run, EXPERIMENTS)
    assert "trained-networks --quick --text 'a text'" in left.command and left.cells == len(own.quick().cells())
