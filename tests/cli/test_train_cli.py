"""`continua train`, `eval` and `generate`: from a word to a run folder, and mistakes told by name."""

import dataclasses
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from docstring_parser import parse_from_object
from rich.console import Console

import continua
from continua.cli.main import COMMANDS, main
from continua.cli.measuring import _progress, results_tables
from continua.cli.options import TASKS
from continua.cli.parsing import read_command, values_of
from continua.cli.runs import load_models
from continua.cli.train import Train, claim_folder
from continua.data import Form, Question, Spirals
from continua.model import choosable_resolutions, load, model_files
from continua.runs import Run
from continua.solve import Adaptive, DormandPrince, Solver
from short_runs import SMALL, stop_after

pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTINUA_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 12)
    words = ["train", "text", "--text", str(folder / "tale.txt"), "--context-length", "8", *SMALL]
    words += ["--compare", "--optimizer", "soap", "--kernel-learning-rate", "0.002"]
    assert main([*words, "--quiet", "--output", str(folder / "run")]) == 0
    return folder / "run"


def test_the_table_says_what_the_commands_say():
    for name, command in COMMANDS.items():
        assert (inspect.getdoc(command.load()) or "").splitlines()[0] == command.summary, name


def test_help_does_not_wait_for_torch():
    code = "import sys; from continua.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    here = {**os.environ, "PYTHONPATH": str(Path(continua.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, env=here).returncode == 0


def test_a_run_holds_everything(text_run, capsys):
    run = Run.open(text_run)
    assert run.manifest["state"] == "finished" and run.manifest["config"]["updates"] == 3
    assert len(list(run.records("update"))) == 6 and len(list(run.records("test"))) == 2
    sizes = run.manifest["facts"]["parameters"]
    assert abs(sizes["layers"] / sizes["continuous"] - 1) < 0.05
    for learner in ("continuous", "layers"):
        names = [path.stem for path in (text_run / "figures").glob(f"*-{learner}.json")]
        shown = {name[3:].removesuffix(f"-{learner}") for name in names}
        assert {"depth", "tokens", "attention", "optimal-control", "resolution"} <= shown
    optimisers = run.manifest["facts"]["optimisers"]
    assert all("SOAP" in name and name.endswith("rate 0.002") for name in optimisers.values())
    assert any("Vaswani" in str(paper) for paper in run.manifest["facts"]["papers"])
    page = (run.folder / "report.html").read_text()
    assert "Optimal control" in page and "Attention is all you need" in page
    assert optimisers["layers"] in page and optimisers["continuous"] in page and "improving and stabilizing" in page
    assert capsys.readouterr().out == ""


def test_eval_reads_a_run(text_run, capsys):
    assert main(["eval", str(text_run), "--json", "--milliseconds", "1000"]) == 0
    told = json.loads(capsys.readouterr().out)
    results = told["results"]
    assert set(results) == set(told["chosen"]) == {"continuous", "layers"}
    for name, chosen in told["chosen"].items():
        calls = {str(each): each.call for each in choosable_resolutions(continua.load(text_run, name).model)}
        losses = {calls[row]: found["loss"] for row, found in results[name]["resolutions"].items() if row in calls}
        assert "at(rtol=0.01)" not in losses  # the model is causal
        best = min(losses, key=lambda call: losses[call])
        assert chosen["fits"] and chosen["loss"] == losses[best] and chosen["python"].endswith(f").{best}")
        assert type(eval(chosen["python"])) is type(continua.load(text_run))
    by_steps = results["continuous"]["depth_steps"]
    assert by_steps["4"]["loss"] == pytest.approx(results["continuous"]["samplings"]["as trained"]["loss"], abs=1e-5)
    assert {"1 step", "2 steps"} <= set(results["continuous"]["resolutions"])
    assert main(["eval", str(text_run), "--milliseconds", "1e-6"]) == 0
    shown = capsys.readouterr().out
    assert "*: no other resolution of this model is faster at no more loss" in shown and " *" in shown
    fastest = f"nothing is as fast as 1e-06 ms per sequence: the fastest is continua.load('{text_run}'"
    assert f"continuous, {fastest}).at(" in shown and f"layers, {fastest}, 'layers').at(" in shown
    costs = shown[shown.index("an update of each model") : shown.index("test (validation")]
    assert all(word in costs for word in ("parameters", "evaluations", "ms", "peak MiB", "continuous", "layers"))
    assert f'to use it: continua generate {text_run} --prompt "..."' in shown
    assert "tight adaptive solve" in shown and "nats per character" in shown
    assert "test (validation read the same samples)" in shown
    page = (text_run / "report.html").read_text()
    assert "Validation reads the test examples" in page and "1 steps" not in page + shown


