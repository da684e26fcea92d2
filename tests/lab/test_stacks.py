"""Stacks of layers: the language that needs no file, and measures of smoothness against closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch

from continua.data import Split
from continua.lab.stacks.cells import TrainedStack
from continua.lab.stacks.language import Lexicon
from continua.lab.stacks.smoothness import count_clusters, distance_to_smooth, layer_weights, roughness, turning
from continua.lab.variations.action import SPHERE

pytestmark = pytest.mark.usefixtures("unchecked_module")


def test_a_model_that_knows_the_lexicon_cannot_beat_its_entropy():
    task = Lexicon(words=12, characters=60_000)
    text = "".join(map(chr, (97 + task.batch(Split.VALIDATION, torch.arange(task.count(Split.VALIDATION))).inputs[0])
                       .flatten().tolist()))  # fmt: skip
    words = text.replace(chr(97 + 26), " ").split()[1:-1]
    # the frequencies of pairs are an empirical model with hindsight: its loss is the entropy, up to what hindsight wins
    pairs, firsts = {}, {}
    for a, b in itertools.pairwise(words):
        pairs[a, b], firsts[a] = pairs.get((a, b), 0) + 1, firsts.get(a, 0) + 1
    nats = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items())
    assert nats / sum(len(word) + 1 for word in words) == pytest.approx(task.entropy, rel=0.1)


def test_layers_in_no_order_have_roughness_one_and_their_mean_over_all_orders_is_exactly_one():
    layers = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = [roughness(layers[list(order)]) for order in itertools.permutations(range(5))]
    assert np.mean(found) == pytest.approx(1.0, rel=1e-12) and np.std(found) > 0.05
    near = [distance_to_smooth(layers[list(order)]) for order in itertools.permutations(range(5))]
    assert np.mean([own**2 for own, _ in near]) == pytest.approx(near[0][1] ** 2, rel=1e-12)


def test_a_smooth_field_has_roughness_of_second_order_and_no_distance():
    waves = [torch.cos(math.pi * (torch.arange(L, dtype=torch.float64) + 0.5) / L)[:, None] for L in (32, 64)]
    few, many = map(roughness, waves)
    assert few / many == pytest.approx(4.0, rel=0.05)
    assert distance_to_smooth(waves[0])[0] < 1e-12


def test_a_great_circle_does_not_turn_and_independent_steps_turn_by_the_root_of_two():
    angle = torch.linspace(0, 1, 65, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin(), 0 * angle], -1)[:, None, None]
    assert turning(circle) < 1e-12
    steps = 1e-3 * torch.randn(4000, 1, 1, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    walk = SPHERE.project(torch.eye(50, dtype=torch.float64)[0] + steps.cumsum(0))
    assert turning(walk) == pytest.approx(math.sqrt(2), abs=0.05)


def test_clusters_are_chains_of_tokens():
    angles = torch.tensor([[0.0, 0.3, 0.6, 2.0, 2.2, 4.0]], dtype=torch.float64)
    path = torch.stack([angles.cos(), angles.sin()], -1)[None]
    assert count_clusters(path) == [3.0]


def test_four_layers_are_the_same_with_and_without_scaling_and_an_equal_start_is_equal():
    stacks = {way: TrainedStack(way, 4, 0, 1, 16, 16, 2, 2) for way in ("layers", "scaled", "scaled, equal start")}
    models = {way: cell.build(cell.task()) for way, cell in stacks.items()}
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        torch.testing.assert_close(models["layers"](tokens), models["scaled"](tokens), rtol=0, atol=0)
    assert float(layer_weights(models["scaled, equal start"]).var(0).max()) == 0.0
    assert float(layer_weights(models["layers"]).var(0).min()) > 0.0
