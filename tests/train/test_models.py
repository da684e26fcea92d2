"""Models built from presets: the flow of every one is resolved by its own steps before training begins."""

import dataclasses

import pytest
import torch

from continua.control import KineticEnergy, call_model
from continua.data import Burgers, Csv, Darcy, Digits, Mnist1d, Spirals, Text, Uea
from continua.optim import adamw
from continua.train import (
    Learner,
    Plan,
    Preset,
    build_continuous,
    objective_of,
    presets_of,
)

SERIES = "@problemName Two\n@univariate true\n@classLabel true a b\n@data\n"
RESOLVED = 0.1
"""How far, relatively, outputs with the steps of a preset may be from those with eight times as many."""


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
    signals = [Mnist1d(), Digits(), Spirals(samples=40), Burgers(samples=40), Darcy(points=8, samples=16)]
    return [*signals, *series, Text(text)]


def gap(task, preset, seed):
    torch.manual_seed(seed)
    model = build_continuous(task.form, preset).eval()
    batch = task.training_batch(4, 0, 0)
    with torch.no_grad():
        own, fine = (call_model(model.at(steps=n * preset.steps), batch).output for n in (1, 8))
    return float((own - fine).norm() / fine.norm())


@pytest.mark.slow
def test_new_models_of_all_presets_are_resolved(tasks, unchecked):
    gaps = {}
    for task in tasks:
        flows = {dataclasses.replace(p, updates=1): None for p in presets_of(task).values()}  # updates build no flow
        gaps |= {(task.name, p): [gap(task, p, seed) for seed in range(2)] for p in flows}
    assert len(gaps) >= 8 and {key: worst for key, worst in gaps.items() if max(worst) >= RESOLVED} == {}


def test_rough_modes_and_small_tokens_are_what_a_few_steps_do_not_resolve():
    preset = next(iter(presets_of(Mnist1d()).values()))
    assert gap(Mnist1d(), dataclasses.replace(preset, mode_ratio=1.0), 0) > 2 * RESOLVED


def test_tokens_start_at_unit_variance(tasks):
    for task in tasks:
        model = build_continuous(task.form, next(iter(presets_of(task).values())))
        cloud = model.embedding(*task.training_batch(4, 0, 0).inputs)
        points = cloud.points if cloud.present is None else cloud.points[cloud.present]
        deviations = points.std(-1, correction=0)
        torch.testing.assert_close(deviations, torch.ones_like(deviations), rtol=0.01, atol=0.0)


def test_energy_is_a_running_cost_of_the_objective():
    task, preset = Digits(), Preset(8, 2, 16)
    model = build_continuous(task.form, preset)
    batch = task.training_batch(4, 0, 0)
    plain, paid = objective_of(task.form)(model, batch), objective_of(task.form, energy=0.5)(model, batch)
    (energy,) = paid.running.values()
    assert plain.running == {} and torch.equal(plain.terminal, paid.terminal) and energy > 0
    torch.testing.assert_close(paid.total, paid.terminal + 0.5 * energy)
    asking = objective_of(Spirals(samples=40).form, energy=0.5)
    assert asking.weights == (0.5,) and isinstance(asking.costs[0], KineticEnergy)


def test_jitter_moves_the_inner_depths_of_the_grid_within_half_a_step():
    task, preset = Digits(), Preset(8, 2, 16, steps=3, depth=1.5)
    model = build_continuous(task.form, preset)
    learner, grids = Learner("one", model, objective_of(task.form), adamw(model, 1e-3, 0.0, (0.9, 0.98))), []
    for seed in range(20):
        grid = learner._grid(Plan(1, 1, jitter=0.6), seed)
        found = call_model(model, task.training_batch(2, 0, 0), grid=grid)
        assert found.solution.stats.grid == grid
        grids.append(torch.tensor(grid))
    assert learner._grid(Plan(1, 1), 0) is None
    moved = torch.stack(grids) - torch.tensor([0.0, 0.5, 1.0, 1.5])
    assert bool((moved[:, [0, 3]].abs() < 1e-6).all()) and float(moved.abs().max()) <= 0.5 * 0.6 * 0.5 + 1e-6
    assert bool((moved[:, 1:3].std(0) > 0.05).all())
