"""How a run goes on: what must be as it was, what may be changed and is noted, and what is said when it ends early."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from continua.core.batch import Batch
from continua.core.errors import SolveError, reject
from continua.data import AbstractTask, Split
from continua.runs import Run, present_versions
from continua.train import DivergedError, Interrupted, LostRankError, TrainingError


class Resumed(NamedTuple):
    """A run that goes on, with what is changed in it: options, each as (before, now), and things that are accepted."""

    run: Run
    config: dict[str, Any]
    changes: dict[str, Any]
    accepted: dict[str, str]


def open_training(folder: Path) -> Run:
    """The run in a folder, which `continua train` has left there."""
    run = Run.open(folder)
    if (kind := run.manifest["kind"]) != "train":
        reject("run", str(folder), f"this is a run of kind {kind!r}", "Pass one of `continua train`.")
    return run


def data_digest(task: AbstractTask, first: Batch) -> str:
    """A hash of the data: files that the task reads, its first training batch, its validation and its test."""
    total = hashlib.sha256()
    for path in (value for value in vars(task).values() if isinstance(value, Path)):
        total.update(path.read_bytes())
    for batch in (first, *(each for split in (Split.VALIDATION, Split.TEST) for each in task.batches(split, 250))):
        for tensor in (*batch.inputs, batch.targets, batch.query_times):
            if tensor is not None:
                total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def read_overrides(words: tuple[str, ...]) -> dict[str, str]:
    """`lr=0.001` and the like by name."""
    pairs = {}
    for name, sign, value in (word.partition("=") for word in words):
        if not sign or name in ("", "task", "resume", "config", "output", "override"):
            reject("--override", f"{name}{sign}{value}", "this changes no option", "Write NAME=VALUE, as in lr=0.001.")
        pairs[name] = value
    return pairs


def check_same(run: Run, data: str, accepted: Mapping[str, str]) -> dict[str, Any]:
    """What the numbers of a run hang on beside its options, where it is another than before and that is `accepted`.

    Whatever else has changed is refused: the run would not end with the numbers of an unbroken one.
    """
    manifest = run.manifest
    before = {**manifest["versions"], "data": manifest["facts"].get("data")}
    now = {**present_versions(), "data": data}
    other = {name: (before.get(name), value) for name, value in now.items() if before.get(name) != value}
    refused = {name: pair for name, pair in other.items() if accepted.get(name) != pair[1]}
    if refused:
        changed = ", ".join(f"{name} was {was} and is {found}" for name, (was, found) in refused.items())
        words = " ".join(f"{name}={found}" for name, (_, found) in other.items())
        cure = f"Put it back, or go on with other numbers, which is noted: --override {words}."
        reject("run", str(run.folder), f"{changed}, so it would not end as an unbroken run does", cure)
    return other


@contextmanager
def note_failure(run: Run, updates: int) -> Iterator[None]:
    """Notes in the run that what happens inside failed, and adds to the message how to go on."""
    command = f"continua train --resume {shlex.quote(str(run.folder))}"
    again = f"Go on with: {command}"
    try:
        yield
    except (Interrupted, BrokenPipeError, LostRankError) as stopped:
        why = "stopped, since nobody reads the output any more" if isinstance(stopped, OSError) else str(stopped)
        with suppress(OSError, ValueError, Interrupted):  # a second signal may come here
            run.keep_models()
            run.end("interrupted")
        done = max((int(path.name) for path in run.checkpoints()), default=0)
        raise Interrupted(f"{why}; {done} of {updates} updates are saved. {again}") from None
    except DivergedError as error:
        run.note(diverged=error.since)
        run.end("diverged")
        raise TrainingError(f"{error}. Go on from there, with half the learning rate: {command}") from error
    except SolveError as error:
        run.end("failed")
        advice = "In training, lower --learning-rate, pay for motion with --energy-cost, or take more --depth-steps."
        raise TrainingError(f"{error} {advice}") from error
    except OSError as error:
        with suppress(OSError, ValueError):  # the folder itself may be gone
            run.end("failed")
        why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        what = f"the run could not be written ({why})"
        raise TrainingError(f"{what}. Mend this; nothing is half written. {again}") from error
    except Exception:
        with suppress(OSError, ValueError):
            run.end("failed")
        raise
