"""Waiting for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from mpidl.rma.worker import WorkerLink
from mpidl.transport.protocol import Doing
from mpidl.transport.status import WorkerStatus

#: Seconds after which a worker says that it waits for others.
SAID_AFTER = 1.0


class Waiting:
    """Waits for other ranks, and counts the time in a worker's status.

    It sleeps for at most `longest` seconds, where no rank rings this one.
    """

    def __init__(self, link: WorkerLink, status: WorkerStatus, longest: float | None = None) -> None:
        self._backoff, self._status, self._link = link.backoff(longest), status, link

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`; the time in which it pushes doesn't count."""
        if ready():
            return
        figures, since = self._status.figures, time.monotonic()
        before = figures["doing"]

        def ready_or_late() -> bool:
            if figures["doing"] != Doing.WAITING and time.monotonic() - since > SAID_AFTER:
                figures["doing"] = Doing.WAITING
                self._link.reports.post(self._status.row)
            return ready()

        with self._status.wait:
            self._backoff.until(ready_or_late)
        figures["doing"] = before
