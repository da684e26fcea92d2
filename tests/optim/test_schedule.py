"""CosineDecay with warm-up, in updates, tokens or seconds."""

import pytest
import torch
from torch import nn

from continua.optim import BlockwiseAdamW, CosineDecay, Recipe, Schedule, by_seconds, by_tokens, by_updates, use

CURVE = CosineDecay(warmup=4, total=20)


def optimiser():
    return Recipe(vectors=use(BlockwiseAdamW, lr=5e-4)).build(nn.Linear(2, 2))


def test_in_updates_it_is_torchs_lambda_scheduler():
    ours, theirs = optimiser(), optimiser()
    one, other = Schedule(ours, CURVE), torch.optim.lr_scheduler.LambdaLR(theirs, CURVE.factor)
    for _ in range(25):
        assert one.get_last_lr() == pytest.approx(other.get_last_lr(), rel=1e-12)
        for o, s in ((ours, one), (theirs, other)):
            o.step()
            s.step()


def test_the_cosine_is_torchs():
    parameters = [nn.Parameter(torch.zeros(1))]
    ours, theirs = (torch.optim.SGD(parameters, lr=1.0) for _ in range(2))
    one = Schedule(ours, CosineDecay(0, 20, min_lr_ratio=0.1))
    other = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, 20, eta_min=0.1)
    for _ in range(20):
        for o, s in ((ours, one), (theirs, other)):
            o.step()
            s.step()
        assert one.get_last_lr() == pytest.approx(other.get_last_lr(), rel=1e-9)


def test_tokens_and_seconds_are_other_clocks_for_one_curve():
    now = iter([0.0, 3.0, 3.0, 10.0, 10.0, 12.0, 12.0])
    seconds = Schedule(optimiser(), CURVE, by_seconds, now=lambda: next(now))
    tokens = Schedule(optimiser(), CURVE, by_tokens)
    for amount, spent in ((3, 3.0), (7, 10.0), (2, 12.0)):
        seconds.step()
        tokens.step(amount)
        assert seconds.spent == tokens.spent == spent
        assert seconds.get_last_lr() == tokens.get_last_lr()
        assert tokens.get_last_lr()[0] == pytest.approx(1e-3 * CURVE.factor(spent))
    with pytest.raises(ValueError, match="counts tokens"):
        tokens.step()


def test_it_resumes_with_its_optimiser():
    whole, half = optimiser(), optimiser()
    one, other = Schedule(whole, CURVE), Schedule(half, CURVE)
    for _ in range(9):
        one.step()
    for _ in range(5):
        other.step()
    saved = other.state_dict(), half.state_dict()
    resumed = optimiser()
    resumed.load_state_dict(saved[1])
    schedule = Schedule(resumed, CURVE, by_updates)
    schedule.load_state_dict(saved[0])
    for _ in range(4):
        schedule.step()
    assert schedule.get_last_lr() == one.get_last_lr()
    with pytest.raises(ValueError, match="groups"):
        Schedule(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), CURVE).load_state_dict(saved[0])


def test_the_curve_rises_then_falls_and_stays():
    values = [CURVE.factor(t) for t in range(30)]
    assert values[0] == 0.01 and values[4] == 1.0 and values[20:] == pytest.approx([0.1] * 10)
    assert values[:5] == sorted(values[:5]) and values[4:21] == sorted(values[4:21], reverse=True)


@pytest.mark.parametrize(("wrong", "words"), [((5, 5), "warmup = 5"), ((0, 5, 1.5), "min_lr_ratio = 1.5")])
def test_wrong_curves_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        CosineDecay(*wrong)
