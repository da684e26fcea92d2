"""Wrong words: one line in one style, the option that is meant, and nothing computed before."""

import sys
import warnings
from pathlib import Path

import pytest

from continua.cli.main import COMMANDS, main
from continua.cli.options import TASKS
from continua.cli.parsing import read_command, suggest, values_of
from continua.cli.runs import Report
from continua.cli.train import Train, note_failure
from continua.core.errors import ReconstructionWarning
from continua.data import Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.runs import Run
from continua.train import PRESETS, Interrupted

pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --updtes 3", "there is no option '--updtes' of `continua train`. Did you mean '--updates'?"),
        ("train --optimiser adamw", "Did you mean '--optimizer'?"),
        ("train --num-layers 4", "N layers are N constant pieces, each a step of length 1"),
        ("train csv --data own.csv", "Did you mean '--series'?"),
        ("train csv --file own.csv", "--series names the file of csv and uea, --text that of text."),
        ("generate run --prompt A --prompt=B", "--prompt is given twice. Pass it once."),
        ("train --learning-rat=3", "Did you mean '--learning-rate'?"),
        (
            "train --steps 2000",
            "--updates counts those of the optimiser, --depth-steps those of the solve along depth.",
        ),
        ("train --optimizer kfac --damping 0.01", "--flow-damping is the gamma of -gamma x in the flow"),
        ("generate run --steps 8", "Did you mean '--depth-steps'?"),
        ("train own.csv", "there is no such task. For a file: `continua train csv --series own.csv`."),
        ("train -x", "there is no option '-x' of `continua train`."),
        ("train --updates x", "--updates = 'x': this is no whole number. Pass one, such as 8."),
        ("train --updates 1e3", "Pass one, such as 1000."),
        ("train --seed 1.0", "--seed = '1.0': this is no whole number. Pass one, such as 1."),
        ("train --updates " + "9" * 30, "this number is too large"),
        ("train --lr fast", "--learning-rate = 'fast': this is no number. Pass one, such as 0.5."),
        ("train --lr inf", "--learning-rate = inf: this is no finite number."),
        ("train --clip -nan", "--clip = nan: this is no finite number."),
        ("train --updates", "--updates needs a value. Write it behind: --updates INT."),
        ("train --output --quiet", "--output needs a value. Write it behind: --output PATH."),
        ("train --stem-gaps maybe", "TASK = 'maybe': there is no such task."),
        ("train --quiet=False", "TASK = 'False': there is no such task."),
        ("train digits --quiet=False", "'False' is one word too many: `continua train` takes TASK and options."),
        ("train --compare yes", "--compare = 'yes': there is no such network to compare with. Did you mean 'layers'?"),
        ("train --compare digits", "--compare = 'digits': there is no such network to compare with."),
        ("train --compare layers none", "--compare = 'none': it stands alone, and compares with nothing."),
        ("train csv own.csv", "takes TASK and options, and a file by --series own.csv."),
        ("train mnist1d digits", "'digits' is one word too many: `continua train` takes TASK and options."),
        ("train minst1d", "TASK = 'minst1d': there is no such task. Did you mean 'mnist1d'? Choose from mnist1d, "),
        ("train --preset ful", "--preset = 'ful': there is no such preset. Did you mean 'full'?"),
        ("train --stepper midpiont", "--stepper = 'midpiont': there is no such stepper. Did you mean 'midpoint'?"),
        ("train --optimizer adam", "--optimizer = 'adam': there is no such optimizer. Did you mean 'adamw'?"),
        ("eval", "RUN is missing. Write `continua eval RUN`."),
        ("eval a b", "'b' is one word too many: `continua eval` takes RUN and options."),
        ("solve here", "'here' is one word too many: `continua solve` takes options, which begin with --."),
        ("report", "RUN is missing. Write `continua report RUN [RUN ...]`."),
        ("lab lst", "ACTION = 'lst': there is no such action. Did you mean 'list'?"),
        ("lab run cluster", "NAME = 'cluster': there is no such experiment. Did you mean 'clusters'?"),
        ("lab list x --json=3", "'3' is one word too many"),
        ("train \u2014lr 3", "It begins with a long dash, and options with two short ones: write --lr."),
        ("train -\u2013lr=3", "write --lr=3."),
        ("solve -\u2013depth-length=3", "write --depth-length."),
        ("train --lr -Infinity", "--learning-rate = -inf: this is no finite number."),
        ("train text --text=", "--text = '': this is empty. Pass a path, or leave it out."),
        ("train --config=", "--config = '': this is empty."),
        ("train csv --series=", "--series = '': this is empty."),
        ("bench --output=", "--output = '': this is empty."),
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
    ("words", "read"),
    [
        ("train", {"task": "mnist1d", "learning_rate": 5e-3, "output": None, "config": ()}),
        (
            "train text --compare layers layers-regularized",
            {"width": 128, "compare": ("layers", "layers-regularized"), "updates": 2000},
        ),
        (
            "train text --text a.txt --lr 1e-4 --learning-rate=.5 --updates 1_000 --seed -3 --compare",
            {"text": Path("a.txt"), "learning_rate": 0.5, "updates": 1000, "seed": -3, "compare": ("layers",)},
        ),
        (
            "train --batch_size 3 --stem_radius 2 --stem-gaps --energy-cost -1 digits",
            {"stem_radius": 2.0, "batch_size": 3, "stem_gaps": True, "energy_cost": -1.0, "task": "digits"},
        ),
        ("generate run --prompt=--help --stop -1 --temperature 2", {"prompt": "--help", "stop": "-1"}),
        ("generate run --prompt None", {"prompt": "None", "stop": None, "folder": Path("run")}),
        ("generate run --prompt -Infinity --stop=-NaN", {"prompt": "-Infinity", "stop": "-NaN"}),
        ("report a b c --output page.html", {"folders": (Path("a"), Path("b"), Path("c"))}),
        ("report --output page.html -- -a", {"folders": (Path("-a"),), "output": Path("page.html")}),
        ("lab run clusters --beta -4 --depth 1e3 --json", {"beta": -4.0, "depth": 1000.0, "json": True}),
    ],
)
def test_words_are_read(words, read):
    name, *rest = words.split()
    found = values_of(read_command(COMMANDS[name].load(), name, rest))
    assert {key: found[key] for key in read} == read


