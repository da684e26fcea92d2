"""One bench for all optimisers: four targets, dtype, state shapes, resume, closures, schedulers, copies."""

import copy
import inspect
import io

import pytest
import torch
from torch import nn

from continua import optim
from optimisers import all_optimisers

each_case = pytest.mark.parametrize("case", all_optimisers.values(), ids=all_optimisers.keys())
SCALES = torch.logspace(0, -2, 60, dtype=torch.float64)


def quadratic(x, star):
    return (x - star).abs().square().mean()


def stretched(x, star):
    """Curvatures from 1 to 1/100."""
    d = (x - star).abs().square().flatten()
    return (SCALES[: d.numel()].to(d) * d).mean()


def robust(x, star):
    """Quadratic near the target, linear far from it."""
    return torch.log(torch.cosh((3.0 * (x - star)).abs())).mean()


def noisy(x, star):
    """A quadratic whose gradient has noise."""
    generator = torch.Generator().manual_seed(int(1e6 * abs(float(x.detach().flatten()[0].real))) % 2**31)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
    return quadratic(x, star) + 0.05 * (noise.conj() * x).real.mean()


TARGETS = {quadratic: 1e-3, stretched: 2e-2, robust: 1e-2, noisy: 2e-2}
"""Each with the share of its first value that must be left at most after 400 updates."""


def train(case, p, optimiser, target, steps):
    star = case.point(7, p.dtype)
    for _ in range(steps):
        case.before(optimiser, p)
        optimiser.zero_grad()
        target(case.read(p), case.read(star)).backward()
        optimiser.step()


@each_case
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.__name__)
def test_it_reaches_the_target(case, target, unchecked):
    p = nn.Parameter(case.point(1))
    star, judge = case.point(7), quadratic if target is noisy else target
    first = float(judge(case.read(p.detach()), case.read(star)))
    train(case, p, case.make([p]), target, 400)
    assert float(judge(case.read(p.detach()), case.read(star))) < TARGETS[target] * first
    assert float(case.space.defect(p.detach())) < 1e-12


@each_case
def test_dtype_and_state_shapes_stay(case):
    for dtype in case.dtypes:
        p = nn.Parameter(case.point(1, dtype))
        optimiser = case.make([p])
        train(case, p, optimiser, quadratic, 3)
        shapes = {k: (v.shape, v.dtype) for k, v in optimiser.state[p].items() if isinstance(v, torch.Tensor)}
        train(case, p, optimiser, quadratic, 3)
        assert p.dtype == dtype and bool(torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all())
        later = {k: (v.shape, v.dtype) for k, v in optimiser.state[p].items() if isinstance(v, torch.Tensor)}
        assert later == shapes
        real = {torch.complex128: torch.float64}.get(dtype, dtype)
        assert {kind for name, (_, kind) in shapes.items() if name != "step"} <= {dtype, real}


@each_case
def test_resumed_it_goes_on_as_if_never_stopped(case):
    """Through a file of tensors and numbers alone, the way a checkpoint is."""
    whole, half = (nn.Parameter(case.point(1)) for _ in range(2))
    train(case, whole, case.make([whole]), quadratic, 12)
    first = case.make([half])
    train(case, half, first, quadratic, 5)
    file = io.BytesIO()
    torch.save({"p": half.detach(), "optimiser": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = nn.Parameter(saved["p"].clone())
    second = case.make([resumed])
    second.load_state_dict(saved["optimiser"])
    train(case, resumed, second, quadratic, 7)
    assert torch.equal(resumed, whole)


@each_case
def test_copies_are_whole(case):
    p = nn.Parameter(case.point(1))
    optimiser = case.make([p])
    train(case, p, optimiser, quadratic, 3)
    holder = copy.deepcopy({"p": p, "optimiser": optimiser})
    train(case, p, optimiser, quadratic, 3)
    train(case, holder["p"], holder["optimiser"], quadratic, 3)
    assert torch.equal(p, holder["p"])


@each_case
def test_closures_groups_and_schedulers_of_torch(case):
    p, q = (nn.Parameter(case.point(1)) for _ in range(2))
    star = case.point(7)
    optimiser = case.make([{"params": [p]}, {"params": [q], "lr": 0.0}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 1.0 if k < 2 else 0.0)

    def closure():
        optimiser.zero_grad()
        loss = quadratic(p, star) + quadratic(q, star)
        loss.backward()
        return loss

    kept = []
    for _ in range(4):
        if isinstance(optimiser, optim.KFAC):
            eye = torch.eye(p.shape[-1], dtype=p.dtype)
            optimiser.observe(
                lambda eye=eye: nn.functional.linear(eye, p) + nn.functional.linear(eye, q), optim.Gaussian()
            )
        loss = optimiser.step(closure)
        schedule.step()
        kept.append(p.detach().clone())
    assert float(loss.detach()) > 0
    assert float((q.detach() - case.point(1)).abs().max()) < 1e-14
    assert not torch.equal(kept[1], case.point(1))
    # with rate 0 all stay where they are; dual averaging goes back to its start, from which it counts
    resting = case.point(1) if isinstance(optimiser, optim.DualAveraging) else kept[1]
    assert float((kept[3] - resting).abs().max()) < 1e-14


@each_case
def test_nothing_happens_without_gradients(case):
    p = nn.Parameter(case.point(1))
    case.make([p]).step()
    assert torch.equal(p.detach(), case.point(1))


def test_every_optimiser_is_here():
    kinds = {type(case.make([nn.Parameter(case.point(0))])) for case in all_optimisers.values()}
    offered = {
        c
        for c in vars(optim).values()
        if inspect.isclass(c) and issubclass(c, optim.AbstractOptimiser) and not inspect.isabstract(c)
    }
    assert kinds == offered


@each_case
def test_a_refused_group_does_not_stay(case):
    """Numbers of a group are checked as those of the constructor are."""
    optimiser = case.make([nn.Parameter(case.point(0))])
    for name, value in {"lr": -1.0, "betas": (1.5, 0.9), "eps": -1.0, "weight_decay": -0.1, "forget": 1.5}.items():
        if name in optimiser.defaults:
            with pytest.raises(ValueError, match=name):
                optimiser.add_param_group({"params": [nn.Parameter(case.point(1))], name: value})
    if case.space.axes > 0:
        with pytest.raises(ValueError, match="axes"):
            optimiser.add_param_group({"params": [nn.Parameter(torch.tensor(1.0))]})
    assert len(optimiser.param_groups) == 1
    optimiser.add_param_group({"params": [nn.Parameter(case.point(1))], "lr": 0.5})
    assert optimiser.param_groups[1]["lr"] == 0.5
