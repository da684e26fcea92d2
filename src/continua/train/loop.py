"""The loop: the same batches for every learner, records, validations, checkpoints; it goes on where it stopped."""

import contextlib
import dataclasses
import math
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, final

from continua.core.errors import ArgumentError, DamageWarning, SolveError, reject
from continua.data import AbstractTask, Split
from continua.model import load
from continua.runs import Run, read_checkpoint
from continua.train.evaluation import evaluate
from continua.train.learner import DivergedError, Learner, is_lost
from continua.train.presets import Plan
from continua.train.ranks import Ranks
from continua.train.reporter import AbstractReporter


class Interrupted(BaseException):
    """A run that was asked to stop, and why; no error, and not to be caught as one."""


class StopRequest:
    """While this is open, SIGINT, SIGTERM and SIGHUP raise `Interrupted`, or `held` are noted; a second one raises.

    Signals that were ignored before, as by nohup, still are.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.held = False
        self._before: list[dict[signal.Signals, Any]] = []

    def __enter__(self) -> "StopRequest":
        self._before.append({})
        with contextlib.suppress(ValueError):  # signals belong to the main thread; elsewhere there is nothing to hear
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[-1][number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.pop().items():
            signal.signal(number, handler)

    def obey(self) -> None:
        """Raises what was noted."""
        if self.reason:
            raise Interrupted(self.reason)

    @contextlib.contextmanager
    def holding(self, held: bool) -> Iterator[None]:
        """Inside, requests are noted, or obeyed at once where nothing can be half done."""
        before, self.held = self.held, held
        try:
            if not held:
                self.obey()
            yield
        finally:
            self.held = before

    def _hear(self, number: int, frame: FrameType | None) -> None:
        second, self.reason = bool(self.reason), f"stopped by {signal.Signals(number).name}"
        if second or not self.held:
            raise Interrupted(self.reason)


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
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)

    @property
    def ranks(self) -> Ranks:
        """Those that train together; rank 0 alone writes into the run."""
        return self.learners[0].ranks

    def resume(self, before: int | None = None) -> int:
        """Takes up the latest checkpoint, with `before` one of fewer updates; says how many updates are done."""
        folder = self.ranks.tell(lambda: self._find_checkpoint(before))
        if not folder:
            return 0
        last = read_checkpoint(self.run.folder / "checkpoints" / folder)
        learners = last.state.get("learners")
        if not isinstance(learners, dict) or set(learners) != {learner.name for learner in self.learners}:
            cure = "Go on with the configuration of the run itself."
            reject("checkpoint", str(last.folder), "it is of other learners", cure)
        for learner in self.learners:
            learner.restore(learners[learner.name], load(last.folder / learner.name))
        if self.ranks.first:
            if before is not None:  # else a kill before the next checkpoint would lead back to what was left
                self.run.drop_checkpoints(last.update)
            self.run.forget(last.update)
            self._note_best()
        return last.update

    def _find_checkpoint(self, before: int | None) -> str:
        """The name of the latest checkpoint that is whole; nothing where the run begins anew."""
        last, known = self.run.last_checkpoint(before), [row.get("update", 0) for row in self.run.records("update")]
        if last is None:
            if known:
                cure = "Copy the folder again with them, or train a new run."
                reject("run", str(self.run.folder), "it has records of updates, but its checkpoints are gone", cure)
            warnings.warn("the run has no checkpoint yet: it begins anew.", DamageWarning, stacklevel=1)
            return ""
        if last.update > max(known, default=0):
            text = f"the records end before update {last.update}, where the run goes on: its curves will have a gap."
            warnings.warn(text, DamageWarning, stacklevel=1)
        return last.folder.name

    def go(self, done: int = 0) -> None:
        """Trains from update `done` to the end; asked to stop, it writes a checkpoint and raises `Interrupted`."""
        clocks = [row.get("clock", 0.0) for row in self.run.records("update")] if done and self.ranks.first else []
        began = time.perf_counter() - (clocks[-1] if clocks else 0.0)  # the clock of the run goes on
        with self.stop, self.stop.holding(True):
            self._tell("begin", self.plan, done)
            try:
                if done == 0:
                    self.keep(0)
                else:
                    self._validate(done, began)
                self._train(done, began)
            finally:
                self._tell("end")

    def _train(self, done: int, began: float) -> None:
        saved = time.monotonic()
        for number in range(done, self.plan.updates):
            if self.plan.patience and self.plan.validates(number) and self._has_stalled(number):
                return
            start = time.monotonic()
            self._update(number, began)
            now = time.monotonic()
            # before the next update, which takes as long again, could be lost beyond the limit
            due = self.plan.saves(number + 1, now - saved + (now - start))
            due, stopped = self.ranks.any(due, bool(self.stop.reason))
            if due or stopped:
                self.keep(number + 1)
                saved = time.monotonic()
            if stopped:
                self.stop.reason = self.stop.reason or "stopped by a signal to another rank"
            self.stop.obey()
            self._validate(number + 1, began)

    def _update(self, number: int, began: float) -> None:
        batch = self.task.training_batch(self.plan.batch_size, number, self.plan.seed)
        rows = {learner.name: learner.update(batch, number, self.plan) for learner in self.learners}
        for name, row in rows.items():
            facts: dict[str, Any] = row._asdict()
            facts |= {"tokens_per_second": row.tokens_per_second, "clock": time.perf_counter() - began}
            if self.ranks.first:
                self.run.record("update", update=number + 1, model=name, **facts)
            self._tell("on_update", number + 1, name, row)
        for learner in self.learners:
            if learner.skipped >= self.plan.max_skipped:
                self._diverge(learner, number + 1)

    def _validate(self, update: int, began: float) -> None:
        """Reads the validation split, where it is due and was not read before; nothing is lost if it is stopped."""
        if not self.plan.validates(update):
            return
        read = self.ranks.tell(lambda: self._names_read(update)).split()
        with self.stop.holding(False):
            for learner in self.learners:
                if learner.name not in read:
                    metrics = self._measure(learner, update)
                    named = {"update": update, "model": learner.name, "clock": time.perf_counter() - began}
                    if self.ranks.first:
                        self.run.record("validation", **named, metrics=metrics)
                    self._tell("on_validation", update, learner.name, metrics)
        if self.ranks.first:
            self._note_best()

    def _names_read(self, update: int) -> str:
        rows = (row for row in self.run.records("validation") if row.get("update") == update)
        return " ".join(str(row.get("model")) for row in rows)

    def _measure(self, learner: Learner, update: int) -> dict[str, float]:
        try:
            return evaluate(learner.model, self.task, Split.VALIDATION, ranks=self.ranks)
        except (SolveError, ArgumentError) as error:
            if is_lost(error):
                self._diverge(learner, update)
            raise

    def _note_best(self) -> None:
        """Notes after which update each learner had its lowest loss of validation: these checkpoints are kept."""
        best = {}
        for learner in self.learners:
            losses = [(loss, update) for update, loss in self._losses(learner) if loss is not None]
            loss, update = min(losses, default=(None, None))
            best[learner.name] = {"update": update, "loss": loss}
        self.run.note(best={**best[self.learners[0].name], "of": best})

    def _losses(self, learner: Learner) -> list[tuple[int, float | None]]:
        """Updates after which a learner was validated, with its losses."""
        rows = [row for row in self.run.records("validation") if row.get("model") == learner.name]
        return [(row["update"], row["metrics"]["loss"]) for row in rows]

    def _has_stalled(self, update: int) -> bool:
        """Whether no learner had a lower loss in its last `patience` validations than before them; which is noted."""

        def gains(learner: Learner) -> bool:
            known = [math.inf if loss is None else loss for _, loss in self._losses(learner)]
            patience = self.plan.patience
            return len(known) <= patience or min(known[-patience:]) < min(known[:-patience])

        stalled = bool(self.ranks.tell(lambda: "" if any(gains(one) for one in self.learners) else "stalled"))
        if stalled and self.ranks.first:
            self.run.note(stopped=update)
        return stalled

    def take_best(self) -> dict[str, int]:
        """Gives every learner the parameters of its lowest loss of validation; says after how many updates these were.

        Where validation reads the test, the last parameters stay: nothing may be chosen by the test.
        """
        last = self.run.last_checkpoint()
        taken = {learner.name: 0 if last is None else last.update for learner in self.learners}
        if not self.plan.best or "validation" in self.task.facts():
            return taken
        for learner in self.learners:
            update = self.run.manifest["facts"].get("best", {}).get("of", {}).get(learner.name, {}).get("update")
            folder = self.run.folder / "checkpoints" / f"{update or 0:08d}" / learner.name
            if update is not None and update != taken[learner.name] and folder.is_dir():
                learner.model.load_state_dict(load(folder).state_dict())
                taken[learner.name] = update
        return taken

    def keep(self, update: int) -> None:
        """Writes a checkpoint, unless parameters are lost or updates being skipped: good ones are not replaced."""
        for learner in self.learners:
            if not learner.is_finite():
                self._diverge(learner, update)
        if any(learner.skipped for learner in self.learners) and update < self.plan.updates:
            return
        learners = {learner.name: learner.state() for learner in self.learners}
        files = {
            f"{learner.name}/{name}": content for learner in self.learners for name, content in learner.files().items()
        }
        if self.ranks.first:
            self.run.keep_checkpoint(update, {"learners": learners}, files, self.plan.keep)

    def _diverge(self, learner: Learner, update: int) -> NoReturn:
        since = update - learner.skipped + 1
        what = f"from update {since} on loss or gradient of {learner.name} are not finite"
        raise DivergedError(f"the training diverged: {what}; the last good state is kept", since)

    def _tell(self, event: str, *facts: Any) -> None:
        for reporter in self.reporters:
            try:
                getattr(reporter, event)(*facts)
            except OSError as error:  # a pipe without a reader, a log on a full disk: what is trained is saved
                gone = isinstance(error, BrokenPipeError)
                why = "nobody reads the output any more" if gone else f"the output cannot be written ({error.strerror})"
                self.stop.reason = self.stop.reason or f"stopped, since {why}"
