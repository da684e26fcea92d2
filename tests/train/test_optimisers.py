"""The optimisers of a run: who updates what, and a run stopped with the recipe that goes on to the same numbers."""

import dataclasses

import pytest
import torch

from continua.cli.options import OPTIMISERS
from continua.data import Spirals
from continua.fields import Constant, ContinuousHeads, Expansion
from continua.model import BasisProfile, ContinuousTransformer, Flow, Part
from continua.operators import Attention, Convolution, FeedForward, LayerNorm, PreNorm
from continua.optim import SOAP, Composite, CosineDecay, Recipe, Schedule, adamw, by_tokens, optimiser_name
from continua.runs import Run
from continua.spaces import Axis, Legendre
from continua.train import PRESETS, Learner, Plan, Preset, Training, TrainingGrids, build_continuous, objective_of

BETAS = (0.9, 0.98)
TASK = Spirals(examples=40, tokens=8, queries=3)
SMALL = Preset().replace(
    width=8,
    head_nodes=2,
    hidden=16,
    axis_nodes=1,
    head_modes=0,
    depth_modes=2,
    depth_steps=1,
    stem_radius=3.0,
    stem_modes=3,
)


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
    model = build_continuous(TASK.form, SMALL)
    optimiser = Recipe.with_lr(2e-3, 0.3, (0.8, 0.9), SOAP).build(model)
    found = member_of(model, optimiser)
    assert found.keys() == dict(model.named_parameters()).keys()
    kernels = {n for n in found if n.startswith("flow.") and n.rpartition("_")[2] in {"q", "k", "v", "o", "w1", "w2"}}
    ends = {"readout.linear.weight", "embedding.inner.inner.linear.weight"}
    assert len(kernels) == 6 and all(found[name] == ("SOAP", 0.3) for name in kernels)
    assert all(found[name] == ("BlockwiseAdamW", 0.3) for name in ends)
    vectors = {n for n in found if n.rpartition("_")[2] in {"bq", "b1", "gain", "bias"} or n.endswith(".bias")}
    assert vectors and all(found[name] == ("BlockwiseAdamW", 0.0) for name in vectors)
    assert {group["lr"] for group in optimiser.param_groups} == {2e-3}
    plain = [g["betas"] for g in optimiser.param_groups if "BlockwiseAdamW" in g["member"]]
    assert set(plain) == {(0.8, 0.9)}


def test_masses_of_heads_and_orthonormal_kernels_keep_their_manifolds():
    torch.manual_seed(0)
    heads = Attention(3, 4, head_masses=True)
    turning = FeedForward(4, kernel=Convolution(Axis(4, 2), 1, unitary=True), biased=False)
    plain = build_continuous(TASK.form, SMALL)
    parts = [Part(heads, ContinuousHeads(heads.spec(8), over_h=Legendre(2)))]
    model = ContinuousTransformer(plain.embedding, Flow(parts), plain.readout)
    kinds = {kind for kind, _ in member_of(model, Recipe.with_lr(1e-3, 0.1, BETAS, SOAP).build(model)).values()}
    assert kinds == {"SOAP", "BlockwiseAdamW", "MirrorAdam"}
    unitary = dataclasses.replace(turning, hidden=2)
    model = ContinuousTransformer(plain.embedding, Flow([Part(unitary, Constant(unitary.spec(8)))]), plain.readout)
    kinds = {kind for kind, _ in member_of(model, Recipe.with_lr(1e-3, 0.1, BETAS, SOAP).build(model)).values()}
    assert "RiemannianAdam" in kinds


def test_adamw_is_told_its_betas_and_both_have_a_name():
    model = build_continuous(TASK.form, SMALL)
    plain, recipe = adamw(model, 1e-3, 0.1, (0.7, 0.8)), Recipe.with_lr(3e-3, 0.1, BETAS, SOAP).build(model)
    assert {group["betas"] for group in plain.param_groups} == {(0.7, 0.8)} and isinstance(recipe, Composite)
    assert optimiser_name(plain) == "AdamW, learning rate 0.001"
    assert set(optimiser_name(recipe).partition(",")[0].split(" + ")) == {"SOAP", "BlockwiseAdamW"}
    assert optimiser_name(recipe).endswith("rate 0.003")


