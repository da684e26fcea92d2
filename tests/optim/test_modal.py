"""AdamW in the eigenbasis of the modes: its formula written out with numpy and scipy, and what follows from it."""

import copy
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from continua.optim import BlockwiseAdamW, Composite, ModalAdamW, Recipe, use
from continua.spaces import FlatSpace, SpectralSpace

SHAPE = (4, 3, 2, 5)
LR, BETAS, EPS, DECAY, INTERVAL = 1e-2, (0.8, 0.95), 1e-8, 0.1, 3


def gradients(shape, updates, seed=0):
    """Correlated along both axes of modes, so that eigenvalues are far apart."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        g = torch.randn(shape, generator=generator, dtype=torch.float64)
        for axis in (-4, -3):
            n = shape[axis]
            mix = torch.linspace(1.0, 2.0, n * n, dtype=torch.float64).view(n, n).cos() + 2.0 * torch.eye(n)
            g = torch.tensordot(g, mix, dims=([axis], [0])).movedim(-1, axis)
        yield g


def start(shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def updated(make, grads, theta):
    p = nn.Parameter(theta.clone())
    optimiser = make([p])
    for g in grads:
        p.grad = g.clone()
        optimiser.step()
    return p.detach()


def modal(**options):
    numbers = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "interval": INTERVAL}
    return lambda p: ModalAdamW(p, **{**numbers, **options})


def reference(grads, theta, axis):
    """One weight, axis by axis with numpy, bases by scipy: docs/mathematics.md, section 7."""
    (b1, b2), theta = BETAS, np.moveaxis(theta.numpy().copy(), axis, 0)
    n = theta.shape[0]
    q, statistics, m, v = np.eye(n), np.zeros((n, n)), np.zeros_like(theta), np.zeros_like(theta)
    along = lambda matrix, x: np.einsum("ai,i...->a...", matrix, x)  # noqa: E731
    for k, g in enumerate(grads, start=1):
        g = np.moveaxis(g.numpy(), axis, 0)
        if (k - 1) % INTERVAL == 0:
            unfolded, times = g.reshape(n, -1), (k - 1) // INTERVAL + 1
            weight = max(1 / times, 0.05)
            statistics = (1 - weight) * statistics + weight * unfolded @ unfolded.T
            new = scipy.linalg.eigh(statistics)[1]
            turn = new.T @ q
            m, v, q = along(turn, m), along(turn**2, v), new
        r = along(q.T, g)
        m, v = b1 * m + (1 - b1) * r, b2 * v + (1 - b2) * r**2
        step = (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + EPS)
        theta = (1 - LR * DECAY) * theta - LR * along(q, step)
    return torch.from_numpy(np.moveaxis(theta, 0, axis).copy())


@pytest.mark.parametrize("axis", [-4, -3])
def test_it_is_the_formula(axis):
    grads, theta = list(gradients(SHAPE, 11)), start(SHAPE)
    ended = updated(modal(axis=axis), grads, theta)
    torch.testing.assert_close(ended, reference(grads, theta, axis), rtol=1e-11, atol=1e-12)
    assert float((ended - theta).abs().max()) > LR


@pytest.mark.parametrize("axis", [-4, -3])
def test_axes_before_the_last_four_count_weights_of_their_own(axis):
    shape = (2, 3, *SHAPE)
    grads, theta = list(gradients(shape, 5)), start(shape)
    together = updated(modal(axis=axis), grads, theta)
    for a in range(2):
        for b in range(3):
            alone = updated(modal(axis=axis), [g[a, b] for g in grads], theta[a, b])
            torch.testing.assert_close(together[a, b], alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("axis", [-4, -3])
def test_modes_written_in_another_basis_move_alike(axis):
    """theta in the basis O is O theta, so gradients are O g; AdamW, which sees entries, does not have this."""
    grads, theta = list(gradients(SHAPE, 11)), start(SHAPE)
    rotation, _ = torch.linalg.qr(start((SHAPE[axis], SHAPE[axis]), seed=8))

    def written(x):
        return torch.tensordot(x, rotation, dims=([axis], [1])).movedim(-1, axis)

    rotated = [written(g) for g in grads]
    ended, there = updated(modal(axis=axis), grads, theta), updated(modal(axis=axis), rotated, written(theta))
    torch.testing.assert_close(there, written(ended), rtol=1e-9, atol=1e-10)
    adamw = lambda p: BlockwiseAdamW(p, lr=LR, betas=BETAS)  # noqa: E731
    gap = updated(adamw, rotated, written(theta)) - written(updated(adamw, grads, theta))
    assert float(gap.abs().max()) > LR


def test_one_mode_is_adamw():
    shape = (1, 3, 2, 5)
    grads, theta = list(gradients(shape, 11)), start(shape)
    p = nn.Parameter(theta.clone())
    torchs = torch.optim.AdamW([p], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for g in grads:
        p.grad = g.clone()
        torchs.step()
    torch.testing.assert_close(updated(modal(), grads, theta), p.detach(), rtol=1e-12, atol=1e-13)


def test_with_one_basis_it_is_adamw_in_that_basis():
    """Between two bases: torch's AdamW on Q^T theta, Q from the first gradient, without decay of other coordinates."""
    grads, theta = list(gradients(SHAPE, 9)), start(SHAPE)
    unfolded = grads[0].reshape(SHAPE[0], -1)
    q = torch.from_numpy(scipy.linalg.eigh((unfolded @ unfolded.T).numpy())[1])
    turned = nn.Parameter(torch.einsum("ia,ijoc->ajoc", q, theta))
    torchs = torch.optim.AdamW([turned], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for g in grads:
        turned.grad = torch.einsum("ia,ijoc->ajoc", q, g)
        torchs.step()
    ended = updated(modal(interval=1000), grads, theta)
    torch.testing.assert_close(ended, torch.einsum("ia,ajoc->ijoc", q, turned.detach()), rtol=1e-11, atol=1e-12)


def test_a_parameter_that_is_not_contiguous_is_updated_too():
    grads, theta = list(gradients(SHAPE, 4)), start(SHAPE)
    laid = theta.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    p = nn.Parameter(laid)
    assert not p.is_contiguous()
    optimiser = modal()([p])
    for g in grads:
        p.grad = g.clone()
        optimiser.step()
    assert not p.is_contiguous()
    torch.testing.assert_close(p.detach(), updated(modal(), grads, theta), rtol=1e-12, atol=1e-13)


def test_correlated_modes_converge_faster_than_by_adamw():
    """A quadratic of condition 1e4, diagonal in another basis of modes: each at its best of four rates."""
    n = 8
    q, _ = torch.linalg.qr(start((n, n), seed=3))
    root = torch.logspace(0, -2, n, dtype=torch.float64)[:, None] * q.mT
    star = start((n, 2, 3, 2), seed=4)

    def left_of(make):
        p = nn.Parameter(torch.zeros_like(star))
        optimiser = make([p])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 1.0 - k / 200)
        for _ in range(200):
            optimiser.zero_grad()
            loss = torch.einsum("ai,ijoc->ajoc", root, p - star).square().mean()
            loss.backward()
            optimiser.step()
            schedule.step()
        return float(loss.detach())

    rates = (1e-2, 3e-2, 1e-1, 3e-1)
    ours = min(left_of(lambda p, lr=lr: ModalAdamW(p, lr=lr, weight_decay=0.0)) for lr in rates)
    adamw = min(left_of(lambda p, lr=lr: BlockwiseAdamW(p, lr=lr, weight_decay=0.0)) for lr in rates)
    assert ours < 1e-3 * adamw


