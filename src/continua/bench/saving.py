"""What checkpoints cost a training at the default interval."""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any, final

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Ratio, time_in_turn
from continua.data import AbstractTask, Digits, Mnist1d, Spirals
from continua.optim import adamw
from continua.runs import Run
from continua.train import PRESETS, Learner, Plan, Training, build_continuous, objective_of

_TASKS: dict[str, AbstractTask] = {"mnist1d": Mnist1d(), "digits": Digits(), "spirals": Spirals()}


@final
@dataclasses.dataclass(frozen=True)
class SavingCost(AbstractBenchmark):
    """Updates and checkpoints of demo presets by processor time, and the fraction of a whole run that saving takes.

    A run of T seconds saves T / 30 times, and once more at its beginning, at each validation and at its end.
    """

    tasks: tuple[str, ...] = ("mnist1d", "digits", "spirals")
    repetitions: int = 9
    limit: float = 0.02
    threads: int = 1

    @property
    def claim(self) -> str:
        return f"at the default interval saving takes at most {self.limit:.0%} of the training"

    def quick(self) -> "SavingCost":
        return SavingCost(("digits",), repetitions=1)

    def measure(self) -> BenchResult:
        rows, ratios = [], []
        for name in self.tasks:
            preset, task = PRESETS[name]["demo"], _TASKS[name]
            how = preset.training
            model = build_continuous(task.form, preset)
            optimiser = adamw(model, how.learning_rate, how.weight_decay)
            learner = Learner("continuous", model, objective_of(task.form, model, preset), optimiser)
            plan = Plan(how.updates, how.batch_size, validations=how.validations)
            with tempfile.TemporaryDirectory() as folder:
                seconds = self._time(Training(Run.begin(Path(folder), "train", {}), task, [learner], plan))
            update, save = (min(found) for found in seconds.values())
            total = how.updates * update
            saves = total / plan.save_seconds + how.validations + 2
            rows.append({"task": name, "update s": update, "checkpoint s": save, "run s": total, "checkpoints": saves})
            ratios.append(Ratio(f"{name}: saving / training", saves * save / total, self.limit))
        return BenchResult(tuple(rows), tuple(ratios))

    def _time(self, training: Training) -> dict[str, list[float]]:
        (learner,), numbers = training.learners, iter(range(10**9))
        batch = training.task.training_batch(training.plan.batch_size, 0, 0)
        cases: dict[str, Any] = {
            "update": lambda: learner.update(batch, next(numbers) % 100, training.plan),
            "save": lambda: training.keep(next(numbers)),
        }
        return time_in_turn(cases, self.repetitions, time.process_time)
