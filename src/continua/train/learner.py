"""A model in training: its optimiser, its objective, and one update."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from continua.control import CrossEntropy, NextToken, Objective, call_model, unwrap
from continua.core.batch import Batch
from continua.core.errors import ArgumentError, SolveError, reject
from continua.core.seeds import branch_seed, generator_of
from continua.model import ContinuousTransformer, model_files
from continua.optim import KFAC, AbstractLikelihood, Categorical, Composite, Gaussian, Schedule, clip_gradients
from continua.solve import Stats
from continua.train.grids import TrainingGrids, finer_nodes
from continua.train.presets import Plan
from continua.train.ranks import Ranks

_ASKED = ("lr", "betas", "weight_decay")
"""What options say of a group of parameters; all else of it is state."""


class TrainingError(RuntimeError):
    """A run that cannot go on: at which update, why, and what to try."""


class DivergedError(TrainingError):
    """A run whose updates come to nothing any more, since update `since`."""

    def __init__(self, message: str, since: int) -> None:
        super().__init__(message)
        self.since = since


class Row(NamedTuple):
    """What one update did: `total` is J, the `loss` and the `running` costs by their coefficients.

    A skipped one, whose loss or gradient is not finite, has left the parameters as they were.
    """

    total: float
    loss: float
    running: dict[str, float]
    lr: float
    evaluations: int
    steps: int
    tokens: int
    seconds: float
    grad_norm: float
    skipped: bool = False

    @property
    def tokens_per_second(self) -> float:
        """How many tokens were read, forwards and backwards, in a second."""
        return self.tokens / max(self.seconds, 1e-9)


@dataclasses.dataclass(eq=False)
class Learner:
    """A named model with the optimiser that moves it, and the schedule of its rates: that of the plan by default.

    The model may be wrapped (`DistributedDataParallel`, `fully_shard`, `torch.compile`): updates call what wraps it.
    With `ranks`, whose `wrap` has wrapped it, a batch is that of all of them, and each reads its share.
    """

    name: str
    wrapped: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    schedule: Schedule | None = None
    grids: TrainingGrids = TrainingGrids()
    ranks: Ranks = Ranks()

    def __post_init__(self) -> None:
        self.model: ContinuousTransformer = unwrap(self.wrapped)  # pyright: ignore[reportAttributeAccessIssue]
        members = self.optimiser.members.values() if isinstance(self.optimiser, Composite) else (self.optimiser,)
        self.skipped = 0
        """Updates in a row that came to nothing."""
        self._finer: dict[str, ContinuousTransformer] = {}
        self._observing = [member for member in members if isinstance(member, KFAC)]

    def update(self, batch: Batch, number: int, plan: Plan) -> Row:
        """One update on a batch. All randomness comes from the seed and the number of the update."""
        start, seed = time.perf_counter(), branch_seed(branch_seed(plan.seed, -2), number)
        batch = place(batch, self.model)
        if self.schedule is None:  # the optimiser keeps its highest rates: a resumed run needs its number alone
            self.schedule = Schedule(self.optimiser, plan.curve, spent=number)
        lr = self.schedule.get_last_lr()[0]
        self.wrapped.train()
        self.optimiser.zero_grad(set_to_none=True)
        passes = self._differentiate(batch, seed, number / plan.updates)
        norm = math.nan if passes is None else self._clip(plan.clip)
        if passes is None or not math.isfinite(norm):
            self.schedule.step(0)
            self.skipped += 1
            seconds = time.perf_counter() - start
            return Row(math.nan, math.nan, {}, lr, 0, 0, count_tokens(batch), seconds, math.nan, skipped=True)
        tokens = count_tokens(batch)
        for member in self._observing:
            member.observe(lambda: batch.logits(call_model(self.model.in_eval_mode(), batch).output), self._likelihood,
                           generator=generator_of(branch_seed(seed, 2)))  # fmt: skip
        self.optimiser.step()
        self.schedule.step(tokens)
        self.skipped = 0
        total, loss, *running = map(math.fsum, zip(*[each for each, _ in passes], strict=True))
        stats = passes[0][1]  # of a refined update those of the refined part
        counts = (stats.evaluations, stats.accepted, tokens)
        named = dict(zip(self.objective.names, running, strict=True))
        return Row(total, loss, named, lr, *counts, time.perf_counter() - start, norm)

    def _differentiate(self, batch: Batch, seed: int, progress: float) -> list[tuple[tuple[float, ...], Stats]] | None:
        """Adds up the gradients of all passes; their shares of J, of the loss and of the running costs.

        Nothing is returned where one is not finite or its solve cannot be finished.
        """
        found = []
        try:
            for model, part, grid, portion in self._passes(batch, seed, progress):
                own, share = self.ranks.split(part)
                with self._wrap(model) as wrapped:
                    terms = self.objective(wrapped, own, self._generator(seed), grid)
                    finite = math.isfinite(terms.total.item())
                    values = (terms.total, terms.terminal, *terms.running.values())
                    values = [share * (portion * value.item()) for value in values]
                    lost, *values = self.ranks.add_up([float(not finite), *values])
                    if lost:
                        return None
                    weight = portion * share * self.ranks.size  # gradients are averaged over ranks
                    (terms.total if weight == 1.0 else weight * terms.total).backward()
                    found.append((tuple(values), terms.stats))
            return found
        except (SolveError, ArgumentError) as error:  # which every rank meets at the same step
            if not is_lost(error):
                raise
            return None

    @contextlib.contextmanager
    def _wrap(self, model: nn.Module) -> Iterator[nn.Module]:
        """What wraps the model, around a finer reading of it inside: parameters are the same, and so are the hooks."""
        if model is self.wrapped or (self.wrapped is self.model and self.ranks.size == 1):
            yield model
            return
        before = {name: getattr(self.model, name) for name in ("embedding", "flow", "readout")}
        try:
            for name in before:
                setattr(self.model, name, getattr(model, name))
            yield self.wrapped
        finally:
            for name, part in before.items():
                setattr(self.model, name, part)

    def _generator(self, seed: int) -> torch.Generator:
        """Dropout and estimates of a rank are its own; alone, or on rank 0, they are those of the seed."""
        return generator_of(branch_seed(seed, 2 + self.ranks.rank) if self.ranks.rank else seed)

    def _clip(self, limit: float) -> float:
        try:
            return float(clip_gradients(self.model, limit))
        except ArgumentError:
            return math.nan

    def is_finite(self) -> bool:
        """Whether all parameters are finite numbers."""
        shards = (each.to_local() if hasattr(each, "to_local") else each for each in self.model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
        return not self.ranks.any(not all(bool(torch.isfinite(each).all()) for each in shards))[0]

    @property
    def _likelihood(self) -> AbstractLikelihood:
        return Categorical() if isinstance(self.objective.loss, CrossEntropy | NextToken) else Gaussian()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the model."""
        schedule = self.schedule.state_dict() if self.schedule else {}
        optimiser = self.ranks.gather(self.optimiser.state_dict())
        return {"optimiser": optimiser, "schedule": schedule, "skipped": self.skipped}

    def files(self) -> dict[str, bytes]:
        """The model as `continua.save` writes it; every rank takes part, and rank 0 has it."""
        state = self.ranks.gather(self.model.state_dict())
        return model_files(self.ranks.alone(self.model), state) if self.ranks.first else {}

    def restore(self, state: dict[str, Any], model: nn.Module) -> None:
        """Goes back to what `state` gave, and to the parameters of a model; rates and decay stay as asked for."""
        asked = [{key: group[key] for key in _ASKED if key in group} for group in self.optimiser.param_groups]
        try:
            self.model.load_state_dict(self.ranks.scatter(model.state_dict(), self.model.state_dict()))
            parameters = dict(enumerate(p for group in self.optimiser.param_groups for p in group["params"]))
            held = self.ranks.scatter(state["optimiser"]["state"], parameters)
            self.optimiser.load_state_dict({**state["optimiser"], "state": held})
            self.skipped = int(state["skipped"])
            if self.schedule is not None:
                self.schedule.load_state_dict(state["schedule"])
                return
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"it is of another model ({str(error).rpartition(chr(10))[2].strip()})"  # of all weights the last
            reject("checkpoint", self.name, why, "Go on with the configuration of the run itself.")
        for group, own in zip(self.optimiser.param_groups, asked, strict=True):
            group.update(own)
            group.pop("initial_lr", None)  # the schedule, which is made anew, takes the rate for the highest

    def _passes(
        self, batch: Batch, seed: int, progress: float
    ) -> list[tuple[nn.Module, Batch, list[float] | None, float]]:
        """What an update reads: model, examples, depths, and the fraction of the batch."""
        generator, size = generator_of(branch_seed(seed, 1)), len(batch.inputs[0])
        kind = self.grids.draw_kind(self.model, progress, generator)
        usual = self.grids.draw_grid(self.model, progress, generator)
        refined = size // (4 if kind == "axis_nodes" else 3)
        if kind is None or refined == 0:
            return [(self.wrapped, batch, usual, 1.0)]
        grid = self.grids.draw_grid(self.model, progress, generator, finer=kind == "depth")
        return [
            (self._read(kind), batch.part(0, refined), grid, refined / size),
            (self.wrapped, batch.part(refined, size), usual, 1.0 - refined / size),
        ]

    def _read(self, kind: str) -> nn.Module:
        """The model at the nodes of a refined pass."""
        if kind == "depth":
            return self.wrapped
        if kind not in self._finer:
            finer: dict[str, Any] = {kind: finer_nodes(self.model)[kind]}
            self._finer[kind] = self.model.at(**finer)
        return self._finer[kind].train()


def is_lost(error: Exception) -> bool:
    """Whether the parameters are to blame: a solve that cannot be finished, or tokens that they made infinite."""
    return isinstance(error, SolveError) or (isinstance(error, ArgumentError) and error.argument == "x0")


def place(batch: Batch, model: nn.Module) -> Batch:
    """The batch where the model is, in its precision."""
    like = next(model.parameters())
    return batch if like.dtype is torch.float32 and like.device.type == "cpu" else batch.to(like.device, like.dtype)


def count_tokens(batch: Batch) -> int:
    """How many tokens an update reads, queries included."""
    tokens = batch.inputs[0].shape[0] * batch.inputs[0].shape[1]
    return tokens if batch.query_times is None else tokens + batch.query_times.numel()
