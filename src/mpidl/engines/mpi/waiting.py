"""Waiting for other ranks."""

from __future__ import annotations

from collections.abc import Callable

from mpidl.rma.worker import WorkerLink
from mpidl.transport.status import WorkerStatus


class Waiting:
    """Waits for other ranks, and counts the time in a worker's status.

    It sleeps for at most `longest` seconds, where no rank rings this one.
    """

    def __init__(self, link: WorkerLink, status: WorkerStatus, longest: float | None = None) -> None:
        self._backoff, self._status = link.backoff(longest), status

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`; the time in which it pushes doesn't count."""
        if ready():
            return
        with self._status.wait:
            self._backoff.until(ready)