def test_words_stand_where_they_like(capsys):
    kind = COMMANDS["report"].load()
    assert read_command(kind, "report", ["a", "--output", "p.html", "b"]) == kind(
        (Path("a"),), (Path("b"),), Path("p.html")
    )
    words = ["a", "--output", "p.html", "--", "b", "--c"]
    assert read_command(kind, "report", words).others == (Path("b"), Path("--c"))
    assert main(["report", "a", "--output", "p.html", "b"]) == 2
    assert capsys.readouterr().err.startswith("continua: RUN = 'a': there is no such folder")


def test_an_empty_path_is_refused_among_others(capsys):
    for words in (["a", ""], ["a", "--output", "p.html", ""]):
        assert main(["report", *words]) == 2
        assert capsys.readouterr().err.startswith("continua: RUN = '': this is empty. Pass a path")


def test_files_of_options_and_none_behind_dashes(capsys):
    Path("a.toml").write_text('updates = 3\nseed = 1\ncolumns = ["x", "y"]\n')
    Path("b.toml").write_text('task = "text"\nupdates = 4\ncompare = true\nstem_gaps = false\n')
    Path("c.toml").write_text('output = ""\n')
    words = ["digits", "--config", "a.toml", "--config=b.toml", "--seed", "2"]
    found = values_of(read_command(COMMANDS["train"].load(), "train", words))
    assert (found["task"], found["updates"], found["seed"], found["columns"]) == ("digits", 4, 2, "x,y")
    assert found["compare"] == ("layers",) and found["stem_gaps"] is False
    again = values_of(read_command(COMMANDS["train"].load(), "train", ["--config", "b.toml", "--compare"]))
    never = values_of(read_command(COMMANDS["train"].load(), "train", ["--config", "b.toml", "--compare", "none"]))
    assert again["compare"] == ("layers",) and never["compare"] == () and never["task"] == "text"
    assert main(["train", "--config", "c.toml"]) == 2
    assert "c.toml: --output = '': this is empty. Pass a path" in capsys.readouterr().err
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


IDLE = {
    "--rtol 0.1 --jitter 1": "--jitter = 1.0: it would change nothing: with --rtol every solve chooses its own steps",
    "--clip-adjoint 1": "--clip-adjoint = 1.0: it would change nothing: only --gradient backsolve solves",
    "--stepper rk4 --plateaus": "--plateaus = True: it would change nothing: only the split steps",
    "--field hypernetwork --mode-ratio 0.5": "a hypernetwork field has no modes",
    "--integral-tokens 8": "--integral-tokens = 8: it would change nothing: the exact integral reads all tokens",
    "--stem-modes 3 --stem-radius 0": "without --stem-radius there is no stem",
    "--axis-nodes 1 --axis-modes 2": "with --axis-nodes 1 states are plain vectors",
    "--kernel-learning-rate 0.1": "--optimizer adamw has one rate for all parameters",
}


