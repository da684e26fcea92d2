"""Every choice of `continua train` within reach of the command line: 20 updates with it lower the loss."""

import dataclasses
import json
import typing
from pathlib import Path

import pytest
import torch

from continua.cli import measuring, train
from continua.cli.main import main
from continua.cli.options import RunOptions
from continua.cli.parsing import flag, read_command, values_of
from continua.runs import Run
from continua.train import CostOptions, DepthOptions, ModelOptions, TrainingOptions
from graph_cases import MACHINE_CODE

pytestmark = pytest.mark.usefixtures("unchecked_module")
UPDATES = "--updates 20 "
WORDS = (
    f"{UPDATES}--batch-size 8 --width 16 --axis-nodes 4 --head-nodes 2 --head-modes 2 --hidden 16 --depth-modes 2 "
    "--depth-steps 2 --lr 0.01 --warmup-ratio 0 --validations 1 --threads 1 --quiet"
)
CHOICES = {
    "": ["ContinuousHeads", "Spectral", "staggered for 2 steps", "LieTrotter", "Direct"],
    "--field legendre --stepper strang --dropout 0.1": ["Expansion", "Strang", "Dropout"],
    "--field hypernetwork --flow-damping 0.1": ["HeadHypernetwork", "Damping"],
    "--field piecewise --head-modes 0 --stepper euler": ["PiecewiseConstant", "Euler"],
    "--axis-nodes 1 --spectral-limit 2": ["(vectors)", "SpectrallyNormed"],
    "--axis-kernel fft --integral subset --integral-tokens 3": ["Convolution", "Subset"],
    "--axis-kernel unitary --optimizer recipe": ["unitary=True"],
    "--axis-modes 2 --integral debiased --integral-tokens 3": ["Debiased"],
    "--integral nystrom --integral-tokens 4 --batch-size 100": ["Nystrom"],
    "--stepper rk4 --gradient checkpointed --dtype float64": ["RK4", "Checkpointed"],
    "--rtol 0.1 --gradient backsolve --clip-adjoint 10": ["Adaptive", "Backsolve(clip=10"],
    "--energy-cost 0.01 --path-length-cost 0.01 --head-negentropy-cost 0.01 --jacobian-cost 1e-4 "
    "--jacobian-frobenius-cost 1e-4": [],
    "--field-size-cost 1e-5 --weight-decay 0 --jitter 0.5 --refined 0.7 --refined-nodes 0.5 --coarse 0.2": [],
    "--optimizer soap --token-budget 1280": [],
    "--optimizer shampoo --no-plateaus --no-stagger": ["depth: [0, 4], Solver"],
    "--optimizer kfac --kernel-learning-rate 0.1": [],
    "--stepper midpoint --axis-nodes 1 --head-modes 0": ["(vectors)", "Midpoint"],
    "--stepper heun --mode-ratio 1": ["Heun"],
    "--stepper bosh3 --jitter 1 --field piecewise --head-modes 0": ["BogackiShampine", "PiecewiseConstant"],
    "--stepper tsit5 --rtol 0.1": ["Tsitouras", "Adaptive"],
    "--stepper dopri5 --gradient checkpointed": ["Solver(DormandPrince(), Fixed(steps=2)), gradient Checkpointed()"],
    "--stem-radius 2 --stem-modes 3 --stem-gaps": [],
    "--depth-length 2 --compare layers --preset full --seed 3 --device cpu": ["depth: [0, 2]"],
    "--beta2 0.9 --min-lr-ratio 0.5 --clip 2 --patience 3 --no-best": [],
}
BY_THEMSELVES = "--compile --config --time-budget"
"""Options with a test of their own below."""
NO_LEARNING = {"measure", "sharding", "autoresume", "resume", "override"}
"""Options of a run that say how it begins, goes on or ends, which other files test."""
SMALLEST = "--axis-nodes 1 --head-modes 0 --refined 0 --depth-steps 1"
TEXT = ["text", "--text", "tale.txt", "--context-length", "8"]


@pytest.fixture
def training_alone(tmp_path, monkeypatch):
    """A folder with a text, and a command without what comes after training, which has tests of its own."""
    monkeypatch.chdir(tmp_path)
    after = {"measure_models": {}, "record_references": None, "keep_results": None, "write_report": Path("report.html")}
    for name, found in after.items():
        monkeypatch.setattr(measuring, name, lambda *_, found=found: found)
    Path("tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 12)


def assert_learnt(run: Run, model: str = "continuous") -> list[float]:
    """The losses of all updates, whose last are lower than the first."""
    losses = [row["loss"] for row in run.records("update") if row["model"] == model]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), losses
    return losses


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_learns_and_is_noted(choice, tmp_path, training_alone):
    # landmarks serve no causal model, and characters have no stem
    task = ["spirals"] if "nystrom" in choice or "stem" in choice else TEXT
    words = WORDS.replace(UPDATES, "") if "budget" in choice else WORDS
    assert main(["train", *task, *words.split(), *choice.split(), "--output", "run"]) == 0
    run = Run.open(Path("run"))
    for name in run.manifest["facts"]["models"]:
        assert_learnt(run, name)
    described = run.manifest["facts"]["models"]["continuous"]
    assert [word for word in CHOICES[choice] if word not in described] == [], described
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]["updates"] == 20


