"""The command line: help that helps, mistakes in one line, a demonstration that runs."""

import dataclasses
import re
import subprocess
import sys
from typing import final

import pytest

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Ratio
from continua.bench.command import BENCHMARKS
from continua.cli.main import COMMANDS, main

pytestmark = pytest.mark.usefixtures("unchecked_module")
SOLVE = ["solve", "--tokens", "8", "--width", "8", "--rtol", "1e-3", "--depth-length", "1.0"]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch):
    """As users have it: no debugging, and a console wide enough that no word is broken."""
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_every_command(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert all(option in printed for option in ("--version", "--debug", "--completion"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert f"continua {name}" in printed and any(word in printed for word in ("--output", "RUN", "CONFIG", "FOLDER"))
    if name != "generate":
        assert "None" not in printed and "(default: )" not in printed


@pytest.mark.parametrize("words", [["train"], ["train", "text"], ["train", "text", "--width", "64"]])
def test_the_usage_of_train_names_the_task(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert capsys.readouterr().out.splitlines()[0] == "usage: continua train [-h] [OPTIONS] TASK"


def test_bench_help_names_every_benchmark(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in BENCHMARKS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("continua 0.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["solv"], "Did you mean 'solve'?"),
        (["demo"], "What `make demo` runs is `continua train`"),
        (["feed-a-cat"], "Choose from train, eval, predict, runs, generate, report, plan, lab, solve, bench"),
        (
            ["bench", "sped"],
            "Choose from speed, overhead, memory, attention, integrals, fields, recipe, spectral, lab, decoding, "
            "saving, axes, all",
        ),
        (["solve", "--width", "7"], "--width = 7"),
        (["solve", "--tokens", "1"], "--tokens = 1"),
        (["solve", "--rtol", "0"], "--rtol = 0.0"),
        (["solve", "--depth-length", "-1"], "--depth-length = -1.0"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(words, told, capsys):
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("continua: ") and told in printed
    assert printed.count("\n") == 1


def test_debug_shows_where_a_mistake_came_from(monkeypatch):
    with pytest.raises(ValueError, match="--width = 7"):
        main(["solve", "--width", "7", "--debug"])
    monkeypatch.setenv("CONTINUA_DEBUG", "1")
    with pytest.raises(ValueError, match="--width = 7"):
        main(["solve", "--width", "7"])


def test_solve_solves_compares_and_draws(tmp_path, capsys):
    assert main([*SOLVE, "--output", str(tmp_path / "solve")]) == 0
    printed = capsys.readouterr().out
    for word in ("accepted", "Checkpointed", "Direct", "Backsolve", "GPT", "solve.svg", "rtol = 0.001", "in a browser"):
        assert word in printed
    assert re.search(r"loss \d\.\d{4}, three ways", printed)
    assert {path.name for path in (tmp_path / "solve").iterdir()} == {"solve.svg", "solve.html"}
    drawn = (tmp_path / "solve" / "solve.svg").read_text()
    for title in ("Tokens along depth", "Costates and gradients along depth", "Steps along depth", "Error of each"):
        assert f">{title}" in drawn


def test_bench_writes_where_it_is_told(tmp_path, capsys):
    assert main(["bench", "overhead", "--quick", "--output", str(tmp_path)]) == 0
    assert "bare evaluations" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["overhead.json"]


@final
@dataclasses.dataclass(frozen=True)
class _Judged(AbstractBenchmark):
    """A benchmark of one known ratio."""

    value: float
    threads: int = 1
    claim: str = "at most one"

    def quick(self):
        return self

    def measure(self):
        return BenchResult(({"case": "only"},), (Ratio("known", self.value, 1.0),))


def test_bench_leaves_code_1_where_a_ratio_is_above_its_limit(tmp_path, monkeypatch, capsys):
    for value, code in ((0.9, 0), (1.1, 1)):
        monkeypatch.setitem(BENCHMARKS, "overhead", _Judged(value))
        assert main(["bench", "overhead", "--output", str(tmp_path)]) == code
        assert ("above its limit: overhead: known = 1.1" in capsys.readouterr().out) == bool(code)
    assert main(["bench", "overhead", "--quick", "--output", str(tmp_path)]) == 0  # small sizes prove nothing


def test_the_module_is_a_program(tmp_path):
    done = subprocess.run([sys.executable, "-m", "continua.cli.main", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("continua ") and done.stderr == ""