@pytest.mark.parametrize("words", IDLE)
def test_an_option_that_would_change_nothing_is_refused(words, capsys):
    assert main(["train", "spirals", *words.split()]) == 2
    told = capsys.readouterr().err
    assert IDLE[words] in told and told.count("\n") == 1


def test_a_warning_of_ours_is_told_once_and_in_one_line(monkeypatch, capsys):
    def warn_twice(*_):
        for size in (1, 2):
            warnings.warn(f"missed by {size}", ReconstructionWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(COMMANDS["runs"].load(), "execute", warn_twice)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["runs"]) == 0
    assert capsys.readouterr().err == "continua: missed by 1\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("spirals --axis-kernel fft --axis-modes 30", "so many nodes do not resolve 30 frequencies. Pass --axis-modes"),
        ("text --text tale.txt --integral nystrom", "--integral = 'nystrom': its landmarks would carry later tokens"),
        ("spirals --width 16 --axis-nodes 1 --head-modes 0 --head-nodes 5", "they do not split the width of 16 into"),
    ],
)
def test_sizes_that_do_not_fit_are_told_by_the_options(words, told, capsys):
    Path("tale.txt").write_text("a tale of two cities " * 40)
    assert main(["train", *words.split(), "--output", "run"]) == 2
    assert told in capsys.readouterr().err


def test_what_a_file_says_may_change_nothing_beside_the_rest():
    Path("all.toml").write_text("integral_tokens = 8\nclip_adjoint = 1.0\n")
    words = ["spirals", "--config", "all.toml", "--rtol", "0.1", "--refined", "0", "--no-plateaus"]
    found = values_of(read_command(COMMANDS["train"].load(), "train", words))
    assert found["integral_tokens"] == 8 and found["refined"] == 0


EARLY = [
    (["--output", "taken"], "--output = 'taken': there is a run in it already"),
    (["--output", "file"], "--output = 'file': nothing can be written there (file is a file)"),
    (["--output", "file/run"], "--output = 'file/run': nothing can be written there (file is a file)"),
    (["--output", "closed/run"], "closed gives no right to)"),
    (
        ["--tensorboard"],
        "tensorboard is not installed. Install it from your clone: pip install -c constraints.txt -e '.[tensorboard]'",
    ),
    (["--optimizer", "soap"], "`--optimizer soap` needs pytorch_optimizer, which is not installed. Install it"),
    (["--optimizer", "shampoo"], "-e '.[optim]'"),
    (["--width", "7"], "--width = 7: it does not split into parts of even size"),
    (["--depth-steps", "0"], "--depth-steps = 0: it must be a whole number, at least 1"),
    (["--updates", "0"], "--updates = 0: it must be a whole number, at least 1"),
    (["--batch-size", "0"], "--batch-size = 0: it must be a whole number, at least 1"),
    (["--batch-size", "9999"], "--batch-size = 9999: the training split has"),
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
    assert main([*command, "--output", "file"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "--output = 'file': nothing can be written there" in printed.err


@pytest.mark.parametrize("task", ["mnist1d", "text", "digits", "spirals", "burgers", "darcy", "uea", "csv"])
def test_every_task_has_the_presets_of_the_command_line(task):
    assert set(TASKS) == set(_BUILT)
    assert set(TASKS) == set(PRESETS) and tuple(PRESETS[task]) == ("demo", "full")
    values = values_of(read_command(Train, "train", [task, "--preset", "full"]))
    assert values_of(PRESETS[task]["full"]).items() <= values.items()


def _series() -> Csv:
    Path("presets.csv").write_text("t,y\n" + "".join(f"{i},{i % 3}\n" for i in range(50)))
    return Csv(Path("presets.csv"))


def _archive() -> Uea:
    for part in ("TRAIN", "TEST"):
        Path(f"A_{part}.ts").write_text("@classLabel true a b\n@data\n" + "1,2,3:a\n2,1,0:b\n" * 8)
    return Uea(Path("A_TRAIN.ts"))


_BUILT = {"mnist1d": Mnist1d, "text": Text, "digits": Digits, "spirals": Spirals, "burgers": Burgers, "darcy": Darcy,
          "uea": _archive, "csv": _series}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("train --updates 0", "Pass --updates >= 1."),
        ("train --lr 0", "Pass --learning-rate > 0."),
        ("train --beta2 1", "Pass 0 <= --beta2 < 1."),
        ("solve --rtol -1", "Pass --rtol > 0."),
        ("solve --depth-length 0", "Pass --depth-length > 0"),
    ],
)
def test_cures_are_options_and_come_before_anything_else(words, cure, capsys):
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and cure in printed.err


def test_commands_for_copying_quote_what_has_a_space(capsys):
    folder = Path("my run")
    run = Run.begin(folder, "train", {"task": "spirals"})
    assert main(["train", "spirals", "--output", "my run"]) == 2
    assert "`continua train --resume 'my run'` goes on" in capsys.readouterr().err
    with pytest.raises(Interrupted, match=r"Go on with: continua train --resume 'my run'$"), note_failure(run, 3):
        raise Interrupted("stopped")
    run.end("finished")
    assert main(["train", "--resume", "my run"]) == 2
    assert "`continua report 'my run'`." in capsys.readouterr().err
    assert main(["report", "my run", "--output", "my run"]) == 2
    assert "Name a file in it: --output 'my run/report.html'." in capsys.readouterr().err


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate 2 GiB.", "can't allocate memory: 9 bytes"])
def test_memory_of_any_device_may_be_too_small(said, monkeypatch, capsys):
    def full(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(Report, "execute", full)
    assert main(["report", "a"]) == 1
    assert "not enough memory" in capsys.readouterr().err


def test_words_of_other_programs_are_known(capsys):
    for word in ("--learning-rate", "--lr", "--weight-decay", "--batch-size", "--batch_size", "--beta2", "--clip"):
        assert main(["train", word, "x"]) == 2
        assert "'x': this is no" in capsys.readouterr().err
    for word, near in (
        ("--out", "--output"),
        ("--output-dir", "--output"),
        ("--hiden", "--hidden"),
        ("--num_heads", "--head-nodes"),
        ("--depth", "--depth-length"),
        ("--epochs", "--updates"),
        ("--num_train_epochs", "--updates"),
        ("--max_steps", "--updates"),
        ("--per_device_train_batch_size=8", "--batch-size"),
        ("--lr-rate", "--learning-rate"),
        ("--block_size", "--context-length"),
    ):
        assert main(["train", word, "3"]) == 2
        assert f"Did you mean {near!r}?" in capsys.readouterr().err
    assert main(["generate", "run", "--max_length", "3"]) == 2
    assert "Did you mean '--max-new-tokens'?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--max_new_words", "--gpu", "--verbose", "--num-workers", "--restart", "--target"])
