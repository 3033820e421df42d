"""What a rank spends its time on: activities, each a context manager whose time is added to a figure of its status."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Activity:
    """An activity of a rank, such as computing gradients; its time is added to the only element of `seconds`.

    An activity within another interrupts it, so that no moment counts twice. `under_way` has those that are under way,
    each within the one before. `timer` is the clock, in seconds. All activities of a rank belong to one thread.
    """

    def __init__(self, kind: str, seconds: Any, under_way: list[Activity]) -> None:
        self.kind, self.timer = kind, time.perf_counter
        self._seconds, self._under_way = seconds, under_way
        self._since = 0.0

    def __enter__(self) -> None:
        under_way = self._under_way
        if under_way:
            under_way[-1].pause()
        under_way.append(self)
        self.resume()

    def __exit__(self, *error: object) -> None:
        under_way = self._under_way
        self.pause()
        under_way.pop()
        if under_way:
            under_way[-1].resume()

    def resume(self) -> None:
        """Count the time from now on."""
        self._since = self.timer()

    def pause(self) -> None:
        """Count no time until the activity goes on."""
        self._seconds[0] += self.timer() - self._since

    def saw(self, clocks: Any) -> None:
        """Note the clocks of shards, shape (shards, len(ShardClock)), of the parameters that this has brought."""


def timer(crowded: bool) -> Callable[[], float]:
    """Return the clock for work: where ranks share cores, wall time would include that of other ranks."""
    return time.thread_time if crowded else time.perf_counter