def test_every_option_and_every_word_that_it_takes_has_such_a_run():
    """A new one without a run of 20 updates fails here."""
    said = f"{WORDS} {' '.join(CHOICES)} {BY_THEMSELVES}".replace("--lr", "--learning-rate").split()
    usual, unsaid = values_of(train.Train()), []
    for group in (ModelOptions, DepthOptions, CostOptions, TrainingOptions, RunOptions):
        for name, kind in typing.get_type_hints(group).items():
            if name in NO_LEARNING:
                continue
            if not {flag(name), flag(f"no_{name}")} & {*said}:
                unsaid.append(flag(name))
            words = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal and name != "device" else ()
            unsaid += [f"{flag(name)} {word}" for word in words if word not in (usual[name], *said)]
    assert unsaid == []
    assert not NO_LEARNING - {field.name for field in dataclasses.fields(RunOptions)}


def test_options_of_a_file_learn_as_those_of_the_command_line_do(training_alone):
    given = values_of(read_command(train.Train, "train", [*TEXT, *WORDS.split()]))
    usual = values_of(train.Train(task="text").defaults())
    lines = [f"{name} = {json.dumps(value, default=str)}" for name, value in given.items() if value != usual[name]]
    assert any(line.startswith("learning_rate") for line in lines)
    Path("run.toml").write_text("\n".join(lines))
    assert main(["train", *TEXT, *WORDS.split(), "--output", "words"]) == 0
    assert main(["train", "--config", "run.toml", "--output", "file"]) == 0
    assert assert_learnt(Run.open(Path("file"))) == assert_learnt(Run.open(Path("words")))


@pytest.mark.slow
@pytest.mark.skipif(not MACHINE_CODE, reason="torch.compile needs the compiler g++ and the headers of Python")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_flow_learns_as_a_plain_one_does(training_alone):
    smallest = [*TEXT, *WORDS.split(), *SMALLEST.split()]
    assert main(["train", *smallest, "--output", "plain"]) == 0
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert main(["train", *smallest, "--compile", "--output", "compiled"]) == 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    expected = assert_learnt(Run.open(Path("plain")))
    # fused code adds up in another order in float32, and 20 updates carry that on; another model would be far off
    assert assert_learnt(Run.open(Path("compiled"))) == pytest.approx(expected, rel=1e-3)
    torch._dynamo.reset()


def test_a_training_of_some_seconds_has_the_updates_that_fit(training_alone, monkeypatch):
    """Told by updates of the whole training: coarse and refined ones take other times."""
    numbers, update = [], train.Learner.update

    def note_number(self, batch, number, plan):
        numbers.append(number / plan.updates)
        return update(self, batch, number, plan)

    monkeypatch.setattr(train.Learner, "update", note_number)
    words = [*TEXT, *WORDS.replace(UPDATES, "").split()]
    assert main(["train", *words, "--time-budget", "1", "--output", "run"]) == 0
    run = Run.open(Path("run"))
    assert_learnt(run)
    rows, config = run.records("update"), run.manifest["config"]
    assert len(rows) == config["updates"] and config["time_budget"] == 0.0  # a run that goes on has the same number
    assert 0.2 < sum(row["seconds"] for row in rows) < 5.0  # a busy machine is slower now and then
    tried = numbers[: len(numbers) - len(rows)]
    assert len(tried) == 16 and min(tried) < 0.1 and max(tried) > 0.9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--token-budget 1e6 --time-budget 60", "--time-budget = 60.0: the training is 1e+06 tokens long already"),
        (
            "--updates 60 --time-budget 30",
            "--time-budget = 30.0: --updates 60 says how long the training is as well. Pass one of --updates",
        ),
        ("--device cuda", "--device = 'cuda': torch finds no such device on this machine. Pass --device cpu."),
        ("--dtype float16", "--dtype = 'float16': there is no such dtype."),
        ("--field lagrange", "--field = 'lagrange': there is no such field. Choose from cosine, legendre,"),
        ("--integral nystroem", "--integral = 'nystroem': there is no such integral. Did you mean 'nystrom'?"),
        ("--gradient adjoint", "--gradient = 'adjoint': there is no such gradient."),
        (
            "--axis-kernel spectrum",
            "--axis-kernel = 'spectrum': there is no such axis kernel. Did you mean 'spectral'?",
        ),
        ("--head-modes -1", "--head-modes = -1: it must be a whole number, at least 0"),
        (
            "--axis-nodes 5",
            "--width = 48: it does not split into parts of even size over 5 axis nodes. Pass a multiple of 10",
        ),
        ("--rtol -1", "--rtol = -1.0: it must be finite and not negative"),
        ("--integral-tokens 0", "--integral-tokens = 0: it must be a whole number, at least 1"),
        ("--spectral-limit -1", "--spectral-limit = -1.0"),
        ("--clip-adjoint -1", "--clip-adjoint = -1.0"),
        ("--path-length-cost -1", "--path-length-cost = -1.0"),
        (
            "--axis-kernel unitary",
            "--optimizer = 'adamw': its steps leave the unitary kernels that --axis-kernel asks for.",
        ),
        ("--dropout 1", "--dropout = 1.0: it must be a fraction"),
        ("--axis-nodes 6 --head-nodes 2 --axis-modes 9", "--axis-nodes = 6: so many nodes do not resolve 9 axis modes"),
    ],
)
def test_a_mistake_in_a_choice_is_one_line(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split(), "--output", "run"]) == 2
    printed = capsys.readouterr().err
    assert told in printed and printed.count("\n") == 1 and not Path("run").exists()


def test_the_options_that_the_advice_names_are_layers(training_alone):
    layers = "--field piecewise --depth-modes 3 --depth-steps 3 --depth-length 3 --axis-nodes 1 --head-modes 0"
    words = [*TEXT, *WORDS.split(), *layers.split()]
    assert main(["train", *words, "--output", "run"]) == 0
    described = Run.open(Path("run")).manifest["facts"]["models"]["continuous"]
    assert "PiecewiseConstant" in described and "depth: [0, 3]" in described and "(vectors)" in described
