"""The loop: it learns, it goes on where it stopped to the very same numbers, and it says why when it cannot go on."""

import dataclasses
import io
import json
import os
import signal

import pytest
import torch
from rich.console import Console

from continua.control import AtRandomDepth, KineticEnergy, MeanSquaredError, Objective, call_model
from continua.core.batch import Batch
from continua.data import AbstractTask, Digits, Mnist1d, Spirals, Split
from continua.fields import ContinuousHeads
from continua.model import ContinuousTransformer, Flow, Part
from continua.operators import Attention
from continua.optim import adamw
from continua.runs import Run
from continua.solve import Adaptive, DormandPrince, Solver
from continua.spaces import Legendre
from continua.train import (
    PRESETS,
    AbstractReporter,
    Bar,
    DivergedError,
    Interrupted,
    JsonLines,
    Learner,
    Plan,
    Preset,
    Training,
    TrainingGrids,
    build_baseline,
    build_continuous,
    count_parameters,
    evaluate,
    evaluate_depth_steps,
    evaluate_resolutions,
    evaluate_samplings,
    objective_of,
    solver_error,
)

SMALL = Preset().replace(
    width=8,
    head_nodes=2,
    hidden=16,
    axis_nodes=2,
    head_modes=2,
    depth_modes=2,
    depth_length=1.0,
    depth_steps=2,
    stem_radius=3.0,
    stem_modes=3,
    learning_rate=1e-2,
)
TASK = Spirals(examples=40, tokens=8, queries=3)


def learners(task, names=("continuous",), preset=SMALL):
    torch.manual_seed(0)
    model = build_continuous(task.form, preset)
    models = {"continuous": model}
    if "layers" in names:
        models["layers"] = build_baseline(task.form, preset, count_parameters(model))
    return [
        Learner(n, m, objective_of(task.form, m), adamw(m, 1e-2, 0.01, (0.9, 0.98)), grids=TrainingGrids(1.0))
        for n, m in models.items()
    ]


def training(folder, plan, names=("continuous",), task=TASK, reporters=()):
    run = Run.open(folder) if folder.exists() else Run.begin(folder, "train", {})
    some = learners(task, names)
    for reporter in reporters:
        if isinstance(reporter, Spoil):
            reporter.model = some[0].model
    return Training(run, task, some, plan, reporters)


def values(some):
    return {n: p.detach().clone() for learner in some.learners for n, p in learner.model.named_parameters()}


class StopAfter(AbstractReporter):
    """Sends this process a signal after an update."""

    def __init__(self, update, number):
        self.when, self.number = update, number

    def begin(self, plan, done): ...

    def on_update(self, update, learner, row):
        if update == self.when and learner == "continuous":  # once: a second one would be obeyed
            os.kill(os.getpid(), self.number)

    def on_validation(self, update, learner, metrics): ...

    def end(self): ...


class Spoil(AbstractReporter):
    """Writes a number over the weights of the readout after an update, as a rate that is far too high does."""

    def __init__(self, update, value=1e38):
        self.when, self.value, self.model = update, value, None

    def begin(self, plan, done): ...

    def on_update(self, update, learner, row):
        if update == self.when:
            with torch.no_grad():
                next(self.model.readout.parameters()).fill_(self.value)

    def on_validation(self, update, learner, metrics): ...

    def end(self): ...


