"""A thread that advances messages while its rank computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds between two looks while messages are on their way.
PERIOD = 100e-6


class ProgressThread:
    """Takes steps from `wake` on until there is nothing to do, and sleeps otherwise.

    `step` calls MPI, which must allow calls from several threads, and returns whether there is more to do. No step
    follows one that fails, with `error`.
    """

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step, self._awake, self._ended = step, threading.Event(), False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mpidl messages", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Take steps until there is nothing to do."""
        self._awake.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._awake.wait() and not self._ended:
                self._awake.clear()
                while self._step():
                    time.sleep(PERIOD)
        except Exception as error:
            self.error = error