def test_models_are_read_in_the_order_of_the_run(text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run")
    shutil.copytree(text_run / "models" / "layers", tmp_path / "run" / "models" / "deep")
    run = Run.open(tmp_path / "run")
    run.note(models=dict.fromkeys(("continuous", "layers", "deep"), ""))
    assert list(load_models(run)) == ["continuous", "layers", "deep"]


def test_tables_fit_a_terminal_without_a_word_cut():
    measures = dict.fromkeys(("loss", "mean squared error", "squared error between", "squared error ahead"), 0.5)
    found = {
        "samplings": {"as trained": measures, "half of the cells unseen": measures},
        "depth_steps": {"1": measures},
    }
    tables = results_tables(Spirals(), {"continuous": found, "layers": found})
    with (console := Console(width=80)).capture() as shown:
        console.print(*tables, sep="\n", soft_wrap=True)
    assert "…" not in shown.get() and max(map(len, shown.get().splitlines())) <= 80
    assert all(word in shown.get() for word in ("continuous", "layers", "between", "ahead", "squared", "as trained"))
    assert "validation" not in shown.get()


def test_counts_are_whole_and_titles_break_between_words_alone():
    row = {"evaluations": 4, "milliseconds": 0.25, "squared error between": 0.5}
    tables = results_tables(Spirals(), {"continuous": {"resolutions": {"4 steps": row}}})
    with (console := Console(width=30)).capture() as shown:
        console.print(*tables, sep="\n", soft_wrap=True)
    assert all(word in shown.get() for word in ("evaluations", "milliseconds", " ms", "squared", "between", "0.250"))
    assert " 4 " in shown.get() and "4.0000" not in shown.get()


def test_a_measure_that_is_the_loss_has_one_column_and_names_of_models_stay_whole():
    row = {"evaluations": 96.0, "milliseconds": 43.7, "loss": 1.6789, "nats per character": 1.6789, "accuracy": 0.5}
    found = {"resolutions": {"96 steps": row, "rtol 0.0001": row | {"loss": 1.7, "nats per character": 1.7}}}
    tables = results_tables(Spirals(), {"continuous": found, "deep-regularized": found})
    with (console := Console(width=80)).capture() as shown:
        console.print(*tables, sep="\n", soft_wrap=True)
    assert "loss" not in shown.get().split("*:")[0] and max(map(len, shown.get().splitlines())) <= 80
    assert all(shown.get().count(word) == 2 for word in ("continuous", "deep-regularized"))
    other = {"resolutions": {"96 steps": row, "rtol 0.0001": row | {"loss": 1.7}}}
    assert [column.header for column in results_tables(Spirals(), {"continuous": other})[0].columns][3] == "loss"


def test_a_run_that_measures_nothing_more_reads_the_test_as_trained_and_eval_reads_the_rest(text_run, tmp_path, capsys):
    text = ["text", "--text", str(text_run.parent / "tale.txt"), "--context-length", "8"]
    assert main(["train", *text, *SMALL, "--no-measure", "--output", "run"]) == 0
    shown = capsys.readouterr().out
    assert "as trained" in shown and "depth steps" not in shown and "milliseconds" not in shown
    assert "an update of each model" not in shown  # there is one
    run = Run.open(tmp_path / "run")
    assert [set(row) & {"samplings", "depth_steps", "resolutions"} for row in run.records("test")] == [{"samplings"}]
    assert "at other resolutions" in (text_run / "report.html").read_text()
    assert "at other resolutions" not in (tmp_path / "run" / "report.html").read_text()
    assert main(["eval", "run"]) == 0
    shown = capsys.readouterr().out
    assert "depth steps" in shown and "report: run/report.html" in shown and "resolutions" in [*run.records("test")][-1]
    assert "at other resolutions" in (tmp_path / "run" / "report.html").read_text()


def test_a_network_that_is_off_has_one_set_of_numbers():
    class Added:
        form = Form(1, Question.SERIES, features=1, added=True)

        def facts(self):
            return {}

    row = {"loss": 0.5, "mean squared error": 0.25}
    found = {"samplings": {"as trained": row}}
    test, note = results_tables(Added(), {"continuous": found}, ["continuous"])
    assert test.title == "test" and "its network is off" in note
    steps = {"1": row, "2": row | {"loss": 0.6}}
    moving = found | {"depth_steps": steps, "resolutions": {"1 step": row}}
    assert [table.title for table in results_tables(Added(), {"continuous": moving})][1:] == [
        "test by depth steps", "first sequences of the test, milliseconds per sequence"]  # fmt: skip
    both = results_tables(Added(), {"continuous": found, "layers": moving}, ["continuous"])
    assert len(both) == 4 and both[1].row_count == 2


def test_whoever_waits_is_told_what_is_measured(monkeypatch):
    said = []
    monkeypatch.setattr("continua.cli.measuring.time.monotonic", lambda: 11.0 * len(said))
    console = Console(file=io.StringIO(), force_terminal=False)
    monkeypatch.setattr(console, "print", lambda text, **_: said.append(text))
    with _progress(console) as say:
        say("measuring continuous: the test, as trained")
        say("measuring continuous: the test with 8 depth steps")
    assert said == ["measuring continuous: the test, as trained", "measuring continuous: the test with 8 depth steps"]
    monkeypatch.setattr("continua.cli.measuring.time.monotonic", lambda: 0.0)
    with _progress(console) as say:
        say("first")
        say("at once after it")
    assert said[2:] == ["first"]
    with _progress(None) as say:
        say("nothing")
    assert len(said) == 3


def test_generate_writes_the_same_with_the_same_seed(text_run, capsys):
    told = []
    for seed in ("1", "1", "2"):
        assert main(["generate", str(text_run), "--prompt", "the ", "--max-new-tokens", "20", "--seed", seed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != told[2]
    assert told[0].startswith("the ") and len(told[0]) == 4 + 20 + 1
    alphabet = json.loads((text_run / "manifest.json").read_text())["facts"]["task"]["alphabet"]
    assert main(["generate", str(text_run), "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("\n" if "\n" in alphabet else alphabet[0])
    finer = [
        "generate",
        str(text_run),
        "--prompt",
        "the ",
        "--max-new-tokens",
        "20",
        "--seed",
        "1",
        "--depth-steps",
        "9",
    ]
    assert main(finer) == 0 and len(capsys.readouterr().out) == len(told[0])
    trained = continua.load(text_run)
    assert "the " + trained.predict("the ", max_new_tokens=20, seed=1) + "\n" == told[0]
    assert len({trained.predict("the ", max_new_tokens=9, top_k=1, seed=seed) for seed in (1, 2)}) == 1
    with pytest.raises(TypeError, match=r"predict has no argument 'tokens'\. Pass max_new_tokens="):
        trained.predict("the ", tokens=20)


def test_generate_writes_several_texts_in_one_batch(text_run, capsys):
    words = ["generate", str(text_run), "--prompt", "the ", "--max-new-tokens", "12", "--num-return-sequences"]
    assert main([*words, "3", "--seed", "1"]) == 0
    texts = re.split(r"--- text \d of 3\n", capsys.readouterr().out)[1:]
    assert len(set(texts)) == 3 and all(text.startswith("the ") and len(text) == 17 for text in texts)
    assert main([*words, "2", "--stop", texts[0][4]]) == 0
    assert all(len(text) <= 17 for text in re.split(r"--- text \d of 2\n", capsys.readouterr().out)[1:])
    assert main([*words, "0"]) == 2


def test_generate_stops_where_it_is_told(text_run, capsys):
    words = [
        "generate",
        str(text_run),
        "--prompt",
        "the ",
        "--max-new-tokens",
        "300",
        "--temperature",
        "5",
        "--stop",
        "o",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out.removesuffix("\n")
    assert printed.endswith("o") and "o" not in printed[4:-1]


def test_kept_keys_and_values_change_no_text(text_run, capsys):
    """Beyond the window of eight characters, one at a time and in blocks."""
    for model in ("continuous", "layers"):
        told = {}
        for extra in ([], ["--uncached"], ["--slide", "5"], ["--slide", "5", "--uncached"]):
            words = ["generate", str(text_run), "--prompt", "the ", "--max-new-tokens", "24", "--model", model]
            assert main([*words, *extra]) == 0
            printed = capsys.readouterr()
            told[tuple(extra)] = printed.out
            assert printed.err == "" and len(printed.out) == 29
        assert told[()] == told[("--uncached",)] and told[("--slide", "5")] == told[("--slide", "5", "--uncached")]


def test_without_a_fixed_grid_nothing_is_kept_and_that_is_said(text_run, tmp_path, capsys):
    run, last = Run.begin(tmp_path / "run", "train", {}, Run.open(text_run).manifest["facts"]), Run.open(text_run)
    model = load(text_run / "models" / "continuous").at(solver=Solver(DormandPrince(), Adaptive(1e-2, 1e-2)))
    files = {f"continuous/{name}": content for name, content in model_files(model).items()}
    run.keep_checkpoint(3, last.last_checkpoint().state, files)
    assert main(["generate", "run", "--prompt", "the ", "--max-new-tokens", "2"]) == 0
    printed = capsys.readouterr()
    assert "its grid of depth is not fixed" in printed.err and len(printed.out) == 7


def test_the_likeliest_characters_need_no_seed(text_run, capsys):
    for extra in (["--temperature", "0"], ["--top-k", "1"]):
        told = []
        for seed in ("1", "2"):
            assert (
                main(["generate", str(text_run), "--prompt", "fox", "--max-new-tokens", "8", "--seed", seed, *extra])
                == 0
            )
            told.append(capsys.readouterr().out)
        assert told[0] == told[1]


def test_json_lines_and_the_next_free_folder(capsys):
    Run.begin(Path("runs/burgers-001"), "train", {})
    assert main(["train", "burgers", "--points", "16", *SMALL, "--depth-steps", "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1]["run"] == "runs/burgers-002" and "relative L2 error" in json.dumps(rows)
    assert claim_folder("burgers").name == "burgers-003"


def test_the_plane_at_another_resolution(tmp_path):
    words = [
        "train",
        "darcy",
        "--points",
        "8",
        *SMALL,
        "--depth-steps",
        "1",
        "--depth-length",
        "0.5",
        "--quiet",
        "--output",
        "run",
    ]
    assert main(words) == 0
    tests = next(iter(Run.open(tmp_path / "run").records("test")))["samplings"]
    assert set(tests) == {"as trained", "16 x 16 points", "32 x 32 points"}
    assert "relative L2 error" in tests["16 x 16 points"]


def test_series_of_ones_own_stopped_with_75_and_gone_on_with(tmp_path, capsys, monkeypatch):
    rows = [f"{i},{i % 7},{i % 5},{i % 3}" for i in range(120)]
    (tmp_path / "own.csv").write_text("\n".join(["hour,x,y,z", *rows]))
    words = ["train", "csv", "--series", "own.csv", "--window", "16", "--columns", "x,y", *SMALL]
    done = stop_after(monkeypatch, 2, signal.SIGTERM)
    assert main([*words, "--depth-steps", "1", "--depth-length", "0.5", "--quiet", "--output", "run"]) == 75
    assert "continua train --resume run" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--quiet"]) == 0
    run = Run.open(tmp_path / "run")
    assert [row["update"] for row in run.records("update")] == [1, 2, 3] and len(done) == 3
    assert main(["train", "--resume", "run"]) == 2
    assert "finished" in capsys.readouterr().err
    facts = run.manifest["facts"]["task"]
    assert facts["columns"] == ["x", "y"] and set(facts["scale"]) == {"x", "y"}
    assert "half of the cells unseen" in next(iter(run.records("test")))["samplings"]


def test_mistakes_about_series_are_named(tmp_path, capsys):
    (tmp_path / "own.csv").write_text("t,x\n0,1\n2,2\n1,3\n")
    for words, told in (
        (["csv"], "Pass --series FILE.csv"),
        (["uea"], "Pass --series NAME_TRAIN.ts"),
        (["spirals", "--id-column", "who"], "Leave it out; it is for csv."),
        (["mnist1d", "--series", "own.csv"], "Leave it out; it is for uea, csv."),
        (
            ["csv", "--series", "own.csv", "--window", "4"],
            "--window = 4: it must be a whole number, at least 8",
        ),
        (["csv", "--series", "own.csv", "--points", "5"], "--points = 5: the task csv does not read it"),
        (["text", "--context-length", "0"], "--context-length = 0: it must be a whole number, at least 1"),
        (["burgers", "--context-length", "64"], "--context-length = 64: the task burgers does not read it"),
        (["csv", "--series", "absent.csv"], "--series = 'absent.csv': there is no such file"),
        (["csv", "--series", "own.csv"], "row 4: the time 1 comes after 2"),
        (
            ["csv", "--series", "own.csv", "--time-column", "hour"],
            "--time-column = 'hour': own.csv has no such column. Its columns are t, x",
        ),
    ):
        assert main(["train", *words, *SMALL]) == 2
        assert told in " ".join(capsys.readouterr().err.split())


def test_a_config_file_and_words_that_come_before_it(tmp_path):
    text = 'task = "burgers"\npoints = 16\nupdates = 9\ndepth_length = 1\noutput = "there"\n'
    (tmp_path / "run.toml").write_text(text)
    config = values_of(read_command(Train, "train", ["--config", "run.toml", *SMALL, "--depth-steps", "1", "--quiet"]))
    assert config["task"] == "burgers" and config["updates"] == 3 and config["depth_length"] == 1.0
    assert config["points"] == 16 and config["output"] == Path("there")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("updtes = 3", "run.toml: there is no option '--updtes' of `continua train`. Did you mean '--updates'?"),
        ('lr = "fast"', "run.toml: --learning-rate = 'fast': this is no number. Pass one, such as 0.5."),
        ("updates = 1.5", "run.toml: --updates = '1.5': this is no whole number. Pass one, such as 2."),
        ("learning_rate = nan", "run.toml: --learning-rate = nan: this is no finite number"),
        ("compare = 1", "run.toml: --compare = '1': there is no such network to compare with"),
        ("quiet = 1", "run.toml: quiet = 1: true or false is needed"),
        ('task = "cats"', "run.toml: TASK = 'cats': there is no such task"),
        ('config = "other.toml"', "run.toml: config = 'other.toml': a file of options names no other"),
        ("lr 3", "this is no TOML"),
    ],
)
def test_mistakes_in_a_config_file_are_named(tmp_path, capsys, content, told):
    (tmp_path / "run.toml").write_text(content)
    assert main(["train", "--config", "run.toml"]) == 2
    printed = capsys.readouterr().err
    assert told in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "cats"], "TASK = 'cats'"),
        (["train", "--preset", "huge"], "--preset = 'huge'"),
        (["train", "--lr", "nan"], "--learning-rate = nan"),
        (["train", "--lr", "-1"], "--learning-rate = -1.0"),
        (["train", "--lr", "1e38"], "--learning-rate = 1e+38: no training survives such a rate"),
        (["train", "--dtype", "bfloat16"], "--dtype = 'bfloat16'"),
        (["train", "--override", "lr=1"], "there is no run that it changes"),
        (["train", "--save-seconds", "0"], "--save-seconds = 0.0"),
        (["train", "--keep", "0"], "--keep = 0"),
        (
            ["train", "spirals", "--width", "10"],
            "--width = 10: it does not split into parts of even size over 6 axis nodes. Pass a multiple of 12",
        ),
        (
            ["train", "spirals", "--width", "12", "--head-modes", "0"],
            "--head-nodes = 4: they do not split the 2 channels",
        ),
        (["train", "--optimizer", "sgd"], "--optimizer = 'sgd'"),
        (
            ["train", "--compare", "layer"],
            "--compare = 'layer': there is no such network to compare with. Did you mean",
        ),
        (["train", "--kernel-learning-rate", "-1"], "--kernel-learning-rate = -1.0"),
        (["train", "--refined", "2"], "--refined = 2.0"),
        (
            ["train", "--depth-length", "0"],
            "--depth-length = 0.0: it must be positive and finite. Pass --depth-length > 0.",
        ),
        (
            ["train", "spirals", "--field", "piecewise"],
            "--head-modes = 3: a field that is constant on pieces of depth has counted heads",
        ),
        (["train", "--field-size-cost", "1"], "--weight-decay = 0.05: --field-size-cost 1 shrinks the same parameters"),
        (["train", "--min-lr-ratio", "2"], "--min-lr-ratio = 2.0"),
        (["train", "--warmup-ratio", "1"], "--warmup-ratio = 1.0"),
        (["train", "--beta2", "1"], "--beta2 = 1.0"),
        (["train", "--stepper", "leap"], "--stepper = 'leap'"),
        (["train", "--missing", "2"], "--missing = 2.0"),
        (["train", "--energy-cost", "-1"], "--energy-cost = -1.0"),
        (["train", "digits", "--mode-ratio", "0"], "--mode-ratio = 0.0"),
        (["train", "digits", "--jitter", "2"], "--jitter = 2.0"),
        (["train", "--threads", "-1"], "--threads = -1"),
        (["train", "--weight-decay", "-1"], "--weight-decay = -1.0"),
        (["train", "--seed", str(2**70)], "--seed = 1180591620717411303424"),
        (["train", "spirals", "--batch-size", "5000"], "--batch-size = 5000: the training split has 1000 examples"),
        (["train", "spirals", "--width", "0"], "--width = 0: it must be a whole number, at least 1"),
        (["train", "--text", "a.txt"], "--text = 'a.txt'"),
        (["train", "text", "--text", "absent.txt"], "absent.txt"),
        (["train", "--config", "absent.toml"], "absent.toml"),
        (["train", "--resume", "absent"], "there is no such folder"),
        (["eval", "absent"], "there is no such folder"),
        (["eval", "absent", "--milliseconds", "0"], "--milliseconds = 0.0: it must be positive and finite"),
        (["eval", "absent", "--milliseconds", "soon"], "--milliseconds = 'soon': this is no number"),
        (["generate", "absent"], "there is no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(words, told, capsys):
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("continua: ") and told in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prompt", ""], "--prompt = '': there is nothing to go on from"),
        (["--prompt", "fox\u00dc"], "'\u00dc' is not in the alphabet"),
        (["--max-new-tokens", "0"], "--max-new-tokens = 0"),
        (["--stop", ""], "--stop = ''"),
        (["--temperature", "-1"], "temperature = -1.0"),
        (["--temperature", "nan"], "--temperature = nan"),
        (["--top-k", "0"], "--top-k = 0"),
        (["--slide", "0"], "slide = 0"),
        (["--slide", "9"], "slide = 9: a full window moves on, and keeps its last token. Pass a number from 1 to 8"),
    ],
)
def test_mistakes_in_generate_are_named_before_anything_is_written(text_run, capsys, words, told):
    prompt = [] if "--prompt" in words else ["--prompt", "the "]
    assert main(["generate", str(text_run), *prompt, *words]) == 2
    printed = capsys.readouterr()
    assert told in printed.err and printed.out == ""


def test_a_run_on_something_else_writes_nothing(capsys):
    Run.begin(Path("other"), "train", {}, {"task": {"classes": 10}})
    assert main(["generate", "other"]) == 2
    assert "Pass a run of `continua train text`" in capsys.readouterr().err


def test_generate_wants_a_run_on_text(text_run, capsys):
    assert main(["generate", str(text_run), "--prompt", "Ü"]) == 2
    assert "not in the alphabet" in capsys.readouterr().err
    assert main(["generate", str(text_run), "--model", "other"]) == 2
    assert "Choose from continuous, layers" in capsys.readouterr().err


def test_help_shows_a_line_break_as_it_is_written(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    assert r"how the text begins (default: '\n')" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_lines_where_the_terminal_ends_and_not_where_the_source_does(command, capsys, monkeypatch):
    shown = []
    for columns in (80, 5000):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown.append(capsys.readouterr().out)
    assert max(map(len, shown[0].splitlines())) <= 80
    kind = COMMANDS[command].load()
    groups = [kind, *(hint for hint in get_type_hints(kind).values() if dataclasses.is_dataclass(hint))]
    texts = [each.description for group in groups for each in parse_from_object(group).params if each.description]
    starts = [" ".join(text.split())[:200] for text in texts]  # tyro's widest column holds so much in a line
    assert starts and [start for start in starts if start not in shown[1]] == []


def test_help_names_every_task(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in TASKS) and "--compare" in printed
