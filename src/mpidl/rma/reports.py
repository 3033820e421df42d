"""Reports of ranks to the coordinator: status, results of evaluations, files on disk, signals."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.transport.coordination import Tag
from mpidl.transport.protocol import (
    ANNOUNCING,
    EVALUATIONS,
    REQUESTS,
    WORKER_STATUS,
    Control,
    EpochEvaluation,
    SavedFiles,
    State,
)
from mpidl.transport.status import resident_bytes

#: Seconds between two measurements of a process's memory.
MEASURE_EVERY = 1.0
#: Seconds between two looks whether the coordinator has taken an evaluation, with few workers.
WAITING = 1e-3


class StatusReports:
    """The reports of one rank, which has a `row` of status in `region`.

    `rank`, the coordinator by default, takes the status of `reporting` ranks.
    """

    def __init__(
        self, shared: SharedState, region: str, row: int, rank: int | None = None, reporting: int | None = None
    ) -> None:
        self._window, self._doorbells, self._comm = shared.window, shared.doorbells, shared.comm
        self._coordinator, self._region, self._row = shared.roles.coordinator, region, row
        self._processes, self._turn = shared.processes, shared.turn
        self._rank = self._coordinator if rank is None else rank
        self._reporting = shared.routes.reporting if reporting is None else reporting
        self._posted: dict[tuple[str, int], np.ndarray] = {}
        self._measured = -math.inf

    def signal(self) -> None:
        """Tell the coordinator that a signal asked this rank to stop."""
        Counter(self._window, self._coordinator, "control", Control.SIGNALS).fetch_add()

    def saved(self, saved: SavedFiles) -> None:
        """Tell the coordinator that a part of a checkpoint is on disk; it gives up one whose process dies meanwhile."""
        process = self._process
        sent = self._comm.isend(saved, process, Tag.SAVED)
        # A message to a process that has died may never be complete.
        while not sent.Test() and self._process == process:
            self._turn.pass_on()
            os.sched_yield()
        self._doorbells.ring(self._coordinator)

    @property
    def _process(self) -> int:
        """The process that plays the coordinator."""
        return int(self._processes[self._coordinator])

    def interval(self, shortest: float) -> float:
        """Return the seconds between two posts, or two looks at orders: `shortest`, or more with many workers.

        The rank that takes them gets at most `mpidl.transport.protocol.REQUESTS` of each kind a second.
        """
        return max(shortest, self._reporting / REQUESTS)

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        """Post this rank's status, shape (1,), with its process's memory; `wake` makes the rank that takes it look."""
        now = time.monotonic()
        if now - self._measured > MEASURE_EVERY:
            self._measured, status["memory"] = now, resident_bytes()
        self._post_rows(self._region, self._row, status, wake)

    def read(self, status: np.ndarray) -> None:
        """Read this rank's status into `status`, shape (1,), as it was posted last, by this process or another."""
        self._get(status, self._region, self._row)
        self._posted[self._region, self._row] = status.copy()

    def _post_rows(self, region: str, first: int, status: np.ndarray, wake: bool = False) -> None:
        """Post rows of status from row `first` on, if they have changed."""
        posted = self._posted.get((region, first))
        if posted is None:
            posted = self._posted[region, first] = np.zeros_like(status)
        if status.tobytes() != posted.tobytes():
            self._write(region, first, status, posted)
        if wake:
            self._doorbells.ring(self._rank)

    def _write(self, region: str, first: int, status: np.ndarray, posted: np.ndarray) -> None:
        """Overwrite the status posted before: first the fields that others announce, then those that announce them."""
        fields = status.dtype.names or ()
        names = [name for name in ANNOUNCING if name in fields and (status[name] != posted[name]).any()]
        before = [posted[name].copy() for name in names]
        posted[:] = status
        for name, values in zip(names, before, strict=True):
            posted[name] = values
        self._put(self._rank, region, first, posted)
        for name in names:
            posted[name] = status[name]
            self._put(self._rank, region, first, posted)

    def _put(self, rank: int, region: str, first: int, values: np.ndarray) -> None:
        """Write values into a region of `rank`; they may change afterwards."""
        window = self._window.to(rank)
        window.put(values, rank, region, first)
        window.fence(rank)

    def _get(self, values: np.ndarray, region: str, first: int) -> None:
        """Read values from a region of the rank that takes the status."""
        window = self._window.to(self._rank)
        window.get(values, self._rank, region, first)
        window.flush(self._rank)


