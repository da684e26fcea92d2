"""What a training needs is foreseen on sizes that were never counted."""

import json
import textwrap
import tomllib
from pathlib import Path

import pytest

from continua.cli.main import main
from continua.cli.options import OPTIMISERS
from continua.cli.parsing import read_command, read_values
from continua.cli.plan import Forecast, measure_machine
from continua.cli.train import Train
from continua.train import Preset
from continua.train.counting import CountModel, count_update, example_batch, text_form

pytestmark = pytest.mark.usefixtures("unchecked_module")
full = pytest.mark.faults
SPECTRAL = {"hidden": 2, "axis_nodes": 2, "head_nodes": 2, "depth_steps": 2}
DENSE = {"hidden": 4, "axis_nodes": 1, "head_nodes": 2, "head_modes": 0, "depth_steps": 3, "gradient": "checkpointed"}


def sized(options: dict, width: int) -> Preset:
    """A hidden size in proportion to the width."""
    return Preset().replace(**{**options, "width": width, "hidden": options["hidden"] * width})


@pytest.mark.parametrize(
    "options", [pytest.param(SPECTRAL, id="spectral"), pytest.param(DENSE, id="dense", marks=full)]
)
def test_counts_are_foreseen_at_sizes_that_were_not_counted(options):
    """To a thousandth, as a few things are made once for all sequences; the peak of memory may change its moment."""
    build = OPTIMISERS["adamw"]
    model = CountModel(lambda n: text_form(20, n), sized(options, 128), example_batch, (32, 64), build)
    for width, tokens, size in ((96, 48, 18), (56, 96, 7)):
        assert width not in model.widths and tokens not in model.tokens
        form = text_form(20, tokens)
        found = count_update(form, sized(options, width), example_batch(form, size, tokens), build)
        foreseen = model.at(width, tokens, size)
        assert foreseen.parameters == pytest.approx(found.parameters, rel=1e-12)
        assert foreseen._replace(peak=0.0) == pytest.approx(found._replace(peak=0.0), rel=1e-3)
        assert foreseen.peak == pytest.approx(found.peak, rel=0.2)


HELD_OUT = (
    ({"width": 48, "hidden": 96, "axis_nodes": 6, "depth_steps": 3}, 40, 12),
    ({"width": 128, "hidden": 256, "axis_nodes": 4, "depth_steps": 3, "gradient": "checkpointed"}, 64, 6),
    ({"width": 96, "hidden": 384, "axis_nodes": 1, "head_modes": 0, "depth_steps": 4}, 32, 10),
    ({"width": 32, "hidden": 128, "axis_nodes": 2, "depth_steps": 6, "stepper": "rk4"}, 128, 8),
    (
        {"width": 160, "hidden": 640, "axis_nodes": 1, "head_modes": 0, "depth_steps": 2, "gradient": "checkpointed"},
        96,
        8,
    ),
    ({"width": 80, "hidden": 320, "axis_nodes": 5, "depth_steps": 3, "gradient": "checkpointed"}, 112, 6),
    ({"width": 224, "hidden": 448, "axis_nodes": 1, "head_modes": 0, "depth_steps": 2}, 40, 6),
    ({"width": 40, "hidden": 160, "axis_nodes": 4, "depth_steps": 5, "stepper": "midpoint"}, 144, 5),
    ({"width": 72, "hidden": 144, "axis_nodes": 3, "head_nodes": 3, "depth_steps": 5}, 56, 9),
    ({"width": 112, "hidden": 448, "axis_nodes": 1, "head_modes": 0, "depth_steps": 3, "stepper": "midpoint"}, 80, 6),
    ({"width": 208, "hidden": 416, "axis_nodes": 2, "depth_steps": 2, "gradient": "checkpointed"}, 72, 4),
    ({"width": 24, "hidden": 96, "axis_nodes": 2, "depth_steps": 8}, 256, 3),
    ({"width": 48, "hidden": 96, "axis_nodes": 6, "depth_steps": 3}, 40, 48),  # bytes more than anything else
)
"""Options, tokens and batches of models that no machine is measured on."""


@full  # a minute of measurements
def test_times_are_foreseen_for_models_that_were_not_timed():
    cases = []
    for options, tokens, size in HELD_OUT:
        form = text_form(65, tokens)
        cases.append((form, Preset().replace(**options), example_batch(form, size, tokens)))
    machine, found = measure_machine(cases)
    foreseen = [machine.seconds(count_update(*case, OPTIMISERS["adamw"])) for case in cases]
    assert foreseen == pytest.approx(found, rel=0.2)


def plan(tmp_path: Path, capsys, *words: str) -> dict:
    (tmp_path / "run.toml").write_text('task = "text"\nwidth = 64\nhidden = 128\naxis_nodes = 1\nhead_nodes = 2\n'
                                       'head_modes = 0\ndepth_steps = 1\ndepth_modes = 2\n'
                                       'batch_size = 64\n')  # fmt: skip
    given = ["--flops", "100T", "--bandwidth", "2TB", "--vocabulary", "50", "--context-length", "512", "--json"]
    assert main(["plan", str(tmp_path / "run.toml"), *given, *words]) == 0
    return json.loads(capsys.readouterr().out)["needs"]


def test_more_devices_share_the_batch_and_sharded_ones_the_weights(tmp_path, capsys):
    one, eight = (plan(tmp_path, capsys, "--devices", str(k)) for k in (1, 8))
    assert one["communication"] == 0.0 < eight["communication"]
    assert eight["memory"]["parameters"] == one["memory"]["parameters"] and eight["compute"] < one["compute"]
    assert eight["most"] == pytest.approx(8 * one["most"], rel=0.01)
    assert eight["sent"] == pytest.approx(2 * 4 * one["parameters"] * 7 / 8)  # a ring's all-reduce
    assert eight["checkpoint"] == 12 * one["parameters"]


def test_a_plan_says_what_is_wrong(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("wdith = 3\n")
    for words, why in (
        (["--memory", "lots"], "this is no amount. Pass one, such as 80GiB"),
        (["--vocabulary", "10"], "a text has a vocabulary and a length"),
        (["--bandwidth", "1TB"], "the machine is measured as a whole"),
        ([], "there is no option '--wdith'"),
    ):
        assert main(["plan", str(tmp_path / "run.toml"), *words]) == 2
        assert why in capsys.readouterr().err


def test_the_plan_of_the_documentation_has_options_that_exist(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    block = page.split("`big.toml`:\n\n")[1].split("\n\n")[0]
    options = read_values(Train, "train", tomllib.loads(textwrap.dedent(block)), "big.toml")
    assert (options.task, options.model.width, options.depth.depth_modes) == ("text", 4096, 32)
    (line,) = (line for line in page.splitlines() if line.startswith("    continua plan big.toml"))
    assert read_command(Forecast, "plan", line.split()[2:]).vocabulary == 32000