def test_what_is_not_finite_is_seen_in_the_parameters_as_with_adamw():
    p = nn.Parameter(start(SHAPE))
    p.grad = torch.full(SHAPE, math.nan, dtype=torch.float64)
    ModalAdamW([p]).step()
    assert bool(p.isnan().all())


def test_the_recipe_gives_it_all_spectral_weights():
    from continua.fields import Constant
    from continua.operators import Convolution, FeedForward, Spectral
    from continua.spaces import Axis, Cosine

    for kernel in (Spectral(Axis(5, 2), Cosine(3)), Convolution(Axis(5, 2), 2)):
        field = Constant(FeedForward(4, kernel=kernel).spec(10))
        recipe = Recipe()
        members = recipe.build(field).members.values()
        modal_ones = [m for m in members if isinstance(m, ModalAdamW)]
        assert [len(m.param_groups[0]["params"]) for m in modal_ones] == [2] and modal_ones[0].whole
        assert len(recipe.whole(field)) == 2
        assert not Recipe(spectral=use(BlockwiseAdamW)).whole(field)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interval": 0}, "interval = 0: .*whole number.*Pass interval >= 1"),
        ({"axis": -2}, "axis = -2: .*Pass -4 or -3"),
        ({"space": FlatSpace(2)}, "ModalAdamW serves SpectralSpace"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] = 1.0"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ModalAdamW([nn.Parameter(torch.zeros(SHAPE))], **options)


