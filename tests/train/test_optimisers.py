"""The optimisers of a run: who updates what, and a run stopped with the recipe that goes on to the same numbers."""

import dataclasses

import pytest
import torch

from continua.data import Spirals, Text
from continua.fields import Constant, ContinuousHeads
from continua.model import ContinuousTransformer, Flow, Part
from continua.operators import Attention, Convolution, FeedForward
from continua.optim import Composite
from continua.runs import Run
from continua.spaces import Axis, Legendre
from continua.train import (
    Learner,
    Plan,
    Preset,
    Training,
    by_space,
    continuous,
    decayed,
    objective_of,
    optimiser_name,
    presets_of,
)

TASK = Spirals(samples=40, tokens=8, queries=3)
SMALL = Preset(8, 2, 16, modes=2, steps=1, stem_radius=3.0, stem_modes=3)


def member_of(model, optimiser):
    """The kind of optimiser and the decay of every parameter, by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (type(optimiser.members[group["member"]]).__name__, group.get("weight_decay"))
        for group in optimiser.param_groups
        for p in group["params"]
    }


def test_each_parameter_goes_by_its_space():
    torch.manual_seed(0)
    model = continuous(TASK.form, SMALL)
    optimiser = by_space(model, 2e-3, 0.3, (0.8, 0.9))
    found = member_of(model, optimiser)
    assert found.keys() == dict(model.named_parameters()).keys()
    kernels = {n for n in found if n.startswith("flow.") and n.rpartition("_")[2] in {"q", "k", "v", "o", "w1", "w2"}}
    ends = {"readout.linear.weight", "embedding.inner.inner.linear.weight"}
    assert len(kernels) == 6 and all(found[name] == ("SOAP", 0.3) for name in kernels)
    assert all(found[name] == ("BlockwiseAdamW", 0.3) for name in ends)
    vectors = {n for n in found if n.rpartition("_")[2] in {"bq", "b1", "gain", "bias"} or n.endswith(".bias")}
    assert vectors and all(found[name] == ("BlockwiseAdamW", 0.0) for name in vectors)
    assert {group["lr"] for group in optimiser.param_groups} == {2e-3}
    adamw = [g["betas"] for g in optimiser.param_groups if "BlockwiseAdamW" in g["member"]]
    assert set(adamw) == {(0.8, 0.9)}


def test_masses_of_heads_and_orthonormal_kernels_keep_their_manifolds():
    torch.manual_seed(0)
    heads = Attention(3, 4, measured=True)
    turning = FeedForward(4, kernel=Convolution(Axis(4, 2), 1, unitary=True), biased=False)
    plain = continuous(TASK.form, SMALL)
    parts = [Part(heads, ContinuousHeads(heads.spec(8), over_h=Legendre(2)))]
    model = ContinuousTransformer(plain.embedding, Flow(parts), plain.readout)
    kinds = {kind for kind, _ in member_of(model, by_space(model, 1e-3, 0.1)).values()}
    assert kinds == {"SOAP", "BlockwiseAdamW", "MirrorAdam"}
    unitary = dataclasses.replace(turning, hidden=2)
    model = ContinuousTransformer(plain.embedding, Flow([Part(unitary, Constant(unitary.spec(8)))]), plain.readout)
    kinds = {kind for kind, _ in member_of(model, by_space(model, 1e-3, 0.1)).values()}
    assert "RiemannianAdam" in kinds


def test_adamw_is_told_its_betas_and_both_have_a_name():
    model = continuous(TASK.form, SMALL)
    adamw, recipe = decayed(model, 1e-3, 0.1, (0.7, 0.8)), by_space(model, 3e-3, 0.1)
    assert {group["betas"] for group in adamw.param_groups} == {(0.7, 0.8)} and isinstance(recipe, Composite)
    assert optimiser_name(adamw) == "AdamW, rate 0.001"
    assert set(optimiser_name(recipe).partition(",")[0].split(" + ")) == {"SOAP", "BlockwiseAdamW"}
    assert optimiser_name(recipe).endswith("rate 0.003")


def training(folder, plan):
    torch.manual_seed(0)
    model = continuous(TASK.form, SMALL)
    run = Run.open(folder) if folder.exists() else Run.begin(folder, "train", {})
    learner = Learner("continuous", model, objective_of(TASK.form, model), by_space(model, 3e-3, 0.1))
    return Training(run, TASK, [learner], plan)


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path):
    """Beyond the update at which SOAP renews its eigenbases (10), and before it."""
    plan = Plan(updates=14, batch=4, evaluations=1, checkpoints=2, jitter=1.0, seed=3)
    whole, halves = training(tmp_path / "whole", plan), training(tmp_path / "halves", plan)
    whole.go()
    for number in range(7):
        halves._update(number, 0.0)
    halves._keep(7)
    again = training(tmp_path / "halves", plan)
    assert again.resume() == 7
    again.go(7)
    one, other = (dict(t.learners[0].model.named_parameters()) for t in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [[row["loss"] for row in t.run.records("update")] for t in (whole, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 14


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path):
    plan = Plan(updates=1, batch=4)
    some = training(tmp_path / "run", plan)
    some.go()
    model = some.learners[0].model
    plain = Learner("continuous", model, objective_of(TASK.form, model), decayed(model, 1e-3, 0.1))
    with pytest.raises(ValueError, match="another model"):
        dataclasses.replace(some, learners=[plain]).resume()


def test_the_rate_falls_to_its_floor():
    plan = Plan(updates=100, batch=1, warmup=0.1, floor=0.1)
    rates = [plan.rate(update) for update in range(101)]
    assert max(rates) == rates[10] == 1.0 and rates[100] == pytest.approx(0.1) and min(rates[10:]) == rates[100]
    assert rates[55] == pytest.approx(0.55)  # half-way between 1 and the floor
    with pytest.raises(ValueError, match=r"floor = 1\.5"):
        Plan(updates=1, batch=1, floor=1.5)


def test_text_is_trained_as_nanogpt_trains_it(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be " * 20)
    preset = presets_of(Text(tmp_path / "a.txt"))["demo"]
    plan = Plan(preset.updates, preset.batch, warmup=preset.warmup, floor=preset.floor)
    assert [round(preset.lr * plan.rate(n), 12) for n in (100, 2000)] == [1e-3, 1e-4]
    assert (preset.width, preset.heads, preset.batch, preset.updates) == (128, 4, 12, 2000)
    assert (preset.decay, preset.b2) == (0.1, 0.99)
