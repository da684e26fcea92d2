"""Peak memory of one case, in a process of its own: nothing that ran before can hide it."""

import importlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")


def peak_memory(prepare: Callable[..., Callable[[], object]], **settings: Any) -> float:
    """MiB by which `prepare(**settings)()` raises the peak of a fresh process above where preparation left it.

    `prepare` is a function of a module, its settings are plain data; it builds the case and warms up the libraries.
    """
    program = "from continua.bench.peak import child; child()"
    words = [prepare.__module__, prepare.__qualname__, json.dumps(settings)]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the case {prepare.__qualname__}({settings}) failed: {done.stderr.strip()}")
    return float(done.stdout.splitlines()[-1])


def child() -> None:
    """The other side of `peak_memory`: runs the case that the command line names and prints MiB."""
    module, function, settings = sys.argv[1:]
    case = getattr(importlib.import_module(module), function)(**json.loads(settings))
    before = high_water()
    case()
    print(high_water() - before)


def high_water() -> float:
    """The most memory this process has held, in MiB."""
    if _STATUS.exists():  # `ru_maxrss` of Linux starts at the peak of the parent process
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
