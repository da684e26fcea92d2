"""Clipping by norm: torch's numbers, and the names of gradients that are not finite."""

import copy
import math

import pytest
import torch
from torch import nn

from continua.optim import clip_gradients


def graded(seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for p in module.parameters():
        p.grad = 3.0 * torch.randn(p.shape)
    return module


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_it_equals_torch(limit):
    ours = graded()
    theirs = copy.deepcopy(ours)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        q.grad = p.grad.clone()
    norm = clip_gradients(ours, limit)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_named(bad):
    module = graded()
    module[1].weight.grad[0, 0] = bad
    kept = module[0].weight.grad.clone()
    with pytest.raises(ValueError, match=r"gradients = '1\.weight': they are not finite"):
        clip_gradients(module, 1.0)
    with pytest.raises(ValueError, match=r"1\.weight"):
        clip_gradients(module, math.inf)
    assert torch.equal(module[0].weight.grad, kept)


def test_without_gradients_the_norm_is_zero():
    assert float(clip_gradients(nn.Linear(2, 2), 1.0)) == 0.0
    with pytest.raises(ValueError, match="limit = 0"):
        clip_gradients(nn.Linear(2, 2), 0.0)
