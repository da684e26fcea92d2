"""Models built from presets: flows that converge, tokens of unit size, grids drawn at random."""

import pytest
import torch

from continua.control import KineticEnergy, call_model
from continua.core.batch import Batch
from continua.core.seeds import branch_seed, generator_of
from continua.data import Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Split, Text, Uea
from continua.model import Depth, transformer
from continua.optim import adamw
from continua.train import (
    PRESETS,
    Learner,
    Plan,
    Preset,
    TrainingGrids,
    build_baseline,
    build_continuous,
    count_parameters,
    objective_of,
)

SERIES = "@problemName Two\n@univariate true\n@classLabel true a b\n@data\n"


@pytest.fixture
def tasks(tmp_path):
    text = tmp_path / "tale.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    for part in ("TRAIN", "TEST"):
        rows = [",".join(f"{((i * k) % 7) / 3 - 1:.2f}" for k in range(20)) + f":{'ab'[i % 2]}" for i in range(16)]
        (tmp_path / f"Two_{part}.ts").write_text(SERIES + "\n".join(rows) + "\n")
    table = tmp_path / "table.csv"
    table.write_text("t,a,b\n" + "".join(f"{i},{(i * 7 % 11) / 5 - 1:.2f},{(i * 3 % 8) / 4:.2f}\n" for i in range(400)))
    series = [Uea(tmp_path / "Two_TRAIN.ts"), Csv(table, window=16)]
    signals = [Mnist1d(), Digits(), Spirals(examples=40), Burgers(examples=40), Darcy(points=8, examples=16)]
    return [*signals, *series, Text(text)]


def gap(task, preset, seed, steps):
    torch.manual_seed(seed)
    model = build_continuous(task.form, preset).eval()
    batch = task.training_batch(4, 0, 0)
    with torch.no_grad():
        if task.form.added:  # such a model adds nothing yet: a readout that does shows its flow
            model.readout.inner.linear.weight.normal_()
        own, fine = (call_model(model.at(steps=n), batch).output for n in (steps, 2 * steps))
    return float((own - fine).norm() / fine.norm())


@pytest.mark.slow
def test_new_models_of_all_presets_converge_at_first_order(tasks, unchecked):
    for task in tasks:
        coarse, fine = (gap(task, PRESETS[task.name]["demo"], 0, steps) for steps in (32, 64))
        assert 0.35 < fine / coarse < 0.65, (task.name, coarse, fine)


def test_tokens_start_at_unit_variance(tasks):
    for task in tasks:
        model = build_continuous(task.form, PRESETS[task.name]["demo"])
        cloud = model.embedding(*task.training_batch(4, 0, 0).inputs)
        points = cloud.points if cloud.present is None else cloud.points[cloud.present]
        deviations = points.std(-1, correction=0)
        torch.testing.assert_close(deviations, torch.ones_like(deviations), rtol=0.01, atol=0.0)


def test_energy_is_a_running_cost_of_the_objective():
    task, preset = (
        Digits(),
        Preset().replace(width=8, hidden=16, axis_nodes=2, head_modes=0, head_nodes=2, energy_cost=0.5),
    )
    model = build_continuous(task.form, preset)
    batch = task.training_batch(4, 0, 0)
    plain, paid = objective_of(task.form)(model, batch), objective_of(task.form, model, preset)(model, batch)
    (energy,) = paid.running.values()
    assert plain.running == {} and torch.equal(plain.terminal, paid.terminal) and energy > 0
    torch.testing.assert_close(paid.total, paid.terminal + 0.5 * energy)
    asking = objective_of(Spirals(examples=40).form, model, preset)
    assert asking.coefficients == (0.5,) and isinstance(asking.costs[0], KineticEnergy)


def test_jitter_moves_the_inner_depths_of_the_grid_within_half_a_step():
    task, preset = Digits(), Preset().replace(width=8, hidden=16, axis_nodes=2, depth_steps=3, depth_length=1.5)
    model, grids = build_continuous(task.form, preset), []
    for seed in range(20):
        grid = TrainingGrids(jitter=0.6).draw_grid(model, 0.0, generator_of(seed))
        found = call_model(model, task.training_batch(2, 0, 0), grid=grid)
        assert found.solution.stats.grid == grid
        grids.append(torch.tensor(grid))
    assert TrainingGrids().draw_grid(model, 0.0, generator_of(0)) is None
    moved = torch.stack(grids) - torch.tensor([0.0, 0.5, 1.0, 1.5])
    assert bool((moved[:, [0, 3]].abs() < 1e-6).all()) and float(moved.abs().max()) <= 0.5 * 0.6 * 0.5 + 1e-6
    assert bool((moved[:, 1:3].std(0) > 0.05).all())