def test_adamw_decays_matrices_alone_whatever_their_names():
    """The path of a depth profile has two axes, modes and one number, and is no matrix; nor is a path of gains."""
    torch.manual_seed(0)
    plain, norm = build_continuous(TASK.form, SMALL), PreNorm(LayerNorm(), FeedForward(4))
    flow = Flow([Part(norm, Expansion(norm.spec(8), Legendre(2)))], profile=BasisProfile(Legendre(3)))
    model = ContinuousTransformer(plain.embedding, flow, plain.readout)
    optimiser = adamw(model, 1e-3, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    decays = {names[id(p)]: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    spaces = model.parameter_spaces()
    assert decays == {name: 0.1 if space.axes >= 2 else 0.0 for name, space in spaces.items()}
    (profile,) = (name for name in decays if name.startswith("flow.profile."))
    assert model.get_parameter(profile).ndim == 2 and decays[profile] == 0.0


def test_the_recipe_of_the_library_is_that_of_the_command_line():
    """At the rates of `Recipe()` itself, `with_lr` gives each parameter the same optimiser with the same numbers."""
    model = build_continuous(TASK.form, SMALL)
    ours, theirs = Recipe().build(model), Recipe.with_lr(1e-3).build(model)
    assert ours.members.keys() == theirs.members.keys() and member_of(model, ours) == member_of(model, theirs)
    assert [g | {"params": 0} for g in ours.param_groups] == [g | {"params": 0} for g in theirs.param_groups]
    preset = SMALL.replace(learning_rate=2e-3, weight_decay=0.2, beta2=0.95)
    built = {word: make(model, preset) for word, make in OPTIMISERS.items()}
    assert {type(built[word]) for word in ("recipe", "soap")} == {Composite}
    assert built["recipe"].members.keys() == ours.members.keys()
    assert {g["lr"] for g in built["recipe"].param_groups} == {2e-3}
    assert {g["lr"] * g["weight_decay"] for g in built["soap"].param_groups if g["weight_decay"]} == {4e-4}


def test_a_learner_takes_a_schedule_in_any_unit():
    torch.manual_seed(0)
    model = build_continuous(TASK.form, SMALL)
    optimiser, batch = adamw(model, 1e-3, 0.1, BETAS), TASK.training_batch(4, 0, 0)
    schedule = Schedule(optimiser, CosineDecay(warmup=0, total=100, min_lr_ratio=0.0), by_tokens)
    learner = Learner("continuous", model, objective_of(TASK.form, model), optimiser, schedule)
    rows = [learner.update(batch, number, Plan(updates=2, batch_size=4)) for number in range(2)]
    assert rows[0].tokens == 56 and schedule.spent == 112  # 4 sequences of 8 tokens and 6 questions
    assert [row.lr for row in rows] == pytest.approx([1e-3, 1e-3 * schedule.curve.factor(56)])
    state = learner.state()
    schedule.step(1)
    learner.restore(state, model)
    assert schedule.spent == 112


def training(folder, plan):
    torch.manual_seed(0)
    model = build_continuous(TASK.form, SMALL)
    run = Run.open(folder) if folder.exists() else Run.begin(folder, "train", {})
    learner = Learner(
        "continuous",
        model,
        objective_of(TASK.form, model),
        Recipe.with_lr(3e-3, 0.1, BETAS, SOAP).build(model),
        grids=TrainingGrids(1.0, 0.5),
    )
    return Training(run, TASK, [learner], plan)


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path):
    """Beyond the update at which SOAP renews its eigenbases (10), and before it."""
    plan = Plan(updates=14, batch_size=4, validations=1, seed=3)
    whole, halves = training(tmp_path / "whole", plan), training(tmp_path / "halves", plan)
    whole.go()
    for number in range(7):
        halves._update(number, 0.0)
    halves.keep(7)
    again = training(tmp_path / "halves", plan)
    assert again.resume() == 7
    again.go(7)
    one, other = (dict(t.learners[0].model.named_parameters()) for t in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [[row["total"] for row in t.run.records("update")] for t in (whole, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 14


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path):
    plan = Plan(updates=1, batch_size=4)
    some = training(tmp_path / "run", plan)
    some.go()
    model = some.learners[0].model
    plain = Learner("continuous", model, objective_of(TASK.form, model), adamw(model, 1e-3, 0.1, BETAS))
    with pytest.raises(ValueError, match="another model"):
        dataclasses.replace(some, learners=[plain]).resume()


def test_the_rate_falls_to_its_floor():
    plan = Plan(updates=100, batch_size=1, warmup_ratio=0.1, min_lr_ratio=0.1)
    rates = [plan.curve.factor(update) for update in range(101)]
    assert max(rates) == rates[10] == 1.0 and rates[100] == pytest.approx(0.1) and min(rates[10:]) == rates[100]
    assert rates[55] == pytest.approx(0.55)  # half-way between 1 and the floor
    with pytest.raises(ValueError, match=r"min_lr_ratio = 1\.5"):
        Plan(updates=1, batch_size=1, min_lr_ratio=1.5)


def test_text_is_trained_as_nanogpt_trains_it_at_twice_the_rate():
    model, how = PRESETS["text"]["demo"].model, PRESETS["text"]["demo"].training
    plan = Plan(how.updates, how.batch_size, warmup_ratio=how.warmup_ratio, min_lr_ratio=how.min_lr_ratio)
    assert [round(how.learning_rate * plan.curve.factor(n), 12) for n in (100, 2000)] == [2e-3, 2e-4]
    assert (model.width, model.head_nodes, how.batch_size, how.updates) == (128, 4, 12, 2000)
    assert (how.weight_decay, how.beta2) == (0.1, 0.99)
