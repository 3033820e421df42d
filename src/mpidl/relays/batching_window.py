"""The time that a relay waits for more pushes before it sends the sum of those that it has."""

from __future__ import annotations

import math
from collections.abc import Collection

#: The longest wait, as a share of the shortest step of the workers plus an exchange with the servers. From one half on,
#: workers of equal speed fall into step, whatever their first offsets.
SHARE = 0.6


class BatchingWindow:
    """Predicts the workers' next pushes, and decides how long to wait for them.

    Only pushes that are due soon after the first one are waited for, not those of slower or otherwise busy workers.
    Times are in seconds, of any clock. They begin at `now`, at which all workers start.
    """

    def __init__(self, now: float, workers: int) -> None:
        self._began = [now] * workers
        self._active, self._steps = set(range(workers)), dict[int, float]()
        self._exchange = 0.0
        self._ready = now

    def begins_push(self, worker: int, now: float) -> None:
        """Note that a worker begins a push, which ends one of its steps."""
        self._steps[worker] = now - self._began[worker]

    def ends_push(self, worker: int, now: float, first: bool) -> None:
        """Note that a whole push has arrived, perhaps the first one since the last exchange."""
        self._began[worker] = now
        if first:
            self._ready = now

    def exchanged(self, workers: Collection[int], seconds: float, now: float) -> None:
        """Note the duration of an exchange with the servers, after which these workers continue."""
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
        """Return whether to wait for another push, given the workers whose pushes are `here`."""
        return now < self.deadline(here)

    def deadline(self, here: Collection[int]) -> float:
        """Return the deadline for another push; minus infinity if none is due in time."""
        # The steps of a worker that has not pushed yet are expected to be as short as the shortest.
        shortest = min(self._steps.values(), default=0.0)
        longest = SHARE * (shortest + self._exchange)
        last = self._ready + longest
        due = (self._began[worker] + self._steps.get(worker, shortest) for worker in self._active.difference(here))
        latest = max((each for each in due if each <= last), default=-math.inf)
        return min(last, latest + longest)
