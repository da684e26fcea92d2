"""Wrong words: one line in one style, the option that is meant, and nothing computed before."""

import sys
from pathlib import Path

import pytest
import tyro

from continua.cli.ending import ended
from continua.cli.main import COMMANDS, main
from continua.cli.report import Report
from continua.cli.tasks import TASKS, preset_of
from continua.cli.train import Train
from continua.cli.words import arranged
from continua.data import Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.runs import Run
from continua.train import PRESETS, Interrupted, Preset, presets_of


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --updtes 3", "there is no option '--updtes' of `continua train`. Did you mean '--updates'?"),
        ("train --optimizer adamw", "Did you mean '--optimiser'?"),
        ("train --soap-l=3", "Did you mean '--soap-lr'?"),
        ("train -x", "there is no option '-x' of `continua train`."),
        ("train --updates x", "--updates = 'x': this is no whole number. Pass one, such as --updates 8."),
        ("train --updates 1e3", "Pass one, such as --updates 1000."),
        ("train --seed 1.0", "--seed = '1.0': this is no whole number. Pass one, such as --seed 1."),
        ("train --updates " + "9" * 30, "this number is too large"),
        ("train --lr fast", "--lr = 'fast': this is no number. Pass one, such as --lr 0.5."),
        ("train --lr inf", "--lr = inf: this is no finite number."),
        ("train --clip -nan", "--clip = nan: this is no finite number."),
        ("train --updates", "--updates needs a value. Write it behind: --updates 8."),
        ("train --folder --quiet", "--folder needs a value, and '--quiet' is another option."),
        ("train --stem-gaps maybe", "--stem-gaps = 'maybe': True or False is needed."),
        ("train --stem-gaps true", "Pass --stem-gaps True."),
        ("train --compare yes", "--compare = 'yes': this option takes no value. Write --compare alone"),
        ("train --compare=False", "--compare = 'False': this option takes no value."),
        ("train mnist1d digits", "'digits' is one word too many: `continua train` takes TASK and options."),
        ("train minst1d", "TASK = 'minst1d': there is no such task. Did you mean 'mnist1d'? Choose from mnist1d, "),
        ("train --preset ful", "--preset = 'ful': there is no such preset. Did you mean 'full'?"),
        ("train --stepping midpiont", "--stepping = 'midpiont': there is no such stepping. Did you mean 'midpoint'?"),
        ("train --optimiser adam", "--optimiser = 'adam': there is no such optimiser. Did you mean 'adamw'?"),
        ("eval", "RUN is missing. Write `continua eval RUN`."),
        ("eval a b", "'b' is one word too many: `continua eval` takes RUN and options."),
        ("solve here", "'here' is one word too many: `continua solve` takes options, which begin with --."),
        ("report", "RUN is missing. Write `continua report RUN [RUN ...]`."),
        ("lab lst", "ACTION = 'lst': there is no such action. Did you mean 'list'?"),
        ("lab run cluster", "NAME = 'cluster': there is no such experiment. Did you mean 'clusters'?"),
        ("lab list --json=3", "--json = '3': this option takes no value."),
        ("train \u2014lr 3", "'\u2014lr' begins with a long dash, and options with two short ones. Write --lr."),
        ("train -\u2013lr=3", "Write --lr=3."),
        ("train --lr -Infinity", "--lr = -inf: this is no finite number."),
        ("train text --text=", "--text = '': this is empty. Pass a path, or leave the option out."),
        ("train csv --series=", "--series = '': this is empty."),
        ("bench --folder=", "--folder = '': this is empty."),
        ("bench sped", "NAME = 'sped': there is no such benchmark. Did you mean 'speed'?"),
    ],
)
def test_wrong_words_are_one_line_in_one_style(words, told, capsys):
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("continua: ")
    assert told in printed.err
    assert printed.err.endswith(f"`continua {words.split()[0]} --help` tells more.\n")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "train",
        "train text --text a.txt --lr 1e-4 --lr=.5 --updates 1_000 --seed -3 --compare",
        "train --soap_lr 0.1 --stem-gaps True --folder None --energy -1 digits",
        "train -- --odd",
        "generate run --prompt=--help --stop -1 --temperature 2",
        "generate run --prompt None",
        "report a b c --out page.html",
        "generate run --prompt -Infinity --stop=-NaN",
        "report --out page.html -- -a",
        "lab run clusters --beta -4 --time 1e3 --json",
    ],
)
def test_words_that_tyro_reads_are_not_refused(words):
    name, *rest = words.split()
    kind = COMMANDS[name].load()
    assert tyro.cli(kind, args=arranged(name, kind, rest)) == tyro.cli(kind, args=rest)


def test_words_stand_where_they_like(capsys):
    """tyro takes the words of one place only side by side."""
    kind = COMMANDS["report"].load()
    words = arranged("report", kind, ["a", "--out", "p.html", "b", "--", "--c"])
    assert tyro.cli(kind, args=words) == kind((Path("a"), Path("b"), Path("--c")), Path("p.html"))
    assert main(["report", "a", "--out", "p.html", "b"]) == 2
    assert capsys.readouterr().err.startswith("continua: RUN = 'a': there is no such folder")
    assert main(["report", "a", ""]) == 2
    assert capsys.readouterr().err.startswith("continua: RUN = '': this is empty. Pass a path.")


