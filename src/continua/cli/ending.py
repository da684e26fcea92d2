"""How a training ends that does not reach its end: the run says so, and the user is told how to go on."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from continua.core.errors import SolveError
from continua.runs import Run
from continua.train import Interrupted, TrainingError


@contextmanager
def ended(run: Run) -> Iterator[None]:
    """Notes in the run that what happens inside failed, and adds to the message how to go on."""
    again = f"Go on with: continua train --resume {shlex.quote(str(run.folder))}"
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}. {again}") from None
    except KeyboardInterrupt:
        run.end("interrupted")
        raise Interrupted(f"stopped at once; updates since the last checkpoint are lost. {again}") from None
    except TrainingError:
        run.end("failed")
        raise
    except SolveError as error:
        run.end("failed")
        advice = "In training, lower --lr, pay for motion with --energy, or take more --steps."
        raise TrainingError(f"{error} {advice}") from error
    except OSError as error:
        with suppress(OSError):
            run.end("failed")
        why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        raise TrainingError(
            f"the run could not be written ({why}). Mend this; nothing is half written. {again}"
        ) from error
    except Exception:
        run.end("failed")
        raise
