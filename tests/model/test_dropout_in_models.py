"""Dropout: random in training, reproducible from a generator, absent in evaluation, the same in forward and replay."""

import pytest
import torch

from continua.model import Layers
from continua.solve import Checkpointed, Direct
from parity import assert_close, run, shaken, tokens_and_padding
from registries import VOCABULARY, all_presets

LAYERS = Layers(3, width=8, heads=2, hidden=12, dropout=0.3)
TOKENS, PRESENT = tokens_and_padding(VOCABULARY, 7)
presets = pytest.mark.parametrize("name", all_presets)


def built(name, layers=LAYERS):
    torch.manual_seed(1)
    return shaken(all_presets[name](layers)).double()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@presets
def test_training_is_random_and_evaluation_is_not(name):
    model = built(name).train()
    assert not torch.equal(run(model, TOKENS, PRESENT), run(model, TOKENS, PRESENT))
    model.eval()
    assert torch.equal(run(model, TOKENS, PRESENT), run(model, TOKENS, PRESENT))


@presets
def test_a_generator_governs_it(name):
    model = built(name).train()
    outputs = [run(model, TOKENS, PRESENT, generator=seeded(s)) for s in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    torch.manual_seed(4)
    first = run(model, TOKENS, PRESENT)
    torch.manual_seed(4)
    assert torch.equal(run(model, TOKENS, PRESENT), first), "without a generator torch.manual_seed does"


@presets
def test_replay_sees_the_same_masks(name):
    model = built(name).train()
    gradients = []
    for gradient in (Direct(), Checkpointed(), Checkpointed(steps=1)):
        model.zero_grad()
        run(model.at(gradient=gradient), TOKENS, PRESENT, generator=seeded(2)).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            assert_close(b, a, 1e-12)


@presets
def test_parameters_do_not_depend_on_the_rate(name):
    model = built(name).eval()
    without = built(name, Layers(3, width=8, heads=2, hidden=12)).train()
    without.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(run(without, TOKENS, PRESENT), run(model, TOKENS, PRESENT))


def test_every_layer_has_its_own_mask():
    """With weights that make every branch add one, the number of kept branches is binomial in each component."""
    model = built("gpt", Layers(6, width=8, heads=2, hidden=12, dropout=0.5)).train()
    with torch.no_grad():
        for parameter in model.flow.parameters():
            parameter.zero_()
        for part, bias in zip(model.flow.parts, ("inner_bo", "inner_b2"), strict=True):
            for piece in part.field.pieces:
                piece[bias].fill_(1.0)
    cloud = model.embedding(TOKENS.repeat(50, 1))
    kept = (model.solve(cloud, generator=seeded(3)).x - cloud.points) / 2.0
    counts = kept.detach().round()
    assert (kept - counts).abs().max() < 1e-12
    # 12 branches kept with probability 1/2: mean 6, variance 3; one mask for all layers would give 0, 6 or 12.
    assert counts.mean() == pytest.approx(6.0, abs=0.1) and counts.var() == pytest.approx(3.0, abs=0.2)
