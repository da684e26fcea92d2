"""What is done with a run that is there: `continua eval`, `continua generate` and `continua report`."""

import dataclasses
import json
import shlex
import sys
from typing import Annotated, cast, final

import torch
import tyro
from rich.console import Console

from continua.cli.choosing import remarks
from continua.cli.measuring import Results, measure_models, record_results, results_tables
from continua.cli.options import task_of
from continua.cli.parsing import Count, Flag, RunFolder, RunFolders, SomeFolder, choose, refuse_missing
from continua.cli.train import open_training, options_of
from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.seeds import generator_of
from continua.data import encode
from continua.model import ContinuousTransformer, Decoding, Window, load, stream_tokens, why_not_cacheable
from continua.report import write_report
from continua.runs import Run, check_writable, finite


@final
@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measure the models of a run: test, other samplings, other depth steps.

    Nothing is trained. The models run on the test split as it is, in the other samplings that the task knows, and with
    1 to 32 depth steps (anytime depth). The solver error is the distance of their output from that of a tight adaptive
    solve: what they owe to their own steps. The numbers are added to the run's records.
    """

    folder: RunFolder
    """the folder of a run"""
    threads: int = 0
    """threads of torch, 0 for its own choice"""
    json: Flag = False
    """print one JSON object instead of tables"""

    def execute(self, console: Console) -> int:
        at_least(0, threads=self.threads)
        if self.threads:
            torch.set_num_threads(self.threads)
        run = open_training(self.folder)
        trained = options_of(run)
        task = task_of(trained.task, trained.data)
        results = measure_models(task, _load_models(run), None if self.json else console)
        self._note(run, results)
        if self.json:
            print(json.dumps(finite({"run": str(self.folder), "results": results}), allow_nan=False))
            return 0
        console.print(*results_tables(task, results), *remarks(results, run), sep="\n", soft_wrap=True)
        for name, found in results.items():
            error = found.get("solver error")
            if error is not None:
                console.print(f"{name}: solver error {error:.1%} of the output, against a tight adaptive solve")
        return 0

    def _note(self, run: Run, results: Results) -> None:
        """Adds the results to the records; where that cannot be, they are still shown."""
        try:
            with run.lock():
                record_results(run, results)
                if not (run.folder / "models").exists():
                    run.keep_models()
        except (OSError, ValueError) as error:
            sys.stderr.write(f"continua: the results are not noted in the run: {error}\n")


@final
@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue a text with a model of a text run.

    Characters are drawn one after the other, each given all before it; the same seed writes the same text.
    """

    folder: RunFolder
    """the folder of a run on text"""
    prompt: Annotated[str, tyro.conf.arg(help_behavior_hint=r"(default: '\n')")] = "\n"
    """how the text begins"""
    max_new_tokens: int = 500
    """characters to write"""
    temperature: float = 0.8
    """0 takes the likeliest character, higher values are more random"""
    top_k: Count = None
    """draw among so many likeliest characters only (default: all)"""
    stop: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    """end as soon as this was written (default: at --max-new-tokens)"""
    seed: int = 0
    """seed of the draws"""
    slide: int = 1
    """a full window moves on by so many characters at once: more is faster, but each is drawn from fewer before it"""
    model: str = "continuous"
    """which model of the run"""
    uncached: Flag = False
    """keep no keys and values, and solve the whole window for every character: the same text, slower"""

    def execute(self, console: Console) -> int:
        run = Run.open(self.folder)
        facts = run.manifest["facts"].get("task", {})
        if "alphabet" not in facts:
            reject("run", str(self.folder), "it has not learnt to write", "Pass a run of `continua train text`.")
        models = _load_models(run)
        choose("--model", self.model, models, "model in the run", "generate")
        at_least(1, max_new_tokens=self.max_new_tokens)
        if self.prompt == "":
            reject("--prompt", self.prompt, "there is nothing to go on from", "Pass at least one character.")
        if self.stop == "":
            reject("--stop", self.stop, "nothing is written before it", "Pass some text, or leave it out.")
        model, alphabet, written = models[self.model], facts["alphabet"], ""
        decoding, window = Decoding(self.temperature, self.top_k), Window(facts["context_length"], self.slide)
        prompt = encode(self.prompt, alphabet, "--prompt").unsqueeze(0)
        tokens = stream_tokens(model, prompt, decoding, window, generator_of(self.seed), not self.uncached)
        why = why_not_cacheable(model)
        if why is not None and not self.uncached:
            note = "no keys and values are kept, and every character costs a solve of the whole window"
            sys.stderr.write(f"continua: {note}: {why}\n")
        sys.stdout.write(self.prompt)
        for token in (int(drawn) for drawn in tokens):
            written += alphabet[token]
            sys.stdout.write(alphabet[token])
            sys.stdout.flush()
            if len(written) >= self.max_new_tokens or (self.stop is not None and written.endswith(self.stop)):
                break
        sys.stdout.write("\n")
        return 0


@final
@dataclasses.dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about one run, or several side by side.

    Reads run folders only, never a model. The page needs no network: losses, cost, steps along depth, token
    trajectories, attention weights with a depth slider, heads, costates, resolutions and papers, as far as the
    runs have them. It goes into the run, or to --output, and its path is printed.
    """

    folders: RunFolders
    """folders of runs, as training leaves them"""
    others: Annotated[RunFolders, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")] = ()
    """more of them, behind an option"""  # tyro takes the words of one place only side by side
    output: SomeFolder = None
    """where the page goes (default: report.html in the run, comparison.html in the first of several)"""

    def execute(self, console: Console) -> int:
        if not self.folders:  # tyro takes none for many
            refuse_missing("report", "RUN [RUN ...]")
        if self.output is not None and self.output.is_dir():
            named = shlex.quote(str(self.output / "report.html"))
            reject("--output", str(self.output), "this is a folder", f"Name a file in it: --output {named}.")
        if self.output is not None:
            check_writable("--output", self.output.parent, self.output)
        page = write_report((*self.folders, *self.others), self.output)
        console.print(str(page), soft_wrap=True, highlight=False, markup=False)
        return 0


def _load_models(run: Run) -> dict[str, ContinuousTransformer]:
    """The models of a run by name: those it ended with, or as of its latest checkpoint; the continuous one first."""
    ended = run.folder / "models"
    if run.manifest["state"] == "finished" and ended.is_dir():
        names = sorted(path.parent.name for path in ended.glob("*/model.json"))
        return {name: cast(ContinuousTransformer, load(ended / name).eval()) for name in names}
    last = run.last_checkpoint()
    if last is None:
        reject("run", str(run.folder), "it has no model yet", "Let it reach its first checkpoint.")
    names = sorted(name.partition("/")[0] for name in last.files if name.endswith("/model.json"))
    return {name: cast(ContinuousTransformer, load(last.folder / name).eval()) for name in names}
