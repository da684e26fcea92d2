"""Sharded parameters: updated entry by entry as torch does, and refused where whole matrices are needed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from continua.fields import Constant
from continua.model import Flow, Part
from continua.operators import Attention, Dense, FeedForward
from continua.optim import BlockwiseAdamW, Frobenius, ModalAdamW, Recipe, RiemannianAdam, clip_gradients, use
from continua.spaces import FlatSpace


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """A mesh of one rank: parameters are DTensors as on many."""
    from torch.distributed.device_mesh import init_device_mesh

    meeting = tmp_path_factory.mktemp("mesh") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def flow():
    torch.manual_seed(0)
    heads, orthonormal = Attention(2, 3, head_masses=True), FeedForward(6, kernel=Dense(orthonormal=True))
    return Flow([Part(f, Constant(f.spec(6))) for f in (heads, orthonormal, FeedForward(4))])


def graded(module):
    generator = torch.Generator().manual_seed(1)
    for p in module.parameters():
        g = torch.randn(p.shape, generator=generator)
        if hasattr(p, "device_mesh"):
            from torch.distributed.tensor import distribute_tensor

            g = distribute_tensor(g, p.device_mesh, p.placements)
        p.grad = g
    return module


def test_whole_parameters_are_kept_apart_from_shards(mesh):
    from torch.distributed.fsdp import fully_shard

    recipe, sharded, alone = Recipe(), flow(), flow()
    kept = recipe.whole(sharded)
    assert len(kept) == 3  # the masses and two orthonormal kernels
    fully_shard(sharded, mesh=mesh, ignored_params=kept)
    one, other = recipe.build(sharded), recipe.build(alone)
    for _ in range(3):
        graded(sharded), graded(alone)
        norms = float(clip_gradients(sharded, 1.0)), float(clip_gradients(alone, 1.0))
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        one.step(), other.step()
    for p, q in zip(sharded.parameters(), alone.parameters(), strict=True):
        full = p.full_tensor() if hasattr(p, "full_tensor") else p
        torch.testing.assert_close(full, q, rtol=1e-6, atol=1e-7)


def test_shards_are_refused_where_a_matrix_must_be_whole(mesh):
    from torch.distributed.fsdp import fully_shard

    sharded = flow()
    fully_shard(sharded, mesh=mesh)
    words = r"p = .*Shard.*MirrorAdam needs whole parameters.*ignored_params=recipe.whole"
    with pytest.raises(ValueError, match=words):
        Recipe().build(sharded)
    name, p = next(iter(sharded.named_parameters()))
    with pytest.raises(ValueError, match="BlockwiseAdamW needs whole"):
        BlockwiseAdamW([(name, p)], block=Frobenius(), space=FlatSpace(2))
    with pytest.raises(ValueError, match="RiemannianAdam needs whole"):
        RiemannianAdam([(name, p)])
    with pytest.raises(ValueError, match="ModalAdamW needs whole"):
        ModalAdamW([(name, p)])
    assert BlockwiseAdamW([(name, p)]).whole is False
    with pytest.raises(ValueError, match="needs whole"):
        Recipe(simplex=use(BlockwiseAdamW), flat=use(BlockwiseAdamW, block=Frobenius())).build(
            fully_shard(nn.Linear(3, 3), mesh=mesh)
        )