@dataclasses.dataclass(frozen=True)
class BadBatch(AbstractTask):
    """A task, one of whose batches has no finite loss."""

    inner: AbstractTask
    when: int
    name = "bad batch"

    def __getattribute__(self, name):
        if name in ("inner", "when", "training_batch", "__class__"):
            return object.__getattribute__(self, name)
        return getattr(self.inner, name)

    form = property(lambda self: self.inner.form)

    def count(self, split): ...
    def batch(self, split, index): ...
    def augment(self, batch, generator): ...
    def details(self): ...
    def variants(self): ...

    def training_batch(self, size, update, seed):
        batch = self.inner.training_batch(size, update, seed)
        return dataclasses.replace(batch, targets=batch.targets * 1e30) if update == self.when else batch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_was_stopped_ends_with_the_same_numbers(tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as shells do for what runs in the background")
    plan = Plan(updates=6, batch_size=4, validations=2, seed=3)
    whole = training(tmp_path / "whole", plan, ("continuous", "layers"))
    whole.go()
    stopped = training(tmp_path / "stopped", plan, ("continuous", "layers"), reporters=[StopAfter(4, number)])
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=f"stopped by {number.name}"):
        stopped.go()
    assert signal.getsignal(number) is before and stopped.run.checkpoints()[-1].name == "00000004"
    again = training(tmp_path / "stopped", plan, ("continuous", "layers"))
    assert again.resume() == 4
    again.go(4)
    one, other = values(whole), values(again)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    losses = [[row["total"] for row in t.run.records("update")] for t in (whole, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 12
    metrics = [[row["metrics"] for row in t.run.records("validation")] for t in (whole, again)]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 4


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    plan = Plan(updates=6, batch_size=5, validations=1)
    whole = training(tmp_path / "whole", plan)
    whole.go()
    killed = training(tmp_path / "killed", plan)
    killed._update(0, 0.0)
    killed._update(1, 0.0)
    killed.keep(2)
    killed._update(2, 0.0)  # after the checkpoint, and lost
    again = training(tmp_path / "killed", plan)
    done = again.resume()
    again.go(done)
    assert done == 2 and [row["update"] for row in again.run.records("update")] == [1, 2, 3, 4, 5, 6]
    assert all(torch.equal(a, b) for a, b in zip(values(whole).values(), values(again).values(), strict=True))


def test_it_learns(tmp_path):
    plan = Plan(updates=40, batch_size=20, validations=1)
    some = training(tmp_path / "run", plan)
    before = evaluate(some.learners[0].model, TASK, Split.TEST)["mean squared error"]
    some.go()
    after = evaluate(some.learners[0].model, TASK, Split.TEST)["mean squared error"]
    assert after < 0.7 * before


def test_records_hold_what_a_report_needs(tmp_path):
    some = training(tmp_path / "run", Plan(updates=4, batch_size=5, validations=1))
    some.go()
    rows = list(some.run.records("update"))
    wanted = {"loss", "total", "running", "lr", "evaluations", "steps", "tokens", "seconds", "grad_norm", "clock"}
    wanted |= {"tokens_per_second"}
    assert len(rows) == 4 and all(wanted <= row.keys() for row in rows)
    assert rows[0]["evaluations"] == 2 and rows[0]["steps"] == 2  # two split steps
    (validation,) = some.run.records("validation")
    assert {"loss", "mean squared error", "squared error ahead"} <= validation["metrics"].keys()


def test_the_baseline_has_as_many_parameters_and_sees_the_same_batches(tmp_path):
    some = training(tmp_path / "run", Plan(updates=2, batch_size=5), ("continuous", "layers"))
    sizes = [count_parameters(learner.model) for learner in some.learners]
    assert abs(sizes[1] / sizes[0] - 1) < 0.05
    seen = []
    for learner in some.learners:

        def watch(model, batch, *rest, inner=learner.objective):
            seen.append(batch)
            return inner(model, batch, *rest)

        watch.names = learner.objective.names
        learner.objective = watch
    some.go()
    assert seen[0] is seen[1] and seen[2] is seen[3] and seen[0] is not seen[2]


@pytest.mark.parametrize("task", [Mnist1d(), Digits(), TASK])
@pytest.mark.parametrize("name", ["layers", "textbook"])
@pytest.mark.parametrize("stepper", ["lie", "euler", "midpoint"])
def test_every_preset_has_its_baseline_within_five_percent(task, stepper, name):
    preset = PRESETS[task.name]["demo"].replace(stepper=stepper)
    model = build_continuous(task.form, preset)
    other = build_baseline(task.form, preset, count_parameters(model), name)
    assert abs(count_parameters(other) / count_parameters(model) - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "evaluations"),
    [({}, 2), ({"stepper": "rk4"}, 8), ({"stepper": "strang"}, 6), ({"gradient": "backsolve"}, 12),
     ({"rtol": 1e-3}, 12), ({"stepper": "rk4", "gradient": "backsolve"}, 8), ({"stepper": "bosh3", "rtol": 1e-3}, 6)],
)  # fmt: skip
def test_layers_are_as_many_as_the_evaluations_of_the_steps_that_are_taken(options, evaluations):
    """Dormand-Prince's where split steps cannot do what is asked for."""
    preset = Preset().replace(depth_steps=2, **options)
    deep = build_baseline(TASK.form, preset, 0, "deep")
    assert deep.solver.controller.steps == evaluations
    batch = TASK.batch(Split.TEST, torch.arange(2))
    if "rtol" not in options:
        found = call_model(build_continuous(TASK.form, preset), batch)
        assert found.solution.stats.evaluations in (evaluations, evaluations - 2)  # Strang's halves count as halves


def test_deep_baselines_have_four_times_the_width_as_hidden_size_in_as_many_layers_as_there_are_steps():
    preset = Preset().replace(depth_steps=12, axis_nodes=1, head_modes=0)
    model, deep = build_continuous(TASK.form, preset), build_baseline(TASK.form, preset, 0, "deep")
    wide = 4 * preset.model.width
    layered = preset.replace(field="piecewise", depth_modes=12, depth_length=12.0, hidden=wide)
    assert preset.model.hidden != wide  # what the continuous model has is not what they have
    assert (
        count_parameters(deep) == count_parameters(build_continuous(TASK.form, layered)) > 2 * count_parameters(model)
    )
    assert deep.flow.depth == deep.solver.controller.steps == 12


def test_updates_without_a_finite_loss_are_skipped_and_end_the_run_with_the_last_good_state_kept(tmp_path):
    plan = Plan(updates=20, batch_size=4, max_skipped=3, save_every=1)
    some = training(tmp_path / "run", plan, reporters=[Spoil(5)])
    with pytest.raises(DivergedError, match="from update 6 on loss or gradient of continuous are not finite") as told:
        some.go()
    rows = some.run.records("update")
    assert [row["skipped"] for row in rows] == [False] * 5 + [True] * 3 and rows[-1]["loss"] is None
    assert told.value.since == 6 and some.run.checkpoints()[-1].name == "00000005"
    again = training(tmp_path / "run", plan)
    assert again.resume(told.value.since - 1) == 4  # the weights after update 5 are those that gave no loss
    again.go(4)
    assert len(again.run.records("update")) == 20 and not any(row["skipped"] for row in again.run.records("update"))


def test_one_bad_batch_is_passed_over(tmp_path):
    plan = Plan(updates=4, batch_size=4, save_every=1)
    some = training(tmp_path / "run", plan, task=BadBatch(TASK, 2))
    some.go()
    assert [row["skipped"] for row in some.run.records("update")] == [False, False, True, False]
    assert [path.name for path in some.run.checkpoints()] == ["00000002", "00000004"]  # no save where one is skipped
    again = training(tmp_path / "run", plan, task=BadBatch(TASK, 2))
    assert again.resume() == 4 and again.learners[0].skipped == 0


def test_a_solve_that_cannot_be_finished_is_skipped():
    (learner,) = learners(TASK)
    learner.model.solver = Solver(DormandPrince(), Adaptive(1e-5, 1e-5, max_steps=2))
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    row = learner.update(TASK.training_batch(4, 0, 0), 0, Plan(updates=2, batch_size=4))
    assert row.skipped and learner.skipped == 1
    assert all(torch.equal(p, before[name]) for name, p in learner.model.named_parameters())


def test_weights_that_are_lost_are_never_saved(tmp_path):
    some = training(tmp_path / "run", Plan(updates=4, batch_size=4, save_every=1), reporters=[Spoil(2, torch.nan)])
    with pytest.raises(DivergedError):
        some.go()
    assert some.run.checkpoints()[-1].name == "00000001"


def test_checkpoints_come_by_time_and_by_updates():
    plan = Plan(updates=100, batch_size=1, validations=1, save_every=7, save_seconds=30.0)
    assert [update for update in range(1, 101) if plan.saves(update, 0.0)] == [*range(7, 100, 7), 100]
    assert plan.saves(3, 30.0) and not plan.saves(3, 29.0)
    assert not any(Plan(updates=100, batch_size=1, validations=1).saves(update, 1.0) for update in range(1, 100))


def test_the_best_by_validation_stays(tmp_path):
    some = training(tmp_path / "run", Plan(updates=6, batch_size=4, validations=6, keep=1))
    some.go()
    losses = {row["update"]: row["metrics"]["loss"] for row in some.run.records("validation")}
    best = min(losses, key=losses.get)
    noted = {"update": best, "loss": losses[best]}
    assert some.run.manifest["facts"]["best"] == noted | {"of": {"continuous": noted}}
    kept = {int(path.name) for path in some.run.checkpoints()}
    assert {best, 6} <= kept and len(kept) <= 2


def test_a_reader_that_leaves_stops_the_run_with_a_checkpoint(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as stream:
        some = training(tmp_path / "run", Plan(updates=6, batch_size=4), reporters=[JsonLines(1, stream)])
        with pytest.raises(Interrupted, match="nobody reads the output"):
            some.go()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # else closing it fails too
    assert some.run.checkpoints()[-1].name == "00000001"


def test_gradients_are_clipped():
    (learner,) = learners(TASK)
    batch = TASK.training_batch(4, 0, 0)
    row = learner.update(batch, 0, Plan(updates=2, batch_size=4, clip=1e-3))
    norm = torch.linalg.vector_norm(
        torch.stack([p.grad.norm() for p in learner.model.parameters() if p.grad is not None])
    )
    assert row.grad_norm > 1e-3 and abs(float(norm) - 1e-3) < 1e-6


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    some = training(tmp_path / "run", Plan(updates=1, batch_size=5))
    some.go()
    other = dataclasses.replace(some, learners=learners(TASK, preset=SMALL.replace(width=16)))
    with pytest.raises(ValueError, match="another model"):
        other.resume()
    with pytest.raises(ValueError, match="other learners"):
        dataclasses.replace(some, learners=learners(TASK, ("continuous", "layers"))).resume()


def test_the_rate_rises_and_falls():
    plan = Plan(updates=100, batch_size=1, warmup_ratio=0.2)
    rates = [plan.curve.factor(update) for update in range(100)]
    assert max(rates) == rates[20] == 1.0 and rates[0] < 0.06 and rates[-1] < 0.01
    assert rates[:21] == sorted(rates[:21]) and rates[20:] == sorted(rates[20:], reverse=True)


@pytest.mark.parametrize(("updates", "times"), [(10, 5), (7, 3), (3, 5), (100, 1)])
def test_moments_are_spread_evenly_and_the_end_is_one(updates, times):
    plan = Plan(updates=updates, batch_size=1, validations=times)
    due = [update for update in range(1, updates + 1) if plan.validates(update)]
    assert due[-1] == updates and len(due) == min(times, updates)


@pytest.mark.parametrize(
    "wrong",
    [
        {"updates": 0},
        {"batch_size": 0},
        {"warmup_ratio": 1.0},
        {"clip": float("nan")},
    ],
)
def test_plans_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**{"updates": 1, "batch_size": 1, **wrong})


def test_matrices_decay_and_vectors_do_not():
    (learner,) = learners(TASK)
    matrices, vectors = learner.optimiser.param_groups
    assert matrices["weight_decay"] == 0.01 and vectors["weight_decay"] == 0.0
    names = {id(p): name for name, p in learner.model.named_parameters()}
    assert len(matrices["params"]) + len(vectors["params"]) == len(names)
    still = {names[id(p)].replace(".", "_").rpartition("_")[2] for p in vectors["params"]}
    moved = {names[id(p)].replace(".", "_").rpartition("_")[2] for p in matrices["params"]}
    assert {"gain", "bias", "bq", "b1"} <= still and {"q", "w1", "weight"} <= moved


def test_evaluation_is_a_mean_over_sequences_whatever_the_batches():
    (learner,) = learners(TASK)
    whole, parts = (evaluate(learner.model, TASK, Split.TEST, size) for size in (100, 3))
    assert whole.keys() == parts.keys() and learner.model.training
    assert all(abs(whole[name] - parts[name]) < 1e-5 for name in whole)


def test_more_depth_steps_come_nearer_to_a_tight_solve():
    (learner,) = learners(TASK)
    gaps = [solver_error(learner.model.at(steps=steps), TASK) for steps in (1, 8, 64)]
    assert gaps[2] < gaps[1] < gaps[0] and gaps[2] < 0.02
    assert set(evaluate_depth_steps(learner.model, TASK, (1, 2))) == {1, 2}
    own = set(evaluate_depth_steps(learner.model.at(steps=2), TASK))
    assert own == {1, 2, 3, 4, 8, 16}, "from a quarter to eight times its own"
    assert set(evaluate_samplings(learner.model, TASK)) == {"as trained", *TASK.variants()}


def test_every_resolution_and_sampling_has_its_loss_and_its_cost(unchecked):
    (learner,) = learners(TASK)
    said = []
    found = evaluate_resolutions(learner.model, TASK, size=8, tell=said.append)
    assert {"1 step", "4 steps", "rtol 0.01", *TASK.variants()} <= set(found) and len(said) >= len(found)
    assert found["4 steps"]["evaluations"] == 2 * found["2 steps"]["evaluations"] and learner.model.training
    assert all(row["milliseconds"] > 0.0 and row["loss"] > 0.0 for row in found.values())
    own = learner.objective(learner.model.at(steps=4).in_eval_mode(), next(iter(TASK.batches(Split.TEST, 8))))
    assert found["4 steps"]["loss"] == pytest.approx(float(own.terminal.detach()))
    more = found["twice as many observations"]
    assert more["evaluations"] == found["2 steps"]["evaluations"] and more["loss"] != found["2 steps"]["loss"]


def test_asked_objective_agrees_with_ask():
    (learner,) = learners(TASK)
    learner.model.eval()
    batch = TASK.batch(Split.TEST, torch.arange(5))
    terms = learner.objective(learner.model, batch)
    output = learner.model(*batch.inputs, query_times=batch.query_times)
    assert torch.allclose(terms.output, output, atol=1e-6)
    assert abs(float(terms.terminal.detach()) - float((output - batch.targets).square().mean().detach())) < 1e-6


def test_reporters_tell(tmp_path):
    console, lines = Console(file=io.StringIO(), width=120), io.StringIO()
    reporters = [Bar(console), JsonLines(every=2, stream=lines)]
    training(tmp_path / "run", Plan(updates=4, batch_size=5, validations=2), reporters=reporters).go()
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [row["kind"] for row in told] == ["begin", *["update"] * 2, "validation", "update", "validation", "end"]
    assert "squared error ahead" in console.file.getvalue()


def test_a_batch_counts_the_tokens_it_asks_for():
    from continua.train.learner import count_tokens

    assert count_tokens(Batch((torch.zeros(2, 5, 1),), None, query_times=torch.zeros(2, 3))) == 16


def test_objectives_pay_for_what_training_the_model_needs():
    """The negentropy wherever a density of heads is trained, and every cost that has a weight."""
    free = Preset().replace(energy_cost=0.0)
    model = build_continuous(TASK.form, SMALL.replace(head_modes=0))
    form = dataclasses.replace(TASK.form, queries=False)
    assert objective_of(form, model, free).costs == () and objective_of(form).costs == ()
    all_paid = free.replace(energy_cost=1.0, path_length_cost=2.0, jacobian_cost=3.0, jacobian_frobenius_cost=4.0,
                            field_size_cost=5.0, depth_steps=8)  # fmt: skip
    found = objective_of(form, model, all_paid)
    assert found.coefficients == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert [cost.fraction for cost in found.costs if isinstance(cost, AtRandomDepth)] == [1 / 8, 1 / 8]
    attention = Attention(2, 4, head_masses=True)
    heads = ContinuousHeads(attention.spec(8), over_h=Legendre(1))
    measured = ContinuousTransformer(model.embedding, Flow([Part(attention, heads)]), model.readout)
    found = objective_of(TASK.form, measured, free)
    assert found.names == ("head_negentropy",) and found.coefficients == (1e-3,)
    heads.requires_grad_(False)
    assert objective_of(form, measured, free).costs == ()


def test_asking_pays_the_same_running_costs():
    torch.manual_seed(0)
    model, batch = build_continuous(TASK.form, SMALL).eval(), next(iter(TASK.batches(Split.TEST, 4)))
    terms = Objective(MeanSquaredError(), (KineticEnergy(),), (0.5,))(model, batch)
    assert float(terms.running["kinetic_energy"].detach()) > 0.0
    torch.testing.assert_close(terms.total, terms.terminal + 0.5 * terms.running["kinetic_energy"])
    assert torch.equal(terms.output, model(*batch.inputs, query_times=batch.query_times))
