"""Whether the other ranks still live: one that is killed, or hangs, must not leave the others waiting for ever."""

import contextlib
import os
import sys
import threading
import time
from datetime import timedelta
from typing import final

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_BEAT, _LIMIT = 1.0, 40.0
"""Seconds between signs of life, and without one until a rank is taken for lost."""
LOST = 75
"""Exit code of those that are left: started again, they go on (EX_TEMPFAIL of sysexits.h)."""


@final
class Heartbeat:
    """While this is open, a thread gives signs of life, watches those of the next rank, and ends a process that waits.

    All meet in the store of `torchrun`: whoever misses its neighbour leaves a note there, which all others read. A
    backend sees by itself a connection that is closed; this is for machines that vanish and processes that hang.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.next = rank, (rank + 1) % size
        self._done = threading.Event()
        # a store is one connection, on which a wait of the main thread would keep this one waiting
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        patience = timedelta(seconds=_LIMIT / 2)
        self._store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
        self._place = f"continua/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Watches no more."""
        self._done.set()
        self._thread.join(_BEAT)  # it may wait for a store that is gone

    def _beat(self) -> None:
        heard, since = 0, time.monotonic()
        while not self._done.wait(_BEAT):
            try:
                self._store.add(f"{self._place}/{self.rank}", 1)
                beats = self._store.add(f"{self._place}/{self.next}", 0)
                lost = self._store.add(f"{self._place}/lost", 0) - 1
            except RuntimeError:
                return self._leave("the store where ranks meet is gone")
            if beats != heard:
                heard, since = beats, time.monotonic()
            elif time.monotonic() - since > _LIMIT:
                lost = self.next
                with contextlib.suppress(RuntimeError):
                    self._store.add(f"{self._place}/lost", 1 + lost)
            if lost >= 0:
                self._leave(f"rank {lost} gives no sign of life")

    def _leave(self, why: str) -> None:
        if self._done.is_set():  # the others are done too
            return
        words = f"continua: rank {self.rank}: {why}; what was saved is whole. Give the same command again.\n"
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), words.encode())
        os._exit(LOST)  # the main thread waits inside torch, where no exception reaches it
