"""How long a relay waits for more pushes before it sends on those that it has."""

from __future__ import annotations

import math
from collections.abc import Collection

#: A relay waits at most so much of the shortest step of its workers, together with an exchange with the servers. From
#: one half on, workers of one speed come into step, however they are out of it.
SHARE = 0.6


class BatchingWindow:
    """Knows when workers push, and tells whether to wait for one of them is worth it.

    It is for workers that would push soon after the first one. A worker that is slower, or that does something else,
    is not waited for. Times are in seconds, of any clock.

    Parameters
    ----------
    now : float
        When the workers begin.
    workers : int
        Their number.
    """

    def __init__(self, now: float, workers: int) -> None:
        self._began = [now] * workers
        self._active, self._steps = set(range(workers)), dict[int, float]()
        self._exchange = 0.0
        self._ready = now

    def begins_push(self, worker: int, now: float) -> None:
        """Note that a worker begins to push: a step of it is over."""
        self._steps[worker] = now - self._began[worker]

    def ends_push(self, worker: int, now: float, first: bool) -> None:
        """Note that a push has arrived whole, maybe the first one since the last exchange."""
        self._began[worker] = now
        if first:
            self._ready = now

    def exchanged(self, workers: Collection[int], seconds: float, now: float) -> None:
        """Note that an exchange with the servers took so long, and that these workers can go on since."""
        self._exchange, self._ready = seconds, now
        for worker in workers:
            self._began[worker] = now

    def leaves(self, worker: int) -> None:
        """Expect no more pushes of a worker."""
        self._active.discard(worker)
        self._steps.pop(worker, None)

    def joins(self, worker: int, now: float) -> None:
        """Expect pushes of a worker that begins anew."""
        self._active.add(worker)
        self._began[worker] = now

    def waits(self, here: Collection[int], now: float) -> bool:
        """Return whether to wait for another worker, while the pushes of those that are `here` have arrived."""
        return now < self.deadline(here)

    def deadline(self, here: Collection[int]) -> float:
        """Return until when to wait for another worker; minus infinity if none is due in time."""
        # Of a worker that has not pushed yet, a step is expected to take as long as the shortest.
        shortest = min(self._steps.values(), default=0.0)
        patience = SHARE * (shortest + self._exchange)
        last = self._ready + patience
        due = (self._began[worker] + self._steps.get(worker, shortest) for worker in self._active.difference(here))
        latest = max((each for each in due if each <= last), default=-math.inf)
        return min(last, latest + patience)