def test_one_file_of_options_and_none_behind_dashes(capsys):
    Path("a.toml").write_text("updates = 3\n")
    Path("b.toml").write_text('updates = 4\nfolder = ""\n')
    assert main(["train", "--config", "a.toml", "--config=b.toml"]) == 2
    assert "--config = 'b.toml': 'a.toml' is given before it. Pass one file" in capsys.readouterr().err
    assert main(["train", "--config", "b.toml"]) == 2
    assert "folder = '': this is empty (b.toml). Write a path" in capsys.readouterr().err
    for word in ("--config=a.toml", "--config"):
        assert main(["train", "--", word]) == 2
        assert f"TASK = '{word}': there is no such task" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["help"], ["help", "--help"], ["help", "-h"], ["help", "solve"], ["solve", "--tokns", "3", "--help"]]
)
def test_help_is_given_whatever_else_is_said(words, capsys):
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    assert code == 0 and "usage: continua" in printed.out and printed.err == ""


EARLY = [
    (["--folder", "taken"], "--folder = 'taken': there is a run in it already"),
    (["--folder", "file"], "--folder = 'file': nothing can be written there (file is a file)"),
    (["--folder", "file/run"], "--folder = 'file/run': nothing can be written there (file is a file)"),
    (["--folder", "closed/run"], "closed gives no right to)"),
    (["--tensorboard"], "tensorboard is not installed. Install it with: pip install 'continua[tensorboard]'"),
    (["--optimiser", "soap"], "`--optimiser soap` needs pytorch_optimizer, which is not installed. Install it"),
    (["--compare", "--baseline-optimiser", "soap"], "pip install 'continua[optim]'"),
    (["--baseline-optimiser", "recipe"], "there is no baseline without --compare"),
    (["--width", "7"], "do not share the width 7 in equal, even parts"),
    (["--steps", "0"], "--steps = 0: a model needs at least one"),
    (["--updates", "0"], "--updates = 0: it must be a whole number, at least 1"),
    (["--batch", "0"], "--batch = 0: it must be a whole number, at least 1"),
    (["--batch", "9999"], "--batch = 9999: the training split has"),
    (["--points", "7"], "--points = 7"),
    (["--jitter", "2"], "--jitter = 2.0"),
    (["--stem-radius", "-1"], "--stem-radius = -1.0"),
]


