"""Processes that train one model together, as `torchrun` starts them: what each reads, what all agree on, who lives."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from continua.core.batch import Batch
from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.model import ContinuousTransformer
from continua.solve import Solver

_START = timedelta(minutes=10)
"""How long ranks wait for each other; whether one still lives is watched apart, and sooner known."""


_BEAT, _LIMIT = 1.0, 40.0
"""Seconds between signs of life, and without one until a rank is taken for lost."""
LOST = 75
"""Exit code of those that are left: started again, they go on (EX_TEMPFAIL of sysexits.h)."""


@final
class Heartbeat:
    """While this is open, a thread gives signs of life, watches those of the next rank, and ends a process that waits.

    All meet in the store of `torchrun`: whoever misses its neighbour leaves a note there, which all others read. A
    backend sees by itself a connection that is closed; this is for machines that vanish and processes that hang.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.next = rank, (rank + 1) % size
        self._done = threading.Event()
        # a store is one connection, on which a wait of the main thread would keep this one waiting
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        patience = timedelta(seconds=_LIMIT / 2)
        self._store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
        self._place = f"continua/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Watches no more."""
        self._done.set()
        self._thread.join(_BEAT)  # it may wait for a store that is gone

    def _beat(self) -> None:
        heard, since = 0, time.monotonic()
        while not self._done.wait(_BEAT):
            try:
                self._store.add(f"{self._place}/{self.rank}", 1)
                beats = self._store.add(f"{self._place}/{self.next}", 0)
                lost = self._store.add(f"{self._place}/lost", 0) - 1
            except RuntimeError:
                return self._leave("the store where ranks meet is gone")
            if beats != heard:
                heard, since = beats, time.monotonic()
            elif time.monotonic() - since > _LIMIT:
                lost = self.next
                with contextlib.suppress(RuntimeError):
                    self._store.add(f"{self._place}/lost", 1 + lost)
            if lost >= 0:
                self._leave(f"rank {lost} gives no sign of life")

    def _leave(self, why: str) -> None:
        if self._done.is_set():  # the others are done too
            return
        words = f"continua: rank {self.rank}: {why}; what was saved is whole. Give the same command again.\n"
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), words.encode())
        os._exit(LOST)  # the main thread waits inside torch, where no exception reaches it


class LostRankError(RuntimeError):
    """Another rank has ended, or gives no sign of life: nothing can be computed together any more."""


@final
@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process is `rank` of `size`; alone by default. With `sharded`, each holds a part of the parameters.

    A batch is shared out, so that the gradients of all, averaged by the sequences that each has read, are those of one
    process on the whole batch; whatever decides how a run goes on is agreed on. Rank 0 writes.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False
    heartbeat: Heartbeat | None = None

    @classmethod
    @contextlib.contextmanager
    def join(cls, device: str) -> "Iterator[Ranks]":
        """The ranks that `torchrun` has started; a process of its own where it has not."""
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        if size == 1:
            yield cls()
            return
        if device == "mps":
            reject("--device", device, "torch has no way to join ranks there", "Pass --device cuda or cpu.")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        with name_lost():
            dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=_START)
        with Heartbeat(rank, size) as heartbeat, name_lost():
            yield cls(rank, size, heartbeat=heartbeat)

    @property
    def first(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    def leave(self) -> None:
        """Waits for all ranks, and parts with them: whoever is done is not taken for lost."""
        if self.size > 1 and dist.is_initialized():
            dist.barrier()
            if self.heartbeat is not None:
                self.heartbeat.stop()
            dist.destroy_process_group()

    def wrap(self, model: ContinuousTransformer) -> nn.Module:
        """The model as all ranks train it: by DDP, or sharded, its parameters new; its solves end on all together."""
        if self.size == 1:
            return model
        model.solver = _together(model.solver, True)
        if not self.sharded:
            own = [torch.cuda.current_device()] if next(model.parameters()).is_cuda else None
            return nn.parallel.DistributedDataParallel(model, device_ids=own)
        from torch.distributed.device_mesh import init_device_mesh

        from continua.train.sharding import shard_model

        return shard_model(model, init_device_mesh(next(model.parameters()).device.type, (self.size,)))

    def alone(self, model: ContinuousTransformer) -> ContinuousTransformer:
        """The model, parameters shared, as one process solves it: what is written down."""
        return model if self.size == 1 else model.at(solver=_together(model.solver, False))

    def split(self, batch: Batch) -> tuple[Batch, float]:
        """The examples of this rank, and what fraction they are; where there are fewer than ranks, each reads all."""
        count = len(batch.inputs[0])
        if self.size == 1 or count < self.size:
            return batch, 1.0 / self.size
        start, stop = (place * count // self.size for place in (self.rank, self.rank + 1))
        return batch.part(start, stop), (stop - start) / count

    def add_up(self, values: Sequence[float]) -> list[float]:
        """The sum over ranks of each value."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, *flags: bool) -> list[bool]:
        """Which of them holds on some rank."""
        return [total > 0 for total in self.add_up([float(flag) for flag in flags])]

    def tell(self, find: Callable[[], str]) -> str:
        """What rank 0 finds; where it fails, which it says itself, the others leave in silence."""
        if self.size == 1:
            return find()
        words, failure = b"", None
        if self.first:
            try:
                words = find().encode(errors="surrogateescape")
            except BaseException as error:
                failure = error
        size = torch.tensor(-1 if failure else len(words))
        dist.broadcast(size, 0)
        if failure is not None:
            raise failure
        if size < 0:
            raise SystemExit(1)
        text = torch.tensor(list(words) if self.first else [0] * int(size), dtype=torch.uint8)
        if len(text):
            dist.broadcast(text, 0)
        return bytes(text.tolist()).decode(errors="surrogateescape")

    def gather(self, state: Any) -> Any:
        """Nested tables with whole tensors, on rank 0; every rank takes part."""
        if not self.sharded:
            return state
        from continua.train.sharding import gather_whole

        return gather_whole(state, self.first)

    def scatter(self, state: Mapping[Any, Any], like: Mapping[Any, Tensor]) -> dict[Any, Any]:
        """The own part of whole tensors, or of tables of them, that belong to parameters under the same keys."""
        if not self.sharded:
            return dict(state)
        from continua.train.sharding import shard_like

        def own(value: Any, parameter: Tensor) -> Any:
            if isinstance(value, Mapping):
                return {key: own(held, parameter) for key, held in value.items()}
            return shard_like(value, parameter) if isinstance(value, Tensor) else value

        return {key: own(value, like[key]) for key, value in state.items()}


def _together(solver: Any, all_ranks: bool) -> Any:
    if not isinstance(solver, Solver) or not hasattr(solver.controller, "all_ranks"):
        return solver
    return Solver(solver.stepper, dataclasses.replace(solver.controller, all_ranks=all_ranks))  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def name_lost() -> Iterator[None]:
    """Names what torch says where a rank has gone; its words differ from one backend to the next."""
    try:
        yield
    except RuntimeError as error:
        words = str(error)
        told = ("gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL", "TCPStore", "timed out")
        if not (isinstance(error, dist.DistError) or any(word in words for word in told)):
            raise
        raise LostRankError(f"another rank has ended ({words.strip().splitlines()[0]})") from None
