"""Who watches a run: a bar on the console, lines of JSON, or event files."""

import abc
import dataclasses
import io
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from continua.core.counts import say_count
from continua.core.extras import extra
from continua.runs import finite
from continua.train.learner import Row
from continua.train.presets import Plan

_PAUSE = 10.0
"""Where there is no terminal, a line of progress comes no sooner than so many seconds after the line before."""


class AbstractReporter(abc.ABC):
    """Hears of the beginning, of every update and validation, and of the end."""

    @abc.abstractmethod
    def begin(self, plan: Plan, done: int) -> None:
        """The run begins, or goes on after `done` updates."""

    @abc.abstractmethod
    def on_update(self, update: int, learner: str, row: Row) -> None:
        """A learner made an update; `update` counts from 1."""

    @abc.abstractmethod
    def on_validation(self, update: int, learner: str, metrics: dict[str, float]) -> None:
        """A learner was measured on the validation split."""

    @abc.abstractmethod
    def end(self) -> None:
        """The run ended, however it did."""


def measures_shown(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """What a reader is told of: the loss only where no other measure is the same, as the nats of a text are."""
    others = [name for name in rows[0] if name != "loss"]
    twice = any(
        all(math.isclose(row["loss"], row[name], rel_tol=1e-5) for row in rows if "loss" in row) for name in others
    )
    return others if twice else [*rows[0]]


@final
class Bar(AbstractReporter):
    """A bar with loss, tokens per second, evaluations of the velocity and the time left; one line per validation.

    Loss, speed and evaluations are those of the first learner. Without a terminal the bar is a line now and then.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.left = TimeRemainingColumn()
        columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(16), TextColumn("{task.description}"))
        self.progress = Progress(*columns, self.left, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.progress.add_task("first update", total=None)
        self.smooth: float | None = None
        self.updates = self.skipped = self.widest = 0
        self.shown: str | None = None
        self.said = time.monotonic()

    def begin(self, plan: Plan, done: int) -> None:
        self.updates = plan.updates
        if not self.console.is_terminal:  # without a bar, whoever waits should know for what
            went = f" from update {done:,} on" if done else ""
            times = min(plan.validations, plan.updates)
            read = "once" if times == 1 else f"{times} times"
            text = f"training for {say_count(plan.updates, 'update')}{went}; the validation split is read {read}"
            self.console.print(text, highlight=False, soft_wrap=True)
        self.progress.start()
        self.progress.reset(self.task, total=plan.updates, completed=done)

    def on_update(self, update: int, learner: str, row: Row) -> None:
        self.shown = self.shown or learner
        if learner != self.shown:
            return
        self.skipped += row.skipped
        if not row.skipped:
            self.smooth = row.loss if self.smooth is None else 0.95 * self.smooth + 0.05 * row.loss
        loss = f"loss {math.nan if self.smooth is None else self.smooth:.3f}"
        loss += f" ({say_count(self.skipped, 'update')} skipped)" if self.skipped else ""
        text = f"{loss}  {row.tokens_per_second:,.0f} tokens/s  {row.evaluations} evaluations"
        self.progress.update(self.task, completed=update, description=text)
        if not self.console.is_terminal and time.monotonic() - self.said >= _PAUSE:
            self._say(update, learner, f"{text}  {self.left(self.progress.tasks[0])} left")

    def on_validation(self, update: int, learner: str, metrics: dict[str, float]) -> None:
        text = "validation: " + "  ".join(f"{name} {metrics[name]:.4f}" for name in measures_shown([metrics]))
        self._say(update, learner, text)

    def end(self) -> None:
        self.progress.stop()

    def _say(self, update: int, learner: str, text: str) -> None:
        done = f"{update:>{len(str(self.updates))}}/{self.updates}"
        self.widest = max(self.widest, len(learner))  # all learners speak in turn
        self.console.print(f"{done}  {learner:<{self.widest}}  {text}", highlight=False, soft_wrap=True)
        self.said = time.monotonic()


@final
@dataclasses.dataclass(frozen=True)
class JsonLines(AbstractReporter):
    """One JSON object per line: validations, and every `every`-th update, the first included."""

    every: int = 100
    stream: io.TextIOBase | None = None
    """Where to; standard output by default."""

    def begin(self, plan: Plan, done: int) -> None:
        self._say(kind="begin", update=done, updates=plan.updates)

    def on_update(self, update: int, learner: str, row: Row) -> None:
        if update % self.every == 0 or update == 1:
            losses = {"loss": row.loss, "total": row.total}
            costs = {"evaluations": row.evaluations, "tokens_per_second": row.tokens_per_second}
            self._say(kind="update", update=update, model=learner, **losses, lr=row.lr, **costs)

    def on_validation(self, update: int, learner: str, metrics: dict[str, float]) -> None:
        self._say(kind="validation", update=update, model=learner, **metrics)

    def end(self) -> None:
        self._say(kind="end")

    def _say(self, **row: Any) -> None:
        print(json.dumps(finite(row), allow_nan=False), file=self.stream or sys.stdout, flush=True)


@final
class Events(AbstractReporter):
    """TensorBoard event files, one writer for each learner."""

    def __init__(self, folder: Path) -> None:
        extra("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.make, self.folder, self.writers = SummaryWriter, folder, dict[str, Any]()

    def begin(self, plan: Plan, done: int) -> None: ...

    def on_update(self, update: int, learner: str, row: Row) -> None:
        for name in ("loss", "total", "lr", "grad_norm", "evaluations", "tokens_per_second"):
            self._writer(learner).add_scalar(name, getattr(row, name), update)

    def on_validation(self, update: int, learner: str, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer(learner).add_scalar(f"validation/{name}", value, update)

    def end(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _writer(self, learner: str) -> Any:
        if learner not in self.writers:
            self.writers[learner] = self.make(str(self.folder / learner))
        return self.writers[learner]
