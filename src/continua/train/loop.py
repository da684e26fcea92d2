"""The loop: the same batches for every learner, records, validations, checkpoints; it goes on where it stopped."""

import dataclasses
import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, final

from continua.core.errors import reject
from continua.data import AbstractTask, Split
from continua.model import save
from continua.runs import Run
from continua.train.evaluation import evaluate
from continua.train.learner import Learner
from continua.train.presets import Plan
from continua.train.reporter import AbstractReporter


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A run that was asked to stop and did so with a checkpoint."""


class StopRequest:
    """While this is open, SIGINT and SIGTERM are noted instead of obeyed; a second SIGINT is obeyed."""

    def __init__(self) -> None:
        self.made = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
        except ValueError:  # signals belong to the main thread; elsewhere there is nothing to hear
            pass
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.made = True


@final
@dataclasses.dataclass(frozen=True)
class Training:
    """Learners on a task by a plan, written into a run.

    Batch and randomness of an update depend on the seed and its number alone: on the CPU a run that goes on from a
    checkpoint ends with the very numbers of one that was never interrupted.
    """

    run: Run
    task: AbstractTask
    learners: Sequence[Learner]
    plan: Plan
    reporters: Sequence[AbstractReporter] = ()

    def resume(self) -> int:
        """Takes up the latest checkpoint, if there is one; says how many updates are done."""
        state = self.run.last_checkpoint()
        if state is None:
            self.run.forget(0)
            return 0
        if set(state["learners"]) != {learner.name for learner in self.learners}:
            cure = "Go on with the configuration of the run itself."
            reject("checkpoint", sorted(state["learners"]), "it is of other learners", cure)
        for learner in self.learners:
            learner.restore(state["learners"][learner.name])
        self.run.forget(state["update"])
        return state["update"]

    def go(self, done: int = 0) -> None:
        """Trains from update `done` to the end; asked to stop, it writes a checkpoint and raises `Interrupted`."""
        clocks = [row["clock"] for row in self.run.records("update") if row["update"] <= done] if done else []
        began = time.perf_counter() - (clocks[-1] if clocks else 0.0)  # the clock of the run goes on
        for reporter in self.reporters:
            reporter.begin(self.plan, done)
        try:
            with StopRequest() as stop:
                for number in range(done, self.plan.updates):
                    self._update(number, began)
                    last = number + 1 == self.plan.updates
                    if self.plan.keeps(number + 1) or last or stop.made:
                        self._keep(number + 1)
                    if stop.made and not last:
                        self.run.end("interrupted")
                        raise Interrupted(f"stopped after update {number + 1} of {self.plan.updates}")
        finally:
            for reporter in self.reporters:
                reporter.end()

    def _update(self, number: int, began: float) -> None:
        batch = self.task.training_batch(self.plan.batch_size, number, self.plan.seed)
        for learner in self.learners:
            row = learner.update(batch, number, self.plan)
            facts: dict[str, Any] = row._asdict()
            facts |= {"tokens_per_second": row.tokens_per_second, "clock": time.perf_counter() - began}
            self.run.record("update", update=number + 1, learner=learner.name, **facts)
            for reporter in self.reporters:
                reporter.on_update(number + 1, learner.name, row)
        if self.plan.validates(number + 1):
            for learner in self.learners:
                metrics = evaluate(learner.model, self.task, Split.VALIDATION)
                named = {"update": number + 1, "learner": learner.name, "clock": time.perf_counter() - began}
                self.run.record("validation", **named, metrics=metrics)
                for reporter in self.reporters:
                    reporter.on_validation(number + 1, learner.name, metrics)

    def _keep(self, update: int) -> None:
        learners = {learner.name: learner.state() for learner in self.learners}
        self.run.keep_checkpoint(update, {"update": update, "learners": learners})
        for learner in self.learners:
            save(learner.model, self.run.model_folder(learner.name))