@pytest.mark.parametrize("task", ["burgers", "darcy"])
@pytest.mark.parametrize(("words", "told"), EARLY)
def test_what_needs_no_data_is_refused_before_there_are_any(task, words, told, monkeypatch, capsys):
    def solutions(*_):
        raise AssertionError("data were built")

    Run.begin(Path("taken"), "train", {})
    Path("file").write_text("")
    for name in ("burgers", "darcy"):
        monkeypatch.setattr(f"continua.data.{name}._solutions", solutions)
    for name in ("tensorboard", "pytorch_optimizer"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("closed").mkdir()
    monkeypatch.setattr("os.access", lambda place, mode: Path(place).name != "closed")
    assert main(["train", task, *words]) == 2
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["closed", "file", "taken"]


@pytest.mark.parametrize("command", [["solve"], ["bench", "overhead", "--quick"]])
def test_a_folder_that_is_a_file_is_refused_before_anything_is_computed(command, capsys):
    Path("file").write_text("")
    assert main([*command, "--folder", "file"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "--folder = 'file': nothing can be written there" in printed.err


@pytest.mark.parametrize("task", ["mnist1d", "text", "digits", "spirals", "burgers", "darcy", "uea", "csv"])
def test_every_task_has_the_presets_of_the_command_line(task):
    assert set(TASKS) == set(_BUILT)
    assert set(TASKS) == set(PRESETS)
    assert tuple(presets_of(_BUILT[task]())) == ("demo", "full")


def _series() -> Csv:
    Path("presets.csv").write_text("t,y\n" + "".join(f"{i},{i % 3}\n" for i in range(50)))
    return Csv(Path("presets.csv"))


def _archive() -> Uea:
    for part in ("TRAIN", "TEST"):
        Path(f"A_{part}.ts").write_text("@classLabel true a b\n@data\n" + "1,2,3:a\n2,1,0:b\n" * 8)
    return Uea(Path("A_TRAIN.ts"))


_BUILT = {"mnist1d": Mnist1d, "text": Text, "digits": Digits, "spirals": Spirals, "burgers": Burgers, "darcy": Darcy,
          "uea": _archive, "csv": _series}  # fmt: skip


def test_a_preset_that_a_task_lacks_is_refused(monkeypatch):
    monkeypatch.setitem(PRESETS, "spirals", {"demo": Preset()})
    with pytest.raises(ValueError, match="--preset = 'full': there is no such preset"):
        preset_of(Train("spirals", preset="full"), Spirals())


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("train --updates 0", "Pass --updates >= 1."),
        ("train --lr 0", "Pass --lr > 0."),
        ("train --b2 1", "Pass 0 <= --b2 < 1."),
        ("solve --rtol -1", "Pass more, such as --rtol 1e-6."),
        ("solve --rtol 1e-17", "Pass more, such as --rtol 1e-6."),
        ("solve --depth 0", "Pass --depth > 0"),
    ],
)
def test_cures_are_options_and_come_before_anything_else(words, cure, capsys):
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and cure in printed.err


def test_commands_for_copying_quote_what_has_a_space(capsys):
    folder = Path("my run")
    run = Run.begin(folder, "train", {"task": "spirals"})
    assert main(["train", "spirals", "--folder", "my run"]) == 2
    assert "`continua train --resume 'my run'`." in capsys.readouterr().err
    with pytest.raises(Interrupted, match=r"Go on with: continua train --resume 'my run'$"), ended(run):
        raise KeyboardInterrupt
    run.end("finished")
    assert main(["train", "--resume", "my run"]) == 2
    assert "`continua report 'my run'`." in capsys.readouterr().err
    assert main(["report", "my run", "--out", "my run"]) == 2
    assert "Name a file in it: --out 'my run/report.html'." in capsys.readouterr().err


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate 2 GiB.", "can't allocate memory: 9 bytes"])
def test_memory_of_any_device_may_be_too_small(said, monkeypatch, capsys):
    def full(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(Report, "run", full)
    assert main(["report", "a"]) == 1
    assert "not enough memory" in capsys.readouterr().err


def test_words_of_other_programs_are_known(capsys):
    for word, ours in (("--out", "--folder"), ("--epochs", "--updates"), ("--learning-rate", "--lr"),
                       ("--batch_size", "--batch"), ("--heds", "--heads")):  # fmt: skip
        assert main(["train", word, "3"]) == 2
        assert f"Did you mean {ours!r}?" in capsys.readouterr().err


def test_a_text_whose_test_is_too_short_leaves_no_run(capsys):
    Path("tale.txt").write_text("the quick brown fox " * 20)
    assert main(["train", "text", "--text", "tale.txt", "--folder", "run"]) == 2
    assert (
        "40 for validation, both of which must hold a window. Pass 39 or less" in capsys.readouterr().err
        and not Path("run").exists()
    )


def test_sizes_that_no_memory_holds_are_one_line(capsys):
    Path("tale.txt").write_text("the quick brown fox " * 50)
    words = ["train", "text", "--text", "tale.txt", "--context", "8", "--heads", "1", "--width", str(2**40)]
    assert main(words) == 1
    assert "not enough memory" in capsys.readouterr().err and not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "csv", "--series", "own.csv", "--columns", " , "], "--columns = ' , ': it names no column"),
        (["train", "csv", "--series", "own.csv", "--columns", "y,,z"], "--columns = 'z': own.csv has no such column"),
        (["train", "--resume", "own.csv"], "--resume = 'own.csv': this is a file"),
        (["eval", "own.csv"], "RUN = 'own.csv': this is a file"),
        (["generate", "absent"], "RUN = 'absent': there is no such folder"),
        (
            ["report", "taken", "--out", "own.csv/page.html"],
            "--out = 'own.csv/page.html': nothing can be written there (own.csv is a file)",
        ),
        (["train", "--config", "tables.toml"], "train = {'lr': 0.1}: this is a table (tables.toml). Write its keys"),
        (["train", "--config", "."], "--config = '.': this is a folder"),
        (["train", "--config", "large.toml"], f"updates = {2**70}: this number is too large (large.toml)"),
    ],
)
def test_paths_and_lists_that_are_something_else(words, told, capsys):
    Path("own.csv").write_text("t,y\n" + "".join(f"{i},{i % 3}\n" for i in range(50)))
    Path("tables.toml").write_text("[train]\nlr = 0.1\n")
    Path("large.toml").write_text(f"updates = {2**70}\n")
    Run.begin(Path("taken"), "train", {})
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert told in printed and printed.count("\n") == 1


def test_a_run_in_an_odd_folder_is_told_in_full(capsys):
    """Brackets are no markup, and a line of measures is not broken."""
    small = "--updates 1 --batch 2 --width 8 --heads 2 --hidden 8 --modes 1 --steps 1 --evaluations 1 --threads 1"
    rows = (f"{i},{'' if i % 9 == 4 else i % 7}" for i in range(200))
    Path("own.csv").write_text("\n".join(["t,x", *rows]))
    folder = "caf\u00e9 [c]"
    assert main(["train", "csv", "--series", "own.csv", *small.split(), "--folder", folder]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"run: {folder}" in printed and f"report: {folder}/report.html" in printed
    assert "22 of 200 cells are missing (x 22): they are masked and never predicted" in printed
    assert any(
        "mean squared error" in line and "squared error ahead" in line and "continuous" in line for line in printed
    )
    facts = Run.open(Path(folder)).manifest["facts"]["task"]
    assert facts["missing cells"] == {"x": 22} and facts["rows in a window"] == 20
