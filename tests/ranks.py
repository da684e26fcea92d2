"""The ranks of a sharded training run, for `solve/test_sharded.py`: python ranks.py FOLDER, writes RANK.json there.

Every case trains three updates on this rank's share of a batch, and beside it, alone, the same model on the whole
batch.
"""

import json
import sys
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes

from continua.fields import Expansion
from continua.model import Flow, Part
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, RMSNorm
from continua.solve import AbstractGradient, Adaptive, Backsolve, Checkpointed, Direct, Fixed, integrate
from continua.spaces import Chebyshev, Cloud
from start_ranks import WORLD

WIDTH = 4
TOLERANCE: dict[type[AbstractGradient], float] = {Backsolve: 1e-6}
"""Of solves whose gradients agree to the tolerance alone; others agree to rounding on any grid, and take 1e-4."""


class Model(nn.Module):
    """A readout of a flow that starts from an embedding."""

    def __init__(self, gradient: AbstractGradient, steps: int | None = None) -> None:
        super().__init__()
        operators = PreNorm(LayerNorm(), Attention(1, 3, causal=True)), PreNorm(RMSNorm(), FeedForward(6))
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.flow = Flow([Part(f, Expansion(f.spec(WIDTH), Chebyshev(2))) for f in operators])
        self.readout = nn.Linear(WIDTH, 1)
        self.mass = nn.Parameter(torch.tensor([0.0, 0.1, 0.2]))
        self.gradient = gradient
        self.steps = steps
        self.grid: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mass = self.mass.exp().expand(len(x), -1)  # what a flow depends on need not be a leaf
        bound = self.flow.bind(Cloud(self.embedding(x), mass))
        tolerance = TOLERANCE.get(type(self.gradient), 1e-4)
        adaptive = Adaptive(tolerance, tolerance, all_ranks=True)
        controller = adaptive if self.steps is None else Fixed(self.steps)
        solution = integrate(bound, bound.initial(), (0.0, 1.0), controller=controller, gradient=self.gradient)
        self.grid = solution.stats.grid
        return self.readout(solution.x) + 0.0  # no view leaves a sharded module


def trained(model: Model, batch: torch.Tensor) -> Model:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()
        model.losses.append(loss.item())
    return model


def whole_batch() -> torch.Tensor:
    sequences = 2 * dist.get_world_size()
    scale = torch.arange(1, sequences + 1).view(-1, 1, 1)  # ranks that would choose other steps on their own
    return torch.randn(sequences, 3, WIDTH, generator=torch.Generator().manual_seed(1)) * scale


def made(gradient: AbstractGradient, steps: int | None = None) -> Model:
    torch.manual_seed(0)
    return Model(gradient, steps)


@cache
def train_alone(gradient: AbstractGradient, steps: int | None = None) -> Model:
    """Without shards: the batch is whole, and both ranks hold the same, so that the joint norm is the local one."""
    return trained(made(gradient, steps), whole_batch())


def gap(sharded: Model, alone: Model) -> float:
    pairs = zip(sharded.parameters(), alone.parameters(), strict=True)
    return max((p.full_tensor() - q).abs().max().item() for p, q in pairs)


def case(gradient: AbstractGradient, mesh: DeviceMesh, share: torch.Tensor, **settings) -> dict:
    """The root sharded as a whole: how far the parameters are from those of the run alone, and whether grids agree."""
    sharded = made(gradient)
    fully_shard(sharded, mesh=mesh, **settings)
    trained(sharded, share)
    dist.barrier()
    grid = list(sharded.grid)
    alone = train_alone(gradient)
    return {"gap": gap(sharded, alone), "grids": max(abs(a - b) for a, b in zip(grid, alone.grid, strict=True))}


def parts_sharded(
    gradient: AbstractGradient,
    mesh: DeviceMesh,
    share: torch.Tensor,
    steps: int | None = None,
    fields: bool = False,
) -> dict:
    """Every part of the flow, or its field alone, sharded on its own, then what is left of the model."""
    model = made(gradient, steps)
    for part in model.flow.parts:
        fully_shard(part.field if fields else part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    try:
        trained(model, share)
    except ValueError as refusal:
        return {"refused": str(refusal)}
    losses = torch.tensor(model.losses)
    dist.all_reduce(losses)
    alone = train_alone(gradient, steps)
    return {
        "gap": gap(model, alone),
        "losses": (losses / dist.get_world_size() - torch.tensor(alone.losses)).abs().max().item(),
    }


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    share = whole_batch()[2 * rank : 2 * rank + 2]
    found = {
        "Direct": case(Direct(), mesh, share),
        "Checkpointed": case(Checkpointed(), mesh, share),
        "Checkpointed, resharded": case(Checkpointed(), mesh, share, reshard_after_forward=True),
        "Backsolve": case(Backsolve(trust=1.0), mesh, share),
        "parts, Direct": parts_sharded(Direct(), mesh, share),
        "parts, Checkpointed": parts_sharded(Checkpointed(), mesh, share),
        "parts, Checkpointed, fixed steps": parts_sharded(Checkpointed(1.0, 3), mesh, share, steps=4),
        "fields, Direct": parts_sharded(Direct(), mesh, share, fields=True),
        "fields, Checkpointed": parts_sharded(Checkpointed(), mesh, share, fields=True),
        "parts, Backsolve": parts_sharded(Backsolve(), mesh, share),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # when one rank fails, torch ends those that would wait for it for ever
    start_processes(main, (WORLD, Path(sys.argv[1])), WORLD, start_method="fork")
