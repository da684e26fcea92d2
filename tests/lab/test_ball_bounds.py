"""Constants on balls and of AdamW: what they bound is not empty, and what breaks the map passes them."""

import pytest
import torch

from continua.lab import UpdateRule, ball_bounds
from continua.lab.ball_bounds import MAPS, BallStretch
from continua.lab.derivatives import Pullback, pullback
from continua.lab.training import update_stretch
from continua.lab.training.problem import Problem
from continua.lab.training.update_stretch import UpdateStretch
from continua.operators import AttentionTheta

pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.mark.parametrize("kind", MAPS)
def test_a_search_comes_near_to_the_constant_and_not_beyond(kind):
    found = BallStretch(kind, 0.1, 24, 25).measure()["found"]
    assert 0.3 < found <= 1.0


@pytest.mark.parametrize("kind", ["adjoint", "gradient"])
def test_a_pullback_that_is_three_times_too_large_passes_its_bound(kind, monkeypatch):
    def wrong(*given):
        points, theta = pullback(*given)
        return Pullback(3.0 * points, AttentionTheta(*(3.0 * w for w in (theta.q, theta.k, theta.v, theta.o))))

    monkeypatch.setattr(ball_bounds, "pullback", wrong)
    assert BallStretch(kind, 0.1, 24, 25).measure()["found"] > 1.0


@pytest.mark.parametrize("blockwise", [False, True])
def test_updates_stretch_gradients_by_no_more_than_lemma_44_and_nearly_by_that(blockwise, monkeypatch):
    cell = UpdateStretch(UpdateRule(blockwise=blockwise), 4, 12, 20)
    row = cell.measure()
    assert 0.8 < row["found"] <= 1.0 and row["parity"] < 1e-15
    monkeypatch.setattr(update_stretch, "update_bound", lambda betas, k: -0.5)
    assert cell.measure()["found"] > 1.0


def test_heads_along_a_curve_are_read_between_its_nodes():
    problem = Problem(atoms=8, curve=True, width=3, key=2)
    places, law = problem.draw_atoms(2, 3, 4, 0), problem.law()
    for found, nodes in zip(problem.heads_at(places), (law.q, law.k, law.v, law.o), strict=True):
        torch.testing.assert_close(problem.read_atoms(nodes.expand(2, -1, -1, -1), places), found, rtol=0, atol=1e-14)
    at_nodes = problem.read_atoms(law.q.expand(2, -1, -1, -1), problem.all_atoms(2))
    torch.testing.assert_close(at_nodes[:, 0], law.q.expand(2, -1, -1, -1), rtol=0, atol=1e-14)


def test_fresh_data_differ_from_update_to_update_and_others_do_not():
    assert bool((Problem(fresh=True).start(0) != Problem(fresh=True).start(1)).all())
    assert bool((Problem().targets(0) == Problem().targets(1)).all())
