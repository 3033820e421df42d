"""A rank's running totals, which it posts to the coordinator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from mpidl.shards.shard import Shard
from mpidl.transport.protocol import SERVER_STATUS, WORKER_STATUS


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 if the system doesn't say."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


class Status:
    """One rank's status: fill in `figures`, then post `row`.

    `dtype` is `protocol.WORKER_STATUS` or `SERVER_STATUS`. `row`, of shape (1,), has `figures` as its only element.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.row = np.zeros(1, dtype)
        self.figures: Any = self.row[0]


class WorkerStatus(Status):
    """The status of a worker, with its activities.

    Attributes
    ----------
    gradient, step : Activity
        Gradients with their samples, and the other parts of a step: batches, and the replica's own arithmetic.
    delay : Activity
        The sleep after a gradient by which a slow worker is simulated; part of the gradient's time.
    push, fetch, wait : Activity
        Copying, and waiting for servers and for other workers.
    evaluate, test : Activity
        Evaluations during the training, whose time doesn't count as training, and all others.
    save : Activity
        Copying the worker's part of a checkpoint; part of the step's time.
    """

    def __init__(self) -> None:
        super().__init__(WORKER_STATUS)
        self._crowded = False
        self.use(Activity)

    def use(self, form: Callable[[str, Any, list[Activity]], Activity]) -> None:
        """Make the activities anew, by a class."""

        def activity(kind: str, figure: str | None) -> Activity:
            number: Any = None if figure is None else self.row[figure]
            # Such a view is read and written in half of an array's time.
            return form(kind, [0.0] if number is None else memoryview(number), under_way)

        under_way: list[Activity] = []
        self.gradient = activity("gradient", "computing_seconds")
        self.step = activity("step", "overhead_seconds")
        self.delay = activity("gradient", "computing_seconds")
        self.push = activity("push", "pushing_seconds")
        self.fetch = activity("fetch", "fetching_seconds")
        self.wait = activity("wait", "waiting_seconds")
        self.evaluate = activity("evaluate", "evaluation_seconds")
        self.test = activity("evaluate", None)
        self.save = activity("save", "overhead_seconds")
        self.bind(self._crowded)

    def bind(self, crowded: bool) -> None:
        """Measure work by the clock for it from now on; `crowded` says whether this node's ranks share cores."""
        self._crowded = crowded
        for each in (self.gradient, self.step, self.push, self.fetch, self.save):
            each.timer = timer(crowded)


class ShardStatus(Status):
    """The status of the holder of a shard."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(SERVER_STATUS)
        self._shard = shard

    def taken(self) -> np.ndarray:
        """Take the shard's figures and return the row."""
        figures, shard = self.figures, self._shard
        figures["pushes"], figures["dropped"], figures["rate"] = shard.pushes, shard.dropped, shard.rate
        figures["staleness"] = shard.staleness.counts
        figures["staleness_sum"], figures["staleness_max"] = shard.staleness.sum, shard.staleness.max
        for name, value in ({} if shard.side_state is None else shard.side_state.figures()).items():
            figures[name] = value
        return self.row


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
