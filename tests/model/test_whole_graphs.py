"""The whole model as one graph: `torch.compile(model, fullgraph=True)`, `torch.export` and back from a file."""

import pytest
import torch

import continua
from continua.solve import RK4, Checkpointed, Fixed, Solver
from parity import assert_close, shaken

pytestmark = [
    # The shape checker of the tests does not know the symbolic tensors of a compiler.
    pytest.mark.usefixtures("unchecked"),
    # torch's compiler and exporter warn of themselves.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
BATCH, TOKENS = 3, 8
PRESENT = torch.arange(TOKENS) < torch.tensor([TOKENS, 5, 6])[:, None]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def signals(batch=BATCH, tokens=TOKENS):
    generator = torch.Generator().manual_seed(batch + tokens)
    times = torch.rand(batch, tokens, generator=generator).sort(-1).values
    return torch.randn(batch, tokens, 1, generator=generator), times


def words(batch=BATCH, tokens=TOKENS):
    return (torch.randint(9, (batch, tokens), generator=torch.Generator().manual_seed(tokens)),)


def signal_model(**named):
    torch.manual_seed(0)
    return shaken(continua.transformer(width=8, outputs=3, features=1, axis=2, depth=1.0, **named))


def text_model():
    torch.manual_seed(0)
    return shaken(continua.transformer(width=8, outputs=9, vocabulary=9, causal=True, axis=2, depth=1.0))


def cases():
    asked = {"query_times": torch.tensor([[0.2, 0.7]]).expand(BATCH, -1)}
    queries = signal_model(per_token=True, causal=True, time=continua.TokenTime(queries=True))
    fourth = signal_model().at(solver=Solver(RK4(), Fixed(1)), gradient=Checkpointed())
    return {
        "evenly spaced": (signal_model(), signals()[:1], {}),
        "padding": (signal_model(), (*signals(), PRESENT), {}),
        "causal": (signal_model(causal=True, per_token=True), signals(), {}),
        "causal padding": (signal_model(causal=True, per_token=True), (*signals(), PRESENT), {}),
        "query times": (queries, signals(), asked),
        "text": (text_model(), words(), {}),
        "padded text": (text_model(), (*words(), None, PRESENT), {}),
        "fourth order": (fourth, signals(), {}),
    }


def outcome(call, model, inputs, named):
    model.zero_grad()
    output = call(*inputs, **named)
    output.square().mean().backward()
    return output.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["padding", "causal", "query times", "text", "fourth order"])
def test_a_training_step_is_one_graph(name):
    """`fullgraph` makes a break an error; masks and causal rows may take another path, equal to rounding."""
    model, inputs, named = cases()[name]
    model.train()
    expected = outcome(model, model, inputs, named)
    found = outcome(torch.compile(model, fullgraph=True, backend="aot_eager"), model, inputs, named)
    assert_close(found[0], expected[0], 1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        assert_close(a, b, 1e-5)


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


def test_a_traced_model_is_not_bound_to_what_it_was_traced_with():
    """Padding and ties are values: a trace that looked at them would be wrong for a batch that has others."""
    model, (values, times) = signal_model(causal=True, per_token=True).eval(), signals()
    traced = torch.jit.trace(model, (values, times, torch.ones_like(PRESENT)), check_trace=False)
    found, expected = traced(values, times, PRESENT), model(values, times, PRESENT)
    assert_close(found[PRESENT], expected[PRESENT], 1e-6)


def test_adaptive_steps_are_not_exported():
    model = signal_model().at(rtol=1e-3).eval()
    with pytest.raises(
        ValueError, match=r"controller = Adaptive.*an exported graph cannot\. Export the model on a fixed"
    ):
        torch.export.export(model, signals())


def test_checks_of_values_stay_where_there_is_no_graph():
    model, (values, times) = signal_model().eval(), signals()
    torch.compile(model, fullgraph=True, backend="eager")(values, times)
    with pytest.raises(ValueError, match="a sample is not finite"):
        model(values.masked_fill(values == values[0, 0], torch.nan), times)
    with pytest.raises(ValueError, match="times may not decrease"):
        model(values, times.flip(-1))
