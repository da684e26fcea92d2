"""Every experiment at its quick size, or its cells at smaller ones: plain data, figures, a verdict that is computed."""

import dataclasses
import json
import math

import numpy as np
import ot
import pytest
import torch

from continua.cli.lab import EXPERIMENTS
from continua.lab import (
    AdamWCompactness,
    AdamWLimit,
    AttentionLipschitz,
    Clusters,
    DepthLimit,
    DimensionFree,
    Finished,
    LionsDerivative,
    Local,
    MeanField,
    Mnist1dCeiling,
    PostNorm,
    RMSScaling,
    SDEScaling,
    Shelf,
)
from continua.lab.depth_limit import EulerGap, distance, smooth_flow, solved
from continua.lab.lipschitz import wasserstein
from continua.lab.mean_field import Sampled, limit_map
from continua.lab.sde_scaling import Walk
from continua.lab.sweep import silent
from continua.lab.training.problem import Problem
from continua.runs import from_plain, to_plain
from continua.solve import RK4, Euler

TINY = [
    DepthLimit(layers=(16, 32, 64), tokens=(4, 16), starts=8, ascent=4),
    AdamWLimit(
        (8, 16, 32),
        (1, 4),
        16,
        (0, 1),
        Problem(tokens=3, width=3, key=3, atoms=2, sequences=1, trained=1),
        (2, 4),
        4,
        2,
    ),
    AdamWCompactness(updates=80, settle=40, converge=16, seeds=2),
    DimensionFree(widths=(4, 8), layers=4, heads=2, seeds=3, updates=1),
    LionsDerivative(seeds=1),
    AttentionLipschitz(tilts=(0.5, 2.0), pairs=8, ascent=5),
    MeanField(tokens=(32, 64, 128), seeds=24, few=(4, 8, 16), draws=512),
    Clusters(((4, 1.0),), (0.5, 1.0), (1.0, 9.0), (2.0, 3.0, 4.0), (16,), seeds=1, film=2.0),
    RMSScaling(widths=(5, 12), layers=4, updates=2),
    PostNorm(scales=(2.0, 3.0), layers=8, starts=4),
    SDEScaling(layers=(8, 16, 32), seeds=256),
    Mnist1dCeiling(dropped=(0.0, 0.5), signals=20, part=20),
]
LONG = ("depth-limit", "adamw-limit", "adamw-compactness")
"""Their cells are long; shapes are checked where each kind of cell is tested alone, here and in `test_training`."""
KEYS = ["experiment", "claim", "source", "measured", "bound", "verdict", "seconds"]


def test_every_experiment_of_the_command_line_is_tested_here():
    assert [experiment.name for experiment in TINY] == list(EXPERIMENTS)
    assert all(type(EXPERIMENTS[e.name]) is type(e) is type(EXPERIMENTS[e.name].quick()) for e in TINY)


@pytest.mark.parametrize("experiment", TINY, ids=lambda e: e.name)
def test_an_experiment_leaves_plain_data_figures_and_a_verdict(experiment, request):
    if experiment.name in LONG:
        request.getfixturevalue("unchecked")
    finished = Finished.of(experiment, silent, Local(1), Shelf())
    record = json.loads(json.dumps(finished.record(), allow_nan=False))
    assert list(record) == KEYS
    assert record["experiment"] == experiment.name
    assert record["verdict"] in ("holds", "inconclusive", "fails") and record["measured"]["reason"]
    assert record["verdict"] != "fails", record["measured"]["reason"]
    section = finished.section("continua lab run")
    assert len(section.figures) >= 2 and section.formula and section.verdict is not None
    again = from_plain(json.loads(json.dumps(to_plain(section))))
    assert again.heading == experiment.name and len(again.figures) == len(section.figures)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_wasserstein_distances_are_those_of_sorted_points_on_a_line(p):
    x, y = torch.rand(2, 3, 5, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gaps = (x.sort(1).values - y.sort(1).values).abs()[..., 0]
    wanted = gaps.amax(-1) if math.isinf(p) else gaps.pow(p).mean(-1).pow(1 / p)
    torch.testing.assert_close(wasserstein(x, y, p), wanted, rtol=1e-9, atol=1e-12)


def test_wasserstein_distances_of_clouds_are_those_of_pot():
    x, y = torch.randn(2, 1, 6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = ot.emd2([], [], ot.dist(x[0].numpy(), y[0].numpy())) ** 0.5
    assert float(wasserstein(x, y, 2.0)) == pytest.approx(wanted, rel=1e-12)


def test_layers_converge_to_the_flow_at_first_order():
    flow, x = smooth_flow(4), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        exact = solved(flow, x, 16, RK4())
        gaps = [float(distance(solved(flow, x, L, Euler()), exact).max()) for L in (32, 64)]
    assert gaps[0] / gaps[1] == pytest.approx(2.0, abs=0.1)


def test_initial_conditions_that_climb_go_further_from_the_flow():
    drawn, climbed = (EulerGap(3, (4, 8), 4, width=3, ascent=n, fine=8).measure() for n in (0, 3))
    assert all(b > a for a, b in zip(drawn["mean"], climbed["mean"], strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_the_limit_of_sampled_tokens_does_not_depend_on_its_grid(causal):
    coarse, fine = limit_map(causal, 256), limit_map(causal, 512)
    assert float((coarse - fine[::2]).abs().max()) < (1e-3 if causal else 1e-12)


def test_causal_tokens_go_to_a_limit_of_their_own():
    row = Sampled(128, 8, True, grid=256).measure()
    assert np.mean(row["other"]) > 10 * np.mean(row["own"])


def test_heads_of_mean_zero_leave_tokens_where_they_are():
    few, many = (np.sqrt(np.mean(Walk(L, 512, 1.0).measure()["moved"])) for L in (16, 64))
    assert few / many == pytest.approx(2.0, abs=0.25)
    assert np.mean(Walk(16, 512, 0.5).measure()["moved"]) == pytest.approx(16 * few**2, rel=0.35)


def test_sizes_are_fields():
    for experiment in TINY:
        assert dataclasses.is_dataclass(experiment)
        assert all(cell.key() for cell in experiment.cells())


def test_a_ceiling_needs_all_samples_and_half_of_them():
    with pytest.raises(ValueError, match="about all samples and half"):
        Mnist1dCeiling(dropped=(0.0, 0.25))
