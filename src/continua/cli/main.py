"""The entry point: the first word chooses a command, whose options fill one frozen dataclass, which executes.

Nothing heavy is imported until a command is known, so that help comes at once.
"""

import contextlib
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from typing import Any, NamedTuple

from continua.core.version import __version__


class Command(NamedTuple):
    """Where in the package a command lives, and the first line of what it says of itself."""

    module: str
    name: str
    summary: str

    def load(self) -> type[Any]:
        """The dataclass of its options."""
        return getattr(importlib.import_module(f"continua.{self.module}"), self.name)


COMMANDS: Mapping[str, Command] = {
    "train": Command("cli.train", "Train", "Train a continuous Transformer on a task, and leave a run folder."),
    "eval": Command(
        "cli.evaluate", "Evaluate", "Measure the models of a run: test, other samplings, other depth steps."
    ),
    "predict": Command(
        "cli.runs", "Predict", "Use a trained run on a file: fill empty cells, predict classes, continue a text."
    ),
    "runs": Command("cli.runs", "Runs", "List the runs in a folder with their results."),
    "generate": Command("cli.runs", "Generate", "Continue a text with a model of a text run."),
    "report": Command(
        "cli.runs", "Report", "Write one self-contained HTML page about one run, or several side by side."
    ),
    "plan": Command(
        "cli.plan", "Forecast", "Predict what a training needs: memory, time, communication, largest batch."
    ),
    "lab": Command("lab.command", "Lab", "Measure what theory claims: list, run NAME, run all, report."),
    "solve": Command("lab.solve", "Solve", "Solve a small causal Transformer on irregular samples, forward and back."),
    "bench": Command("bench.command", "Bench", "Measure what the library costs, as ratios to peers taken in one run."),
}
"""The one table from words to commands."""

_STOPPED = 130
"""Exit code of a command that was stopped and has nothing to go on with, as shells have it for Ctrl-C."""
INTERRUPTED = 75
"""Exit code of a run that was asked to stop and can go on (EX_TEMPFAIL of sysexits.h)."""

_TOO_LARGE = ("allocate memory", "size calculation overflowed", "out of memory")
"""What torch says of sizes that no memory holds, on processors and on other devices."""

_USAGE = """usage: continua COMMAND [OPTIONS]

The Transformer that is continuous in token time, embedding, heads and depth.

commands:
{commands}

options:
  --help     show this message; after a command, its options
  --version  print the version
  --debug    show the traceback of an error (or set CONTINUA_DEBUG=1)
  --completion SHELL
             print a script that completes commands and options in bash, zsh or tcsh

exit codes: 0 done, 1 failed, 2 bad use, 75 stopped, can be resumed, 130 stopped, nothing to resume
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `continua ...`; a user's mistake is one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may have bytes that are no text
    debug = "--debug" in words or os.environ.get("CONTINUA_DEBUG", "0") not in ("", "0")
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["help"]:
        words = [*(word for word in words[1:2] if word not in ("help", "-h")), "--help"]
    if not words or words[0] in ("-h", "--help"):
        lines = (f"  {name:<9}  {command.summary}" for name, command in COMMANDS.items())
        print(_USAGE.format(commands="\n".join(lines)), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"continua {__version__}")
        return 0
    option, _, shell = words[0].partition("=")
    try:
        if option in ("--completion", "--tyro-print-completion"):
            from continua.cli.parsing import completion

            kinds = {name: command.load() for name, command in COMMANDS.items()}
            print(completion(shell or "".join(words[1:2]), kinds), end="")
            return 0
        return _run(words[0], words[1:], debug) if words[0] in COMMANDS else _fail(_unknown(words[0]), 2)
    except KeyboardInterrupt:
        return _fail("stopped", _STOPPED)
    except ValueError as error:
        if debug:
            raise
        return _fail(str(error), 2)


def _run(name: str, words: list[str], debug: bool) -> int:
    from rich.console import Console

    from continua.cli.parsing import describe_error, read_command
    from continua.core.errors import DamageWarning, SolveError
    from continua.core.extras import MissingExtraError
    from continua.train import Interrupted, LostRankError, TrainingError

    class Output(Console):
        def on_broken_pipe(self) -> None:  # rich would leave without a word, and a run without its state
            raise BrokenPipeError

    kind, show, rank = COMMANDS[name].load(), warnings.showwarning, int(os.environ.get("RANK", "0"))
    told = set[type[Warning]]()

    def tell(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if not category.__module__.startswith("continua."):
            show(message, category, *where)
        elif issubclass(category, DamageWarning) or category not in told:  # others come again in every update
            told.add(category)
            _fail(str(message), 0)

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(_Terminal(sys.stdout) if sys.stdout else None):
            warnings.simplefilter("default", DamageWarning)
            warnings.showwarning = tell
            return read_command(kind, name, words).execute(Output())
    except Interrupted as stopped:
        _leave_output()
        return INTERRUPTED if rank else _fail(str(stopped), INTERRUPTED)
    except LostRankError as lost:
        return _fail(f"rank {rank}: {lost}. What was saved is whole. Give the same command again.", INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has seen enough
        _leave_output()
        return 0
    except (ValueError, SolveError, TrainingError, MissingExtraError, OSError) as error:
        # what is asked for is the same on all ranks, and refused by all: the first one says so
        if rank and not isinstance(error, OSError):
            return 2
        if debug:
            raise
        if isinstance(error, OSError):
            where = f" {error.filename!r}" if error.filename else ""
            cure = "Look at the path, its rights and the space left."
            return _fail(f"the file system refused{where}: {error.strerror or error}. {cure}", 1)
        return _fail(describe_error(error, kind), 1 if isinstance(error, TrainingError) else 2)
    except (MemoryError, RuntimeError) as error:
        # torch has no class of its own for memory that is not there on a processor
        if debug or not (isinstance(error, MemoryError) or any(words in str(error).lower() for words in _TOO_LARGE)):
            raise
        return _fail("there is not enough memory for these sizes. Take smaller ones.", 1)


def _unknown(word: str) -> str:
    if word == "demo":
        return "there is no command 'demo'. What `make demo` runs is `continua train`; one solve is `continua solve`."
    from continua.cli.parsing import suggest

    meant = suggest(word, COMMANDS) or f"Choose from {', '.join(COMMANDS)}. "
    return f"there is no command {word!r}. {meant}`continua --help` tells more."


class _Terminal:
    """Standard output, on which a terminal that is gone ends nothing: its window is closed, or its connection lost.

    Commands that shall end with it get a SIGHUP; those that do not were begun with `nohup`, `setsid` or `disown`.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        return self._try(self._file.write, text)

    def flush(self) -> None:
        self._try(self._file.flush)

    def _try(self, act: Callable[..., Any], *given: str) -> Any:
        try:
            return act(*given)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _silence(self._file)
            return 0


def _leave_output() -> None:
    """Python writes what is left at its end, and fails where nobody reads it any more."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence(sys.stdout)


def _silence(file: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"continua: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
