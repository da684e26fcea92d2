"""The ranks of a distributed training run, for `train/test_ranks.py`: python training_ranks.py FOLDER.

Every case trains 20 updates (8 in a sample) on this rank's share of a batch, by an `Objective` alone (float32) or as a
`Learner` of the training loop does (float64), and beside it, alone, the same model on the whole batch. Writes
RANK.json: the largest difference of the losses, and how far they fell. Then whole runs, with checkpoints, as
`continua train` makes them: on two ranks and on one, and from one to the other in the middle.
"""

import dataclasses
import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import continua
from continua import Adaptive, Batch, Checkpointed, CrossEntropy, Depth, Direct, Fixed, KineticEnergy, Objective, Solver
from continua.cli.options import OPTIMISERS
from continua.core.errors import DamageWarning
from continua.data import Spirals
from continua.runs import Run
from continua.solve import BogackiShampine
from continua.train import Learner, Plan, Preset, Ranks, Training, TrainingGrids, build_continuous, objective_of
from continua.train.counting import PeakMemory
from start_ranks import ALL, WORLD

UPDATES = 20 if ALL else 8
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
SAMPLE = [("DDP", "adaptive, checkpointed"), ("FSDP2, parts", "split, direct")]
"""Cases of a short test: whole runs below have shards with adaptive steps, and DDP with fixed ones."""


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


RUNS = {
    "DDP; jitter, refined": ("none", {"jitter": 1.0, "refined": 0.5}),
    "FSDP2; adaptive, checkpointed": ("fsdp2", {"rtol": 3e-2, "stepper": "bosh3", "gradient": "checkpointed"}),
    "DDP; adaptive, checkpointed": ("none", {"rtol": 1e-2, "gradient": "checkpointed"}),
    "FSDP2; jitter, refined": ("fsdp2", {"jitter": 1.0, "refined": 0.5}),
    "FSDP2; layers": ("fsdp2", {"field": "piecewise", "head_modes": 0, "head_nodes": 1}),
    "FSDP2; hypernetwork": ("fsdp2", {"field": "hypernetwork"}),
    "DDP; recipe": ("none", {"optimizer": "recipe"}),
}


def build_learner(ranks: Ranks, options: dict) -> tuple[Spirals, Learner]:
    """A small task, and the learner of a preset as the ranks train it."""
    task = Spirals(examples=40, tokens=8, queries=3)
    sizes = {
        "width": 8,
        "head_nodes": 2,
        "hidden": 16,
        "axis_nodes": 2,
        "head_modes": 2,
        "depth_modes": 2,
        "depth_length": 1.0,
    }
    preset = Preset().replace(**{**sizes, "depth_steps": 2, **options})
    torch.manual_seed(0)
    model, build, how = build_continuous(task.form, preset), OPTIMISERS[preset.training.optimizer], preset.depth
    objective, grids = objective_of(task.form, model, preset), TrainingGrids.of(how)
    wrapped = ranks.wrap(model)
    return task, Learner("one", wrapped, objective, build(model, preset), grids=grids, ranks=ranks)


def whole_run(folder: Path, ranks: Ranks, options: dict) -> list[float]:
    """The losses of a run that begins in a folder, or goes on there."""
    task, learner = build_learner(ranks, options)
    if ranks.first and not folder.exists():
        Run.begin(folder, "train", {})
    ranks.add_up([0.0])
    training = Training(Run(folder), task, [learner], Plan(UPDATES, 5, validations=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)  # that there is no checkpoint yet
        done = training.resume()
    training.go(done)
    ranks.add_up([0.0])
    return [row["total"] for row in Run(folder).records("update")]


def skipped_updates(ranks: Ranks, sharding: str, options: dict) -> list[bool]:
    """Which of three updates are skipped, the second on a batch of which one rank's share alone cannot be solved."""
    task, learner = build_learner(dataclasses.replace(ranks, sharded=sharding == "fsdp2"), options)
    plan, found = Plan(UPDATES, 4), []
    for number in range(3):
        batch = task.training_batch(4, number, 0)
        if number == 1:
            values, *rest = batch.inputs
            batch = dataclasses.replace(batch, inputs=(torch.cat([values[:3], values[3:] * 1e38]), *rest))
        found.append(learner.update(batch, number, plan).skipped)
    return found


def whole_runs(ranks: Ranks, folder: Path) -> dict[str, list[float]]:
    """For each kind of run the largest gap of its losses from those of one process, and the same from 2 ranks to 1."""
    found = {}
    for place, (name, (sharding, options)) in enumerate(list(RUNS.items())[: None if ALL else 2]):
        joined, one = dataclasses.replace(ranks, sharded=sharding == "fsdp2"), folder / f"{place}"
        losses = whole_run(one / "together", joined, options)
        if ranks.first:  # alone, and there from what two have saved
            alone = whole_run(one / "alone", Ranks(), options)
            shutil.copytree(one / "together", one / "to-one")
            shutil.rmtree(one / "to-one" / "checkpoints" / f"{UPDATES:08d}")
            after = whole_run(one / "to-one", Ranks(), options)
            shutil.copytree(one / "alone", one / "to-two")
            shutil.rmtree(one / "to-two" / "checkpoints" / f"{UPDATES:08d}")
        ranks.add_up([0.0])
        back = whole_run(one / "to-two", joined, options)
        if ranks.first:
            found[name] = [max(abs(x - y) for x, y in zip(a, alone, strict=True)) for a in (losses, after, back)]
    return found


def parameter_memory(ranks: Ranks) -> float:
    """The most bytes of weights that a rank holds in a forward solve, next to nothing else, as a share of all."""
    torch.manual_seed(0)
    model = continua.transformer(64, 3, features=1, axis=4, depth=Depth(1.0, continua.Cosine(8), steps=2))
    whole = sum(p.nbytes for p in model.parameters())
    dataclasses.replace(ranks, sharded=True).wrap(model)
    own = sum(p.to_local().nbytes for p in model.parameters())
    with torch.no_grad(), PeakMemory() as counted:
        model(torch.zeros(1, 2, 1), torch.tensor([[0.0, 1.0]]))
    return (own + counted.peak) / whole


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
            alone = train(build(solver), whole)  # on all ranks, which agree on adaptive steps here too
            for name, wrap in WRAPPERS.items():
                if not ALL and (name, solver) not in SAMPLE:
                    continue
                losses = train(wrap(build(solver)), own)
                dist.all_reduce(losses)
                gap = (losses / world - alone).abs().max().item()
                found[f"{name}; {solver}; {dtype}".replace("torch.", "")] = [gap, (alone[0] - alone[-1]).item()]
    torch.set_default_dtype(torch.float32)
    ranks = Ranks(rank, world)
    found |= {"runs": whole_runs(ranks, folder), "memory": parameter_memory(ranks)}
    found["skipped"] = {name: skipped_updates(ranks, *how) for name, how in list(RUNS.items())[: None if ALL else 2]}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # when one rank fails, torch ends those that would wait for it for ever
    start_processes(main, (WORLD, Path(sys.argv[1])), WORLD, start_method="fork")
