"""`flow.compile()`: the same outputs and gradients, few graphs, none for every depth, shape or layer."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

from continua.model import Flow, Layers
from continua.solve import Checkpointed, Direct
from graph_cases import MACHINE_CODE
from models import adaptive_model
from parity import assert_close, run, shaken, tokens_and_padding
from registries import VOCABULARY, all_presets

pytestmark = [
    # The shape checker of the tests does not know the symbolic tensors of a compiler.
    pytest.mark.usefixtures("unchecked"),
    # torch's compiler warns of itself.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

LAYERS = Layers(6, width=8, heads=2, hidden=12)
TOKENS, PRESENT = tokens_and_padding(VOCABULARY, 9)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No graphs from before, and no graph is broken."""
    torch._dynamo.reset()
    counters.clear()
    yield
    assert dict(counters["graph_break"]) == {}
    torch._dynamo.reset()


def built(name, layers=LAYERS):
    torch.manual_seed(1)
    if name == "default":
        return shaken(adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2))
    return shaken(all_presets[name](layers))


def compiled(model, backend):
    for module in model.modules():
        if isinstance(module, Flow):
            module.compile(backend=backend)
    return model


def outcome(model, tokens=TOKENS, present=PRESENT, **named):
    model.zero_grad()
    output = run(model, tokens, present, **named)
    output.square().mean().backward()
    return output.detach(), [p.grad.clone() for p in model.parameters()]


def graphs():
    return counters["stats"]["unique_graphs"]


def assert_same(found, expected, tolerance):
    assert_close(found[0], expected[0], tolerance)
    for a, b in zip(found[1], expected[1], strict=True):
        assert_close(a, b, tolerance)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("gpt", 2), ("encoder_decoder", 5), ("default", 2)],
)
def test_compiled_flows_are_the_same(name, parts):
    """One graph for each part, and another one where no gradient is recorded."""
    model = built(name)
    expected = outcome(model)
    compiled(model, "aot_eager")
    assert_same(outcome(model.at(gradient=Direct())), expected, 1e-5)
    assert graphs() <= (parts if name != "default" else 2 * parts)  # the first step is sought without a gradient
    assert_same(outcome(model.at(gradient=Checkpointed())), expected, 1e-5)
    assert graphs() <= 2 * parts
    outcome(model.at(steps=42))
    assert graphs() <= 2 * parts, "compiled anew for other steps"


def test_dropout_shapes_masks_and_modes_need_few_graphs():
    """Two parts, with and without a graph for the gradient, each for a first shape, one more, and any; then evaluation.

    More than 8: at torch's own limit the rest would not be compiled.
    """
    layers = Layers(4, width=8, heads=2, hidden=12, dropout=0.2)
    plain = built("gpt", layers)
    model = compiled(built("gpt", layers), "eager").at(gradient=Checkpointed())
    generator = torch.Generator()
    for length, batch in ((9, 4), (7, 4), (6, 3), (5, 2), (8, 5)):
        tokens, present = tokens_and_padding(VOCABULARY, length, batch)
        for mask in (present, None):
            draws = [outcome(m, tokens, mask, generator=generator.manual_seed(length)) for m in (model, plain)]
            assert_same(*draws, 1e-5)
    assert 8 < graphs() <= 12
    model.eval()
    with torch.no_grad():
        assert_close(run(model, TOKENS), run(plain.eval(), TOKENS), 1e-5)
    assert graphs() <= 16


def test_flows_have_their_own_room_for_graphs():
    """More networks in one process than torch's limit of 8 graphs for one function."""
    for name in ("gpt", "bert", "parallel", "macaron", "sphere"):
        model, before = built(name).at(gradient=Checkpointed()), graphs()
        expected = outcome(model)
        assert_same(outcome(compiled(model, "eager")), expected, 1e-5)
        assert graphs() > before, f"{name} was not compiled"


@pytest.mark.slow
@pytest.mark.skipif(not MACHINE_CODE, reason="needs g++ and the headers of Python")
@pytest.mark.parametrize("name", ["gpt", "default"])
def test_compiled_to_machine_code(name):
    model = built(name)
    expected = outcome(model)
    compiled(model, "inductor")
    assert_same(outcome(model), expected, 1e-5)
    assert_same(outcome(model.at(gradient=Checkpointed())), expected, 1e-5)
    assert graphs() <= 4


def test_copies_and_other_solves_of_a_compiled_model():
    model = compiled(built("gpt"), "aot_eager")
    expected = outcome(model)
    assert_same(outcome(copy.deepcopy(model)), expected, 1e-6)
    assert torch.equal(run(model.at(gradient=Checkpointed()), TOKENS, PRESENT), expected[0])
