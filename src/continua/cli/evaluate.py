"""`continua eval`: the models of a run at other samplings and resolutions, and the best of these within a time."""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from rich.console import Console
from rich.markup import escape

from continua.cli.measuring import Results, measure_models, models_off, record_results, show_results
from continua.cli.options import task_of
from continua.cli.parsing import Flag, Measure, RunFolder
from continua.cli.resuming import open_training
from continua.cli.runs import load_models
from continua.cli.train import options_of
from continua.core.checks import at_least, positive
from continua.model import ContinuousTransformer, choosable_resolutions
from continua.report import format_number, write_report
from continua.runs import Run, finite

Choices = dict[str, dict[str, Any]]


@final
@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measure the models of a run: test, other samplings, other depth steps.

    Nothing is trained. Every model of the run is evaluated on the test split, and on the same split sampled otherwise
    (more samples, missing ones) where the task knows how; with a quarter to eight times its depth steps, with adaptive
    steps at several tolerances, and with half and twice its head nodes and axis nodes, each with the evaluations of the
    flow and the milliseconds that it takes. The solver error is the distance of its output from that of an adaptive
    solve at a tight tolerance. The numbers are added to the run's records and report.
    """

    folder: RunFolder
    """the folder of a run"""
    threads: int = 0
    """CPU threads that torch uses; 0: as many as the run had"""
    milliseconds: Measure = None
    """also say at which of these resolutions a model has the lowest test loss in so many milliseconds per sequence"""
    json: Flag = False
    """print one JSON object instead of tables"""

    def execute(self, console: Console) -> int:
        at_least(0, threads=self.threads)
        positive(milliseconds=self.milliseconds)
        run = open_training(self.folder)
        if threads := self.threads or int(run.manifest["facts"].get("threads", 0)):
            torch.set_num_threads(threads)
        trained = options_of(run)
        task = task_of(trained.task, trained.data)
        models = load_models(run)
        results = measure_models(task, models, None if self.json else console, models_off(run))
        page = self._note(run, results)
        chosen = {} if self.milliseconds is None else choose_within(self.milliseconds, self.folder, models, results)
        if self.json:
            told = {} if self.milliseconds is None else {"chosen": chosen}
            print(json.dumps(finite({"run": str(self.folder), "results": results, **told}), allow_nan=False))
            return 0
        errors = {name: found["solver error"] for name, found in results.items() if "solver error" in found}
        owed = [
            f"{name}: solver error {e:.1%} of the output, against a tight adaptive solve" for name, e in errors.items()
        ]
        show_results(
            console, run, task, results, page, [*owed, *map(escape, choice_lines(self.milliseconds or 0.0, chosen))]
        )
        return 0

    def _note(self, run: Run, results: Results) -> Path | None:
        """Adds the results to the records, and to the report; where that cannot be, they are still shown."""
        try:
            with run.lock():
                record_results(run, results)
                if not (run.folder / "models").exists():
                    run.keep_models()
                return write_report([run.folder])
        except (OSError, ValueError) as error:
            sys.stderr.write(f"continua: the results are not noted in the run: {error}\n")
            return None


def choose_within(
    milliseconds: float, folder: Path, models: Mapping[str, ContinuousTransformer], results: Results
) -> Choices:
    """Of every model the resolution with the lowest loss that takes at most so many milliseconds per sequence.

    As the Python that loads it from the run. Where nothing is so fast, the fastest one, and that it does not `fit`.
    Of a model whose network is off, nothing.
    """
    chosen: Choices = {}
    for name, model in models.items():
        rows = results[name].get("resolutions", {})  # none where the network is off
        known = {each: rows[str(each)] for each in choosable_resolutions(model) if str(each) in rows}
        known = {each: row for each, row in known.items() if math.isfinite(row["loss"])}
        fitting = {each: row for each, row in known.items() if row["milliseconds"] <= milliseconds}
        measure = "loss" if fitting else "milliseconds"
        found = min(fitting or known, key=lambda each: known[each][measure], default=None)
        chosen[name] = {}
        if found is not None:
            loaded = ", ".join(map(repr, [str(folder), *([] if name == "continuous" else [name])]))
            costs = {key: known[found][key] for key in ("milliseconds", "loss")}
            chosen[name] = {"fits": bool(fitting), "python": f"continua.load({loaded}).{found.call}", **costs}
    return chosen


def choice_lines(milliseconds: float, chosen: Choices) -> list[str]:
    """A line for every model: what was chosen, and what it costs."""
    lines = []
    for name, found in chosen.items():
        if not found:
            lines.append(
                f"{name}: nothing to choose within {milliseconds:g} ms: it has one set of numbers at every resolution"
            )
            continue
        which = "the lowest loss within" if found["fits"] else "nothing is as fast as"
        cost = f"{format_number(found['milliseconds'], 3)} ms, loss {found['loss']:.4f}"
        fastest = "" if found["fits"] else "the fastest is "
        lines.append(f"{name}, {which} {milliseconds:g} ms per sequence: {fastest}{found['python']}, {cost}")
    return lines
