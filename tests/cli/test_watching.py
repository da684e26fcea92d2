"""What a user sees of a run: the bar, lines of JSON, TensorBoard, and completion in a shell."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from continua.cli.main import COMMANDS, main
from continua.train import Bar, JsonLines, Plan, Row, reporter
from short_runs import SMALL

STEP = [*SMALL, "--depth-steps", "1"]


pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def row(loss: float) -> Row:
    return Row(loss + 1.0, loss, {"cost": 1.0}, 1e-3, evaluations=6, steps=3, tokens=1000, seconds=0.5, grad_norm=1.0)


def test_the_bar_tells_loss_speed_evaluations_and_time_of_the_first_learner():
    screen = io.StringIO()
    bar = Bar(Console(file=screen, force_terminal=True, width=120))
    bar.begin(Plan(updates=10, batch_size=1), 0)
    bar.on_update(1, "continuous", row(2.0))
    bar.on_update(1, "standard", row(8.0))
    bar.progress.refresh()
    bar.end()
    shown = screen.getvalue()
    assert "1/10" in shown and "loss 2.000" in shown and "2,000 tokens/s" in shown and "6 evaluations" in shown
    assert "-:--:--" in shown or "0:0" in shown


def test_without_a_terminal_a_line_comes_now_and_then(monkeypatch):
    clock = iter(range(0, 1000, 6))  # seconds, one look at the clock after the other
    monkeypatch.setattr(reporter.time, "monotonic", lambda: float(next(clock)))
    written = io.StringIO()
    bar = Bar(Console(file=written, width=40))
    bar.begin(Plan(updates=10, batch_size=1), 0)
    for update in range(1, 6):
        bar.on_update(update, "continuous", row(2.0))
        bar.on_update(update, "standard", row(8.0))
    bar.on_validation(5, "continuous", {"loss": 1.0})
    bar.end()
    first, *lines = written.getvalue().splitlines()
    assert first.startswith("training for 10 updates") and lines[-1] == " 5/10  continuous  validation: loss 1.0000"
    told = " 2/10  continuous  loss 2.000  2,000 tokens/s  6 evaluations  "
    assert (
        lines[0].startswith(told)
        and lines[0].endswith(" left")
        and [line[:5] for line in lines[:-1]] == [" 2/10", " 4/10"]
    )


def test_json_lines_are_json_even_where_a_number_is_not():
    written = io.StringIO()
    lines = JsonLines(every=1, stream=written)
    lines.begin(Plan(updates=1, batch_size=1), 0)
    lines.on_update(1, "continuous", row(float("nan")))
    lines.on_validation(1, "continuous", {"loss": float("inf")})
    lines.end()
    found = [
        json.loads(line, parse_constant=lambda word: pytest.fail(word)) for line in written.getvalue().split("\n")[:-1]
    ]
    assert [each["kind"] for each in found] == ["begin", "update", "validation", "end"]
    assert (
        found[1]["loss"] is None
        and found[1]["total"] is None
        and found[1]["evaluations"] == 6
        and found[1]["tokens_per_second"] == 2000.0
    )


def test_every_line_of_a_json_run_parses(capsys):
    assert main(["train", "spirals", *STEP, "--compare", "--no-measure", "--json", "--output", "run"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["kind"] for each in found] == ["begin", *["update"] * 2, *["validation"] * 2, "end", "test"]
    assert set(found[-1]["results"]) == {"continuous", "layers"}


def test_asked_times_have_costates_too(tmp_path):
    from continua.runs import Run

    words = ["train", "spirals", *STEP, "--jacobian-cost", "0.01", "--no-measure", "--quiet", "--output", "run"]
    assert main(words) == 0
    run = Run.open(tmp_path / "run")
    assert any("Optimal control" in section.heading for section in run.sections())
    assert all("jacobian_spectral" in each["running"] for each in run.records("update"))


def test_tensorboard_reads_what_was_written(tmp_path, capsys):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the package tensorboard is not installed: pip install -c constraints.txt -e '.[tensorboard]'",
    )
    assert main(["train", "spirals", *STEP, "--quiet", "--tensorboard", "--output", "run"]) == 0
    events = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "continuous"))
    events.Reload()
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    updates = [each for each in rows if each["kind"] == "update"]
    for name in ("loss", "total"):
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3]
        assert [event.value for event in events.Scalars(name)] == pytest.approx([r[name] for r in updates], rel=1e-6)
    assert all(each["total"] > each["loss"] for each in updates)  # the flow pays for its motion
    assert "validation/mean squared error" in events.Tags()["scalars"]


def test_tensorboard_that_is_missing_is_named(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["train", "spirals", *STEP, "--tensorboard", "--output", "run"]) == 2
    printed = capsys.readouterr().err
    assert "tensorboard is not installed" in printed and "pip install -c constraints.txt -e '.[tensorboard]'" in printed
    assert not Path("run").exists()


@pytest.fixture(scope="module")
def bash_script():
    import contextlib

    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        assert main(["--completion", "bash"]) == 0
    return written.getvalue()


def completed(script: str, *words: str) -> set[str]:
    """What bash offers for the last word, the script being loaded as a user's shell does it."""
    line = " ".join(words)
    spoken = f"""
    source /dev/stdin <<'SCRIPT'\n{script}\nSCRIPT
    COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
    COMP_LINE='{line}'; COMP_POINT={len(line)}
    $(complete -p continua | sed -E 's/.*-F ([^ ]+).*/\\1/') continua
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", spoken], capture_output=True, text=True)
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(bash_script):
    assert set(COMMANDS) <= completed(bash_script, "continua", "")
    assert "train" in completed(bash_script, "continua", "tr")
    assert {"--stem-radius", "--stem-modes"} <= completed(bash_script, "continua", "train", "--stem")


def test_other_shells(capsys):
    assert main(["--completion=zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef continua")
    for words in (["--completion", "fish"], ["--completion"]):
        assert main(words) == 2
        assert "Choose from bash, zsh, tcsh" in capsys.readouterr().err
