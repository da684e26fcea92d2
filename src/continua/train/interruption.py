"""Being asked to stop: the update in hand is finished, a checkpoint is written, and the run can go on later."""

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A run that was asked to stop and did so with a checkpoint."""


class Listening:
    """While this is open, SIGINT and SIGTERM are noted instead of obeyed; a second SIGINT is obeyed."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Listening":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
        except ValueError:  # signals belong to the main thread; elsewhere there is nothing to hear
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
