"""The whole model as one graph: `torch.compile(model, fullgraph=True)`, `torch.export` and back from a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graph_cases import BATCH, TOKENS, cases, signal_model, signals
from parity import assert_close

pytestmark = [
    # The shape checker of the tests does not know the symbolic tensors of a compiler.
    pytest.mark.usefixtures("unchecked"),
    # torch's compiler and exporter warn of themselves.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
COMPILED = ["padding", "causal", "text"]


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).parents[1] / "graph_cases.py"
    command = [sys.executable, "-W", "ignore", str(script), *COMPILED]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", COMPILED)
def test_a_training_step_is_one_graph(name, compiled):
    assert compiled[name] == ""


@pytest.mark.parametrize("name", ["evenly spaced", "causal padding", "query times", "padded text"])
def test_an_exported_model_gives_the_same(name):
    model, inputs, named = cases()[name]
    model.eval()
    exported = torch.export.export(model, inputs, named).module()
    assert_close(exported(*inputs, **named), model(*inputs, **named), 1e-6)


def test_an_exported_model_is_read_from_a_file_for_other_sizes(tmp_path):
    model, free = signal_model().eval(), {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(model, signals(), dynamic_shapes={"inputs": (free, free)})
    torch.export.save(exported, tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()
    for sizes in ((BATCH, TOKENS), (1, TOKENS), (5, 13)):
        inputs = signals(*sizes)
        assert_close(found(*inputs), model(*inputs), 1e-6)


def test_adaptive_steps_are_not_exported():
    model = signal_model().at(rtol=1e-3).eval()
    with pytest.raises(
        ValueError, match=r"controller = Adaptive.*an exported graph cannot\. Export the model on a fixed"
    ):
        torch.export.export(model, signals())


def test_checks_of_values_stay_where_there_is_no_graph():
    model, (values, times) = signal_model().eval(), signals()
    torch.export.export(model, (values, times))
    with pytest.raises(ValueError, match="a sample is not finite"):
        model(values.masked_fill(values == values[0, 0], torch.nan), times)
    with pytest.raises(ValueError, match="times may not decrease"):
        model(values, times.flip(-1))
