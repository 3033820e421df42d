"""Notice of a worker that hangs: it is in the same batch for minutes, while others go on, or wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

#: A worker hangs if one of its batches takes `SECONDS`, and `TIMES` the duration of its longest batch so far.
SECONDS, TIMES = 300.0, 20
#: Batches that it must have computed before, since the first ones may compile, and that another worker computes
#: meanwhile. What holds up all of them, such as a file system, is no fault of one.
BATCHES = 20
#: Longest time between two looks, in seconds, unless this process itself stood still.
LATE = 2.5


class Pace:
    """The batches of a node's workers, in memory that their processes share.

    Parameters
    ----------
    rows : array (3, processes) of int64
        Of each process, the number of batches that it has begun, of those that it has completed, and the nanoseconds
        of the longest.
    own : int
        This process.
    hang_after : float, optional
        Seconds of a batch after which a worker hangs, if that isn't to depend on its other batches.
    """

    def __init__(self, rows: np.ndarray, own: int, hang_after: float | None = None) -> None:
        (self._begun, self._done, self._longest), self._own = rows, own
        self._hang_after = hang_after
        self._seen, self._since, self._looked, self._before = (-1, 0), 0.0, 0.0, self._done.copy()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Show that this process computes a batch in this context; not so in a debugger, where people take their time.

        It doesn't wait for other ranks there.
        """
        if _debugged():
            yield
            return
        own, began = self._own, time.monotonic_ns()
        self._begun[own] += 1
        try:
            yield
        finally:
            self._longest[own] = max(self._longest[own], time.monotonic_ns() - began)
            self._done[own] += 1

    def hangs(self, process: int, alive: Collection[int], now: float) -> bool:
        """Return whether a process hangs in a batch; called about every second, for the same process.

        `alive` has the processes that are, and `now` is in seconds of any clock.
        """
        begun, done, late = int(self._begun[process]), int(self._done[process]), now - self._looked > LATE
        self._looked = now
        if begun == done or self._seen != (process, begun) or late:
            self._seen, self._since, self._before = (process, begun), now, self._done.copy()
            return False
        late_after = self._hang_after or max(SECONDS, TIMES * 1e-9 * self._longest[process])
        if (done < BATCHES and self._hang_after is None) or now - self._since < late_after:
            return False
        others = [each for each in alive if each != process]
        wait = bool((self._begun == self._done)[others].all())
        return wait or bool((self._done - self._before).max() >= BATCHES)

    def longest(self, process: int) -> float:
        """Return the seconds of a process's longest batch."""
        return 1e-9 * int(self._longest[process])


def _debugged() -> bool:
    """Return whether a debugger of Python follows this thread."""
    monitoring: Any = getattr(sys, "monitoring", None)
    return sys.gettrace() is not None or (
        monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    )
