"""Saboteurs: each breaks, in the code, what an experiment measures, and the verdict must be `fails`."""

import dataclasses

import pytest

from continua.lab import AdamWCompactness, AttentionLipschitz, PostNormLimit, UpdateRule, Word, depth_limit, lipschitz
from continua.lab.training.compactness import _judge_end
from continua.lab.verdicts import all_of
from continua.spaces import Cloud

pytestmark = pytest.mark.usefixtures("unchecked")


def tilt_attention(monkeypatch):
    """Queries three times as long as they are said to be."""
    plain = lipschitz.softmax_mean
    monkeypatch.setattr(lipschitz, "softmax_mean", lambda q, cloud, beta: plain(3.0 * q, Cloud(cloud.points), beta))


def forget_projection(monkeypatch):
    """Layers that are called normalised, and are not."""
    monkeypatch.setattr(depth_limit, "Projected", lambda stepper, manifold, tangent=False: stepper)


SABOTEURS = [
    (AttentionLipschitz(powers=(1.0,), tilts=(0.1,), pairs=16, ascent=10, tokens=8), tilt_attention),
    (PostNormLimit(scales=(2.0, 3.0), layers=16, starts=8, updates=0), forget_projection),
]


@pytest.mark.parametrize(("experiment", "sabotage"), SABOTEURS, ids=lambda x: getattr(x, "name", ""))
def test_what_is_broken_fails(experiment, sabotage, monkeypatch):
    assert experiment.run().judgement.word is Word.HOLDS
    sabotage(monkeypatch)
    assert experiment.run().judgement.word is Word.FAILS


def climb_uphill(rule, parameters):
    """Training that goes the other way; the residual is that of the true gradient."""
    optimiser = BUILD(rule, parameters)

    def turn_round(*_):
        for w in parameters:
            w.grad.neg_()

    optimiser.register_step_pre_hook(turn_round)
    return optimiser


def push_out(rule, parameters):
    """Parameters that decay five times more slowly than they are said to."""
    return BUILD(dataclasses.replace(rule, weight_decay=0.2 * rule.weight_decay), parameters)


BUILD = UpdateRule.build


@pytest.mark.parametrize("build", [BUILD, climb_uphill, push_out])
def test_ends_of_training_that_are_no_kkt_points_fail(build, monkeypatch):
    monkeypatch.setattr(UpdateRule, "build", build)
    cell = AdamWCompactness(settle=300).cells()[5]  # balls, b = (0.9, 0.9)
    word = all_of(*_judge_end(cell.measure()).judgements).word
    assert word is (Word.HOLDS if build is BUILD else Word.FAILS)
