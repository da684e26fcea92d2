"""`continua generate`: a model of a text run writes on."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, final

import tyro
from rich.console import Console

from continua.cli.choices import choose
from continua.cli.loading import models_of
from continua.cli.options import Count, Flag
from continua.core.errors import reject
from continua.data import encode
from continua.model import unreadable
from continua.runs import Run
from continua.train import Sampling, Window, generate


@final
@dataclasses.dataclass(frozen=True)
class Generate:
    """Let a model of a text run write on.

    Characters are drawn one after the other, each given all before it; the same seed writes the same text.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """the folder of a run on text"""
    prompt: str = "\n"
    """how the text begins"""
    length: int = 500
    """characters to write"""
    temperature: float = 0.8
    """0 takes the likeliest character, higher values dare more"""
    top: Count = None
    """draw among so many likeliest characters only (default: all)"""
    stop: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    """end as soon as this was written (default: at --length)"""
    seed: int = 0
    """seed of the draws"""
    slide: int = 1
    """a full window moves on by so many characters at once: more is faster, but each is drawn from fewer before it"""
    model: str = "continuous"
    """which model of the run"""
    uncached: Flag = False
    """keep no keys and values, and solve the whole window for every character: the same text, slower"""

    def run(self, console: Console) -> int:
        """Runs the command."""
        run = Run.open(self.folder)
        facts = run.manifest["facts"].get("task", {})
        if "alphabet" not in facts:
            reject("run", str(self.folder), "it has not learnt to write", "Pass a run of `continua train text`.")
        models = models_of(run)
        choose("--model", self.model, models, "model in the run", "generate")
        if self.length < 1:
            reject("--length", self.length, "there is nothing to write", "Pass --length >= 1.")
        if self.prompt == "":
            reject("--prompt", self.prompt, "there is nothing to go on from", "Pass at least one character.")
        if self.stop == "":
            reject("--stop", self.stop, "nothing is written before it", "Pass some text, or leave it out.")
        model, alphabet, written = models[self.model], facts["alphabet"], ""
        sampling, window = Sampling(self.temperature, self.top), Window(facts["context"], self.slide)
        tokens = generate(
            model, encode(self.prompt, alphabet, "--prompt"), sampling, window, self.seed, not self.uncached
        )
        why = unreadable(model)
        if why is not None and not self.uncached:
            note = "no keys and values are kept, and every character costs a solve of the whole window"
            sys.stderr.write(f"continua: {note}: {why}\n")
        sys.stdout.write(self.prompt)
        for token in tokens:
            written += alphabet[token]
            sys.stdout.write(alphabet[token])
            sys.stdout.flush()
            if len(written) >= self.length or (self.stop is not None and written.endswith(self.stop)):
                break
        sys.stdout.write("\n")
        return 0
