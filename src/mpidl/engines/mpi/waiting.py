"""Waiting for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from mpidl.rma.worker import WorkerLink
from mpidl.transport.status import Status


class Waiting:
    """Waits for what other ranks do, and counts the time in a worker's status.

    Parameters
    ----------
    link : WorkerLink
    status : Status
    longest : float, optional
        Longest sleep in seconds, where nobody rings this rank.
    """

    def __init__(self, link: WorkerLink, status: Status, longest: float | None = None) -> None:
        self._backoff, self._status = link.backoff(longest), status

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`. What that pushes is no waiting."""
        if ready():
            return
        figures = self._status.figures
        started, pushed = time.perf_counter(), figures["pushing_seconds"]
        self._backoff.until(ready)
        figures["waiting_seconds"] += time.perf_counter() - started - (figures["pushing_seconds"] - pushed)


def timer(crowded: bool) -> Callable[[], float]:
    """Return the clock for work: where ranks share cores, the wall's clock also counts the others' work."""
    return time.thread_time if crowded else time.perf_counter
