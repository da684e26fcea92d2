"""Blockwise AdamW: torch's AdamW for single entries, and what one second moment a matrix means."""

import copy

import pytest
import torch
from torch import nn

from continua.optim import BlockwiseAdamW, Entrywise, Frobenius, RiemannianAdam
from continua.spaces import FlatSpace, StiefelSpace

SHAPES = [(3, 4), (5,), (), (2, 3, 4)]


def parameters(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def descend(optimiser, params, steps, seed=1, missing=False):
    """The same random gradients for all, of very different sizes; every third one missing where asked."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for place, p in enumerate(params):
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.grad = None if missing and (step + place) % 3 == 0 else noise * 10.0 ** (place - 2) + 0.1 * p.detach()
        optimiser.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("missing", [False, True], ids=["every gradient", "some missing"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_with_single_entries_it_is_the_adamw_of_torch(dtype, missing, decay):
    ours, theirs = parameters(dtype), parameters(dtype)
    settings = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": decay}
    descend(BlockwiseAdamW(ours, **settings), ours, 100, missing=missing)
    descend(torch.optim.AdamW(theirs, **settings), theirs, 100, missing=missing)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_defaults_are_those_of_torch():
    ours, theirs = parameters(), parameters()
    descend(BlockwiseAdamW(ours), ours, 20)
    descend(torch.optim.AdamW(theirs), theirs, 20)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_matrices_have_one_second_moment_each():
    p = nn.Parameter(torch.randn(2, 3, 4))
    optimiser = BlockwiseAdamW([p], block=Frobenius(), space=FlatSpace(2))
    p.grad = torch.randn(2, 3, 4)
    optimiser.step()
    assert optimiser.state[p]["v"].shape == (2, 1, 1)
    expected = 1e-3 * p.grad.square().sum((-2, -1), keepdim=True)
    torch.testing.assert_close(optimiser.state[p]["v"], expected)
    assert optimiser.defaults["lr"] == Frobenius().rate > Entrywise().rate


@pytest.mark.parametrize("shape", [(6, 1, 1), (6, 1)])
def test_blocks_of_one_entry_are_single_entries(shape):
    blocks, entries = (nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).view(shape)) for _ in range(2))
    settings = {"lr": 0.02, "weight_decay": 0.1}
    space = FlatSpace(len(shape) - 1)
    descend(BlockwiseAdamW([blocks], block=Frobenius(), space=space, **settings), [blocks], 50)
    descend(BlockwiseAdamW([entries], **settings), [entries], 50)
    torch.testing.assert_close(blocks, entries, rtol=1e-12, atol=1e-12)


def test_the_matrix_norm_does_not_see_rotations():
    """theta -> Q theta commutes with training on rotated gradients; entry by entry it does not."""
    generator = torch.Generator().manual_seed(3)
    q = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0]
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    grads = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(20)]
    gaps = {}
    for block in (Frobenius(), Entrywise()):
        plain, turned = nn.Parameter(start.clone()), nn.Parameter(q @ start)
        for p, turn in ((plain, torch.eye(4, dtype=torch.float64)), (turned, q)):
            optimiser = BlockwiseAdamW([p], lr=0.1, block=block, space=FlatSpace(2))
            for g in grads:
                p.grad = turn @ g
                optimiser.step()
        gaps[type(block).__name__] = float((q @ plain - turned).detach().abs().max())
    assert gaps["Frobenius"] < 1e-12 and gaps["Entrywise"] > 1e-2


def test_updates_of_a_matrix_are_smaller_by_the_root_of_its_size():
    p, q = (nn.Parameter(torch.zeros(20, 30, dtype=torch.float64)) for _ in range(2))
    g = torch.randn(20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).sign()
    p.grad = q.grad = g
    BlockwiseAdamW([p], lr=1.0, block=Frobenius(), space=FlatSpace(2)).step()
    BlockwiseAdamW([q], lr=1.0).step()
    torch.testing.assert_close(p * 600**0.5, q, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_riemannian_adam_on_euclidean_space_is_blockwise_adam(dtype):
    ours = [nn.Parameter(p.detach().clone()) for p in parameters(dtype) if p.ndim >= 2]
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.02, "betas": (0.8, 0.95), "space": FlatSpace(2)}
    descend(RiemannianAdam(ours, **settings), ours, 100, missing=True)
    descend(BlockwiseAdamW(theirs, block=Frobenius(), weight_decay=0.0, **settings), theirs, 100, missing=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"betas": (1.0, 0.9)}, "betas\\[0\\] = 1.0"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"eps": -1.0}, "eps = -1.0"),
    ],
)
def test_wrong_numbers_are_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        BlockwiseAdamW(parameters(), **wrong)


def test_a_space_it_does_not_serve_is_refused(unchecked):

    with pytest.raises(ValueError, match="BlockwiseAdamW serves AbstractFlatSpace"):
        BlockwiseAdamW([nn.Parameter(torch.ones(2) / 2)], space=StiefelSpace())


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        BlockwiseAdamW(table.parameters()).step()


def test_without_a_space_the_last_axes_of_each_parameter_are_its_block():
    """Matrices, their stacks, vectors and numbers, each as with the space said; not AdamW at another rate."""
    told, untold = parameters(), parameters()
    descend(BlockwiseAdamW(untold, block=Frobenius()), untold, 20)
    groups = [BlockwiseAdamW([p], block=Frobenius(), space=FlatSpace(min(2, p.ndim))) for p in told]
    descend(_Each(groups), told, 20)
    for a, b in zip(untold, told, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    layer = nn.Linear(3, 4)
    optimiser = BlockwiseAdamW(layer.parameters(), block=Frobenius())
    layer(torch.randn(5, 3)).square().sum().backward()
    optimiser.step()
    assert [tuple(optimiser.state[p]["v"].shape) for p in (layer.weight, layer.bias)] == [(1, 1), (1,)]
    assert copy.deepcopy(optimiser).blocks == optimiser.blocks == FlatSpace(2)


class _Each:
    """One update of each."""

    def __init__(self, optimisers):
        self.optimisers = optimisers

    def step(self):
        for optimiser in self.optimisers:
            optimiser.step()
