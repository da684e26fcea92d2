"""The loop: the same batches for every learner, records, evaluations, checkpoints; it goes on where it stopped."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, final

from continua.core.errors import reject
from continua.data import AbstractTask, Split
from continua.model import save
from continua.runs import Run
from continua.train.evaluation import evaluated
from continua.train.interruption import Interrupted, Listening
from continua.train.learner import Learner
from continua.train.plan import Plan
from continua.train.reporter import AbstractReporter, Silent


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
    reporter: AbstractReporter = Silent()

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
        began = time.perf_counter() - self._seconds(done)
        self.reporter.begin(self.plan, done)
        try:
            with Listening() as listening:
                for number in range(done, self.plan.updates):
                    self._update(number, began)
                    last = number + 1 == self.plan.updates
                    if self.plan.keeps(number + 1) or last or listening.asked:
                        self._keep(number + 1)
                    if listening.asked and not last:
                        self.run.end("interrupted")
                        raise Interrupted(f"stopped after update {number + 1} of {self.plan.updates}")
        finally:
            self.reporter.end()

    def _update(self, number: int, began: float) -> None:
        batch = self.task.training_batch(self.plan.batch, number, self.plan.seed)
        for learner in self.learners:
            row = learner.update(batch, number, self.plan)
            facts: dict[str, Any] = row._asdict()
            facts |= {"tokens_per_second": row.tokens_per_second, "clock": time.perf_counter() - began}
            self.run.record("update", update=number + 1, learner=learner.name, **facts)
            self.reporter.updated(number + 1, learner.name, row)
        if self.plan.evaluates(number + 1):
            for learner in self.learners:
                measures = evaluated(learner.model, self.task, Split.VALIDATION)
                clock = time.perf_counter() - began
                named = {"update": number + 1, "learner": learner.name, "clock": clock}
                self.run.record("evaluation", **named, measures=measures)
                self.reporter.evaluated(number + 1, learner.name, measures)

    def _keep(self, update: int) -> None:
        learners = {learner.name: learner.state() for learner in self.learners}
        self.run.keep_checkpoint(update, {"update": update, "learners": learners})
        for learner in self.learners:
            save(learner.model, self.run.model_folder(learner.name))

    def _seconds(self, done: int) -> float:
        """The clock of the run at an earlier update."""
        clocks = [row["clock"] for row in self.run.records("update") if row["update"] <= done] if done else []
        return clocks[-1] if clocks else 0.0
