"""Waiting for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpidl.rma.worker import WorkerLink
from mpidl.transport.status import Status


class Waiting:
    """Waits for other ranks, and counts the time in a worker's status.

    It sleeps for at most `longest` seconds, where no rank rings this one.
    """

    def __init__(self, link: WorkerLink, status: Status, longest: float | None = None) -> None:
        self._backoff, self._status = link.backoff(longest), status

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`; the time in which it pushes doesn't count."""
        if ready():
            return
        figures = self._status.figures
        started, pushed = time.perf_counter(), figures["pushing_seconds"]
        self._backoff.until(ready)
        figures["waiting_seconds"] += time.perf_counter() - started - (figures["pushing_seconds"] - pushed)


@contextmanager
def waiting(status: Status) -> Iterator[None]:
    """Count the time of a collective: most of it passes until the slowest rank takes part."""
    started = time.perf_counter()
    yield
    status.figures["waiting_seconds"] += time.perf_counter() - started


def timer(crowded: bool) -> Callable[[], float]:
    """Return the clock for work: where ranks share cores, wall time would include that of other ranks."""
    return time.thread_time if crowded else time.perf_counter
