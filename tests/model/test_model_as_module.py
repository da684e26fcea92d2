"""Models behave as any `nn.Module`: state dict, dtype, copies, modes, optimisers; `at` shares parameters."""

import copy
import pickle

import pytest
import torch

from continua.model import EncoderDecoder, Layers
from continua.solve import Checkpointed, Direct, DormandPrince, Fixed, Given, Solver
from continua.solve.step_size import Tolerance
from models import adaptive_model
from parity import run, shaken, tokens_and_padding
from registries import VOCABULARY, all_presets

LAYERS = Layers(2, width=8, heads=2, hidden=12, dropout=0.3)
TOKENS, PRESENT = tokens_and_padding(VOCABULARY, 7)

all_models = {
    **{name: lambda make=make: make(LAYERS) for name, make in all_presets.items()},
    "default": lambda: adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2),
}
models = pytest.mark.parametrize("name", all_models)


def built(name):
    torch.manual_seed(1)
    return shaken(all_models[name]()).eval()


@models
def test_state_dict_round_trip(name):
    model, other = built(name), all_models[name]().eval()
    assert not torch.equal(run(other, TOKENS, PRESENT), run(model, TOKENS, PRESENT))
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(run(other, TOKENS, PRESENT), run(model, TOKENS, PRESENT))


@models
def test_conversion_to_double_precision(name):
    model = built(name)
    single = run(model, TOKENS, PRESENT)
    double = run(model.to(torch.float64), TOKENS, PRESENT)
    assert {p.dtype for p in model.parameters()} == {torch.float64} and double.dtype == torch.float64
    # Adaptive grids may differ between precisions, within the tolerance of the solve.
    assert (double - single).abs().max() < (1e-2 if name == "default" else 1e-4)
    assert run(model.float(), TOKENS, PRESENT).dtype == torch.float32


@models
def test_deep_copies_are_independent(name):
    model = built(name)
    before = run(model, TOKENS, PRESENT)
    other = copy.deepcopy(model)
    assert torch.equal(run(other, TOKENS, PRESENT), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(run(model, TOKENS, PRESENT), before)


@models
def test_pickles(name):
    model = built(name)
    assert torch.equal(run(pickle.loads(pickle.dumps(model)), TOKENS, PRESENT), run(model, TOKENS, PRESENT))


@models
def test_an_optimiser_step_changes_every_parameter_and_lowers_the_loss(name):
    model = built(name)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    target = torch.randn_like(run(model, TOKENS, PRESENT))

    def loss():
        return ((run(model, TOKENS, PRESENT) - target)[PRESENT] ** 2).mean()

    before, values = loss(), [p.detach().clone() for p in model.parameters()]
    before.backward()
    optimiser.step()
    changed = [not torch.equal(p, v) for p, v in zip(model.parameters(), values, strict=True)]
    # What the key bias adds to all logits of a query cancels in the softmax.
    still = {n for (n, _), c in zip(model.named_parameters(), changed, strict=True) if not c}
    assert {n for n in still if not n.endswith("bk")} == set()
    assert loss() < before
    optimiser.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_tied_tables_are_one_parameter_everywhere():
    model = built("gpt, tied")
    for other in (
        model,
        copy.deepcopy(model),
        model.to(torch.float64),
        model.at(steps=6),
        pickle.loads(pickle.dumps(model)),
    ):
        assert other.readout.linear.weight is other.embedding.table
    names = [name for name, _ in model.named_parameters()]
    assert "embedding.table" in names and "readout.linear.weight" not in names


# --- the same model, solved otherwise


@models
def test_at_shares_parameters(name):
    model = built(name)
    other = model.at(steps=6)
    assert {id(p) for p in other.parameters()} == {id(p) for p in model.parameters()}
    model.to(torch.float64)
    assert run(other, TOKENS, PRESENT).dtype == torch.float64
    run(other, TOKENS, PRESENT).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert torch.equal(run(other, TOKENS, PRESENT), run(model.at(steps=6), TOKENS, PRESENT))


@pytest.mark.parametrize("name", ["gpt", "encoder_decoder"])
def test_at_has_a_mode_of_its_own(name):
    model = built(name).train()
    other = model.at(gradient=Checkpointed())
    assert other.training
    other.eval()
    assert torch.equal(run(other, TOKENS), run(other, TOKENS)), "dropout in evaluation mode"
    assert model.training and not torch.equal(run(model, TOKENS), run(model, TOKENS)), "no dropout in training mode"
    model.eval()
    other.train()
    assert torch.equal(run(model, TOKENS), run(model, TOKENS)), "dropout in evaluation mode"
    assert not model.at(steps=6).training


def test_at_leaves_the_model_alone():
    model = built("gpt")
    other = model.at(solver=Solver(DormandPrince(), Fixed(3)), gradient=Direct(second_derivatives=True))
    assert model.solver.controller == Fixed(2) and model.gradient == Direct()
    other.readout = built("bert").readout
    assert model.readout is not other.readout
    assert model.at().solver == model.solver and model.at().gradient == model.gradient


def test_at_keeps_the_stepper():
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    assert model.at(steps=7).solver == Solver(DormandPrince(), Fixed(7))
    assert model.at(grid=[0.0, 0.5, 1.0]).solver.controller == Given((0.0, 0.5, 1.0))
    fine = model.at(rtol=1e-7).solver.controller
    assert fine.tolerance == Tolerance(1e-7, 1e-7)
    with pytest.raises(ValueError, match=r"at = .*excludes the others. Pass one of"):
        model.at(steps=7, rtol=1e-7)


def test_a_frozen_grid_repeats_the_adaptive_solve():
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2).double()
    grid = model(TOKENS, present=PRESENT, full=True).solution.stats.grid
    difference = model.at(grid=grid)(TOKENS, present=PRESENT) - model(TOKENS, present=PRESENT)
    assert difference.abs().max() < 1e-12


def test_encoder_decoder_solves_both_ends_otherwise():
    model = built("encoder_decoder")
    other = model.at(steps=6)
    assert isinstance(other, EncoderDecoder)
    assert other.encoder.solver.controller == other.decoder.solver.controller == Fixed(6)
