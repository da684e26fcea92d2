"""The ranks of a distributed training run, for `train/test_ranks.py`: python training_ranks.py FOLDER.

Every case trains 20 updates on this rank's share of a batch, by an `Objective` alone (float32) or as a `Learner` of the
training loop does (float64), and beside it, alone, the same model on the whole batch. Writes RANK.json: the largest
difference of the losses, and how far they fell.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import continua
from continua import Adaptive, Batch, Checkpointed, CrossEntropy, Direct, Fixed, KineticEnergy, Objective, Solver
from continua.solve import BogackiShampine
from continua.train import Learner, Plan, TrainingGrids
from start_ranks import ALL, WORLD

UPDATES = 20
OBJECTIVE = Objective(CrossEntropy(), (KineticEnergy(),), (0.01,))
SOLVERS = {
    "adaptive, checkpointed": (Solver(BogackiShampine(), Adaptive(1e-2, 1e-2, all_ranks=True)), Checkpointed()),
    "split, direct": (Solver(continua.LieTrotter(), Fixed(2)), Direct()),
}


def build(solver: str) -> continua.ContinuousTransformer:
    torch.manual_seed(0)
    model = continua.transformer(8, 3, features=1, hidden=8, axis=4, depth=0.5)
    stepping, gradient = SOLVERS[solver]
    return model.at(solver=stepping, gradient=gradient)


def shard(model: continua.ContinuousTransformer) -> nn.Module:
    for part in model.flow.parts:
        fully_shard(part)
    return fully_shard(model)


WRAPPERS = {"DDP": DistributedDataParallel, "FSDP2": fully_shard, "FSDP2, parts": shard}


def train(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of every update."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if torch.get_default_dtype() == torch.float64:
        plan = Plan(UPDATES, len(batch.targets), clip=0.5)
        learner = Learner("one", model, OBJECTIVE, optimiser, grids=TrainingGrids(0.5))
        return torch.tensor([learner.update(batch, number, plan).total for number in range(UPDATES)])
    losses = []
    for _ in range(UPDATES):
        optimiser.zero_grad()
        total = OBJECTIVE(model, batch).total
        total.backward()
        optimiser.step()
        losses.append(total.detach())
    return torch.stack(losses)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    found = {}
    for dtype in (torch.float32, torch.float64) if ALL else (torch.float64,):
        torch.set_default_dtype(dtype)
        torch.manual_seed(1)
        times = torch.rand(2 * world, 6).sort(-1).values
        values, labels = torch.sin(9 * times).unsqueeze(-1), torch.arange(2 * world) % 3
        share = slice(2 * rank, 2 * rank + 2)
        own, whole = Batch((values[share], times[share]), labels[share]), Batch((values, times), labels)
        for solver in list(SOLVERS)[: 1 if dtype is torch.float32 else None]:  # the dearer one in both precisions
            alone = train(build(solver), whole)
            for name, wrap in WRAPPERS.items():
                if name == "FSDP2" and not ALL:
                    continue
                losses = train(wrap(build(solver)), own)
                dist.all_reduce(losses)
                gap = (losses / world - alone).abs().max().item()
                found[f"{name}; {solver}; {dtype}".replace("torch.", "")] = [gap, (alone[0] - alone[-1]).item()]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # when one rank fails, torch ends those that would wait for it for ever
    start_processes(main, (WORLD, Path(sys.argv[1])), WORLD, start_method="fork")