def test_grids_are_refined_at_last_and_keep_jumps():
    smooth = transformer(8, 2, features=1, axis=1, heads=2, depth=Depth(3.0, steps=4))
    layers = transformer(8, 2, features=1, axis=1, heads=2, depth=Depth(3.0, 3))
    grids = TrainingGrids(1.0, 0.25)
    for seed in range(50):
        draw = generator_of(seed)
        assert [grids.draw_kind(layers, at, draw) for at in (0.0, 0.5, 0.74, 0.75, 0.99)] == [None] * 3 + ["depth"] * 2
        assert [len(grids.draw_grid(smooth, 0.5, draw, finer)) for finer in (False, True)] == [5, 9]
        for finer, count in ((False, 4), (True, 7)):
            grid = grids.draw_grid(layers, 0.5, draw, finer)
            assert len(grid) == count and {0.0, 1.0, 2.0, 3.0} <= set(grid)
            assert not finer or all(abs(z - k - 0.5) <= 0.25 for k, z in enumerate(grid[1::2]))
    adaptive = smooth.at(rtol=1e-2)
    assert grids.draw_kind(adaptive, 0.9, draw) is None and grids.draw_grid(adaptive, 0.5, draw) is None
    measured = transformer(8, 2, features=1, axis=2, depth=Depth(3.0, steps=4))
    kinds = [TrainingGrids(0.0, 1.0, nodes=0.5).draw_kind(measured, 0.5, generator_of(seed)) for seed in range(200)]
    counts = [kinds.count(kind) for kind in ("depth", "head_nodes", "axis_nodes")]
    assert all(abs(count - mean) < 30 for count, mean in zip(counts, (100, 50, 50), strict=True)), counts
    with pytest.raises(ValueError, match=r"refined_nodes = 1\.5"):
        TrainingGrids(nodes=1.5)
    batch = Batch((torch.zeros(5, 3, 1), torch.zeros(5, 3)), torch.zeros(5))
    part = batch.part(2, 5)
    assert [len(x) for x in (*part.inputs, part.targets)] == [3, 3, 3]


def test_grids_are_coarse_at_first_and_keep_jumps():
    smooth, few, layers = (
        transformer(8, 2, features=1, axis=1, heads=2, depth=how) for how in (Depth(3.0, steps=6), 3.0, Depth(3.0, 3))
    )
    grids, draw = TrainingGrids(coarse=0.4), generator_of(0)
    assert grids.draw_grid(smooth, 0.39, draw) == [0.0, 1.0, 2.0, 3.0]
    assert grids.draw_grid(few, 0.0, draw) == [0.0, 1.5, 3.0]  # half of three steps are two
    assert grids.draw_grid(layers, 0.0, draw) == [0.0, 1.0, 2.0, 3.0]
    assert grids.draw_grid(smooth, 0.4, draw) is None and grids.draw_grid(smooth.at(rtol=1e-2), 0.0, draw) is None
    assert len(grids.draw_grid(smooth, 0.0, draw, finer=True)) == 13
    with pytest.raises(ValueError, match=r"coarse = -0\.5"):
        TrainingGrids(coarse=-0.5)
    task, preset = Digits(), Preset().replace(width=8, hidden=16, axis_nodes=2, coarse=0.5)
    model = build_continuous(task.form, preset)
    learner = Learner("one", model, objective_of(task.form), adamw(model, 1e-3), grids=TrainingGrids.of(preset.depth))
    batch = task.training_batch(4, 0, 0)
    evaluations = [learner.update(batch, number, Plan(8, 4)).evaluations for number in range(8)]
    assert evaluations[:4] == [2] * 4 and set(evaluations[4:]) <= {4, 8}  # then refined by the preset


def test_every_continuum_is_refined_in_turn():
    task, preset = Digits(), Preset().replace(width=16, hidden=16, axis_nodes=2, head_nodes=2, head_modes=2)
    model = build_continuous(task.form, preset)
    learner = Learner("one", model, objective_of(task.form), adamw(model, 1e-3), grids=TrainingGrids(0.0, 1.0))
    seen, batch = set(), task.training_batch(4, 0, 0)
    for number in range(12):
        seed = branch_seed(branch_seed(branch_seed(0, -2), number), 1)
        kind = learner.grids.draw_kind(model, number / 12, generator_of(seed))
        row = learner.update(batch, number, Plan(12, 4))
        assert row.evaluations == (8 if kind == "depth" else 4)
        seen.add(kind)
    assert seen == {"depth", "head_nodes", "axis_nodes"} and set(learner._finer) == {"head_nodes", "axis_nodes"}
    assert learner._finer["head_nodes"].flow.parts[0].field.heads == 4 and learner._finer["axis_nodes"].axis.nodes == 4
    assert {id(p) for p in learner._finer["axis_nodes"].parameters()} == {id(p) for p in model.parameters()}


def test_a_finer_axis_makes_no_wider_baseline():
    """Eight axis nodes for four modes: states have the coefficients of 32 numbers, and so have the layers' vectors."""
    form, preset = Burgers().form, PRESETS["burgers"]["demo"]
    assert preset.model.axis_nodes == 2 * preset.model.axis_modes
    parameters = count_parameters(build_continuous(form, preset))
    baseline = build_baseline(form, preset, parameters)
    assert len(baseline.flow.fields[0].breaks) == 3 and preset.depth.depth_steps == 4
    assert baseline.readout.linear.in_features == preset.model.width // 2
    assert abs(count_parameters(baseline) / parameters - 1.0) <= 0.05


def test_models_of_a_set_have_no_positions_and_no_stem():
    task = Darcy(points=8, examples=16)
    batch = task.batch(Split.TEST, torch.arange(2))
    order = torch.randperm(64, generator=generator_of(0))
    for name in ("layers", "textbook"):
        model = build_baseline(task.form, PRESETS["darcy"]["demo"], 30_000, name).double().eval()
        values = batch.inputs[0].double()
        with torch.no_grad():
            torch.testing.assert_close(model(values[:, order]), model(values)[:, order], rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=r"stem_radius = 4\.0: tokens of this task have no order"):
        build_continuous(task.form, PRESETS["darcy"]["demo"].replace(stem_radius=4.0))