def test_words_that_resemble_no_option_lead_to_none(word, capsys):
    assert main(["train", word, "3"]) == 2
    printed = capsys.readouterr().err
    assert f"there is no option {word!r}" in printed and "Did you mean" not in printed


def test_device_is_not_taken_for_series():
    assert suggest("--device", ["--series", "--depth-length", "--seed"]) == ""


def test_a_text_whose_test_is_too_short_leaves_no_run(capsys):
    Path("tale.txt").write_text("the quick brown fox " * 20)
    assert main(["train", "text", "--text", "tale.txt", "--output", "run"]) == 2
    assert (
        "40 for validation and test, each part must hold a window. Pass 39 or less" in capsys.readouterr().err
        and not Path("run").exists()
    )


def test_sizes_that_no_memory_holds_are_one_line(capsys):
    Path("tale.txt").write_text("the quick brown fox " * 50)
    words = ["train", "text", "--text", "tale.txt", "--context-length", "8", "--axis-nodes", "1", "--width", str(2**40)]
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
            ["report", "taken", "--output", "own.csv/page.html"],
            "--output = 'own.csv/page.html': nothing can be written there (own.csv is a file)",
        ),
        (["train", "--config", "tables.toml"], "tables.toml: train = {'lr': 0.1}: this is a table. Write its keys"),
        (["train", "--config", "."], "--config = '.': this is a folder"),
        (["train", "--config", "large.toml"], f"large.toml: --updates = {2**70}: this number is too large"),
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
    small = "--updates 1 --batch-size 2 --width 8 --axis-nodes 2 --hidden 8 --depth-steps 1 --validations 1 --threads 1"
    rows = (f"{i},{'' if i % 9 == 4 else i % 7}" for i in range(200))
    Path("own.csv").write_text("\n".join(["t,x", *rows]))
    folder = "caf\u00e9 [c]"
    assert main(["train", "csv", "--series", "own.csv", *small.split(), "--no-measure", "--output", folder]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"run: {folder}" in printed and f"report: {folder}/report.html" in printed
    assert "22 of 200 cells are missing (x 22)" in printed
    assert any(
        "mean squared error" in line and "squared error ahead" in line and "continuous" in line for line in printed
    )
    facts = Run.open(Path(folder)).manifest["facts"]["task"]
    assert facts["missing cells"] == {"x": 22} and facts["rows in a window"] == 20