def test_groups_have_intervals_and_axes_of_their_own():
    grads, theta = list(gradients(SHAPE, 7)), start(SHAPE)
    first, second = nn.Parameter(theta.clone()), nn.Parameter(theta.clone())
    optimiser = modal()([{"params": [first]}, {"params": [second], "interval": 2, "axis": -3}])
    for g in grads:
        first.grad, second.grad = g.clone(), g.clone()
        optimiser.step()
    assert torch.equal(first.detach(), updated(modal(), grads, theta))
    assert torch.equal(second.detach(), updated(modal(interval=2, axis=-3), grads, theta))
    assert not torch.equal(second.detach(), updated(modal(axis=-3), grads, theta))
    for name, value in (("interval", 0), ("interval", 1.5), ("axis", -2)):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            optimiser.add_param_group({"params": [nn.Parameter(theta.clone())], name: value})


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a composite"])
def test_a_state_of_another_axis_is_refused(wrapped):
    """With as many modes along both axes all shapes agree, and only the axis tells."""
    shape = (3, 3, 2, 5)
    (g,) = gradients(shape, 1)

    def optimiser(axis):
        p = nn.Parameter(start(shape))
        p.grad = g.clone()
        made = ModalAdamW([p], axis=axis)
        return Composite({"modes": made}) if wrapped else made

    saved = optimiser(-4)
    saved.step()
    other = optimiser(-3)
    with pytest.raises(ValueError, match=r"\['axis'\] = -4: the optimiser turns axis -3"):
        other.load_state_dict(saved.state_dict())
    assert not other.state
    again = optimiser(-4)
    again.load_state_dict(saved.state_dict())
    assert torch.equal(again.state[again.param_groups[0]["params"][0]]["m"], saved.state_dict()["state"][0]["m"])


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a composite"])
def test_it_goes_on_between_two_bases_and_a_state_of_another_axis_is_refused(wrapped):
    grads = list(gradients((3, 3, 2, 5), 4))

    def optimiser(axis=-4):
        p = nn.Parameter(start((3, 3, 2, 5)))
        made = ModalAdamW([p], axis=axis, interval=3)
        return p, Composite({"modes": made}) if wrapped else made

    def step(p, made, g):
        p.grad = g.clone()
        made.step()

    p, saved = optimiser()
    for g in grads[:2]:
        step(p, saved, g)
    old = saved.state_dict()
    q, again = optimiser()
    with torch.no_grad():
        q.copy_(p)
    again.load_state_dict(copy.deepcopy(old))
    assert (again.param_groups[0]["axis"], again.param_groups[0]["interval"]) == (-4, 3)
    for g in grads[2:]:
        step(p, saved, g)
        step(q, again, g)
    assert torch.equal(p, q)
    with pytest.raises(ValueError, match=r"\['axis'\] = -4: the optimiser turns axis -3"):
        optimiser(-3)[1].load_state_dict(old)
    old["param_groups"] = [{k: v for k, v in g.items() if k != "axis"} for g in old["param_groups"]]
    with pytest.raises(ValueError, match=r"\['axis'\] = None: the optimiser turns axis -4"):
        optimiser()[1].load_state_dict(old)


def test_multipliers_have_frequencies_as_their_modes():
    shape = (4, 2, 3, 3)
    grads, theta = list(gradients(shape, 7)), start(shape)
    ended = updated(modal(space=SpectralSpace(paired=True)), grads, theta)
    torch.testing.assert_close(ended, reference(grads, theta, -4), rtol=1e-11, atol=1e-12)


def test_complex_weights_are_refused():
    p = nn.Parameter(torch.zeros(SHAPE, dtype=torch.complex128))
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="that of real weights"):
        ModalAdamW([p]).step()