class ForwardedReports(StatusReports):
    """The reports of a rank that forwards the status and the sums of workers.

    `workers` has the worker number of each row of status in this rank's memory.
    """

    def __init__(self, shared: SharedState, region: str, row: int, workers: Sequence[int]) -> None:
        super().__init__(shared, region, row)
        self._statuses, self._sums = shared.window.local("workers"), shared.window.local("sums")
        self._runs, self._width, self._forwarded = runs(workers), shared.capacity.sums, b""

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        self._forward()
        super().post(status, wake)

    def _forward(self) -> None:
        """Post the workers' status and sums, if they have changed."""
        # Fields that announce others are read before these, in the reverse order of their writing.
        announcing = {name: self._statuses[name].copy() for name in reversed(ANNOUNCING)}
        self._window.sync()
        statuses, sums = self._statuses.copy(), self._sums.copy()
        for name, values in announcing.items():
            statuses[name] = values
        written = statuses.tobytes() + sums.tobytes()
        if written == self._forwarded:
            return
        self._forwarded, width = written, self._width
        for own, first in self._runs:
            self._put(self._coordinator, "sums", first * width, sums[own.start * width : own.stop * width])
            self._post_rows("workers", first, statuses[own])


def runs(numbers: Sequence[int]) -> list[tuple[slice, int]]:
    """Return the runs of consecutive numbers as slices, with the first number of each."""
    starts = [place for place, each in enumerate(numbers) if place == 0 or each != numbers[place - 1] + 1]
    return [(slice(start, stop), numbers[start]) for start, stop in pairwise([*starts, len(numbers)])]


class WorkerReports(StatusReports):
    """The reports of worker `number`, with those of the `shards` that it holds itself in a job without servers."""

    def __init__(self, shared: SharedState, number: int, shards: Sequence[int]) -> None:
        route = shared.routes.of(number)
        super().__init__(shared, "workers", route.row, route.rank, route.reporting)
        self._number, self._shards, workers = number, shards, len(shared.workers)
        # The numbers of evaluations that this worker has given, and that the coordinator has taken.
        self._given, self._taken = (
            Counter(shared.window, self._coordinator, "evaluations", place) for place in (number, workers + number)
        )

    def post_shard(self, status: np.ndarray, wake: bool = False, shard: int = 0) -> None:
        """Post the status of one of the shards that this worker holds, by default the first."""
        self._post_rows("servers", self._shards[shard], status, wake)

    def post_sums(self, sums: np.ndarray) -> None:
        """Post the sums over this worker's part of an evaluation, with as many elements as the transport has room for.

        A status that is posted afterwards may announce them.
        """
        self._put(self._rank, "sums", self._row * sums.size, sums.reshape(-1))

    def post_part(self, sums: np.ndarray, worker: int) -> None:
        """Post the sums over the part of a worker whose process has ended, and that this worker is done."""
        self._put(self._rank, "sums", worker * sums.size, sums.reshape(-1))
        status = np.zeros(1, WORKER_STATUS)
        self._get(status, "workers", worker)
        status["state"] = State.DONE
        self._put(self._rank, "workers", worker, status)
        self._doorbells.ring(self._rank)

    def values(self, values: np.ndarray) -> None:
        """Send the evaluated values of this worker's slice to the coordinator, and wait until it has received them."""
        self._comm.Send(np.ascontiguousarray(values), self._process, Tag.VALUES)

    def evaluated(self, evaluated: EpochEvaluation) -> None:
        """Give an evaluation after an epoch to the coordinator, which sees it before any status posted afterwards."""
        given = self._given.read()
        while given - self._taken.read() >= EVALUATIONS:
            with self._turn.left():
                time.sleep(self.interval(WAITING))
        values = np.array([evaluated.epoch, evaluated.time, *evaluated.values])
        place = self._number * EVALUATIONS + given % EVALUATIONS
        self._put(self._coordinator, "evaluated", place * len(values), values)
        self._given.raise_to(given + 1)
        self._doorbells.ring(self._coordinator)
