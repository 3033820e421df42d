"""A worker's part in Sandblaster: it takes units, and sends their gradients to the servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.coordinator_requests import Segment
from mpidl.algorithms.requests import Accrue, Fetch, NextUnit, Unit
from mpidl.algorithms.units import UnitData, cut_units, minibatches
from mpidl.data.portions import Portions
from mpidl.engines.mpi.through_servers import ThroughServers
from mpidl.parameters.ranges import Range
from mpidl.transport.interface.worker import WorkerLink
from mpidl.transport.protocol import COPY, NOTICE, TICKETS, Notice


class SandblasterWorker(ThroughServers):
    """A worker's part in evaluations.

    Parameters
    ----------
    shards, dtype
        See `ThroughServers`.
    algorithm : Algorithm
    portions : Portions
        Units are made of these, in the order of the first epoch.
    between : callable
        Called while the worker waits for a unit.
    test : callable
        Evaluates pieces of the test data until none is left, and returns how many times they have been evaluated.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        dtype: Any,
        *,
        algorithm: Algorithm,
        portions: Portions,
        between: Callable[[], None],
        test: Callable[[], int],
    ) -> None:
        super().__init__(shards, dtype)
        self.actions = {Fetch: self._fetch, NextUnit: self._next_unit, Accrue: self._accrue}
        self._algorithm, self._order, self._between, self._test = algorithm, portions, between, test
        self._notice = np.zeros(NOTICE, np.int64)
        self._done = np.zeros(algorithm.units(portions.per_epoch), np.uint8)
        self._known, self._tested = 0, 0
        self._units: list[UnitData] = []
        self._taken: set[int] = set()
        self._copy = False
        self._loss = self._weight = 0.0

    def bind(self, link: WorkerLink) -> None:
        """See `RequestHandler.bind`."""
        super().bind(link)
        self._backoff = link.backoff()

    def computed(self, loss: float, weight: float) -> None:
        """See `RequestHandler.computed`."""
        self._loss += loss
        self._weight += weight

    def _next_unit(self, request: NextUnit) -> Unit | None:
        self._loss = self._weight = 0.0
        self._link.post(self.status.row)
        started = time.perf_counter()
        self._backoff.reset()
        while True:
            self._link.read_notice(self._notice)
            if self._notice[Notice.OVER]:
                return None
            if self._notice[Notice.TEST] != self._tested:
                self._tested = self._test()
            number = self._take() if self._notice[Notice.NUMBER] else None
            if number is not None:
                self.status.figures["waiting_seconds"] += time.perf_counter() - started
                return Unit(self._known, number, minibatches(self._units[number], self._order))
            self._between()
            self._backoff.pause()

    def _take(self) -> int | None:
        """Return a unit that nobody has taken; if there is none, and backups are on, a copy of an outstanding one."""
        evaluation, ticket = divmod(self._link.take_ticket(), TICKETS)
        if evaluation != self._known and not self._begin(evaluation):
            return None
        self._copy = ticket >= len(self._units)
        if self._copy:
            return self._take_copy() if self._algorithm.backups else None
        self._taken.add(ticket)
        return ticket

    def _begin(self, evaluation: int) -> bool:
        """Cut the units of an evaluation; return False if it is over, since this worker stood still for so long."""
        while self._notice[Notice.NUMBER] < evaluation:
            self._backoff.progress()
            self._link.read_notice(self._notice)
        # The number says that the segments are there: they are read after it.
        self._link.read_notice(self._notice)
        if self._notice[Notice.NUMBER] > evaluation:
            return False
        count = int(self._notice[Notice.SEGMENTS])
        pairs = self._notice[len(Notice) :].reshape(-1, 2)[:count].tolist()
        self._known, self._taken = evaluation, set()
        self._units = cut_units([Segment("", first, of) for first, of in pairs], self._algorithm.unit)
        return True

    def _take_copy(self) -> int | None:
        self._link.read_done(self._done)
        for unit in np.flatnonzero(self._done[: len(self._units)] == 0).tolist():
            if unit not in self._taken and self._link.take_copy(self._known, unit):
                self._taken.add(unit)
                return int(unit)
        return None

    def _accrue(self, request: Accrue) -> None:
        unit = request.unit
        loss, weight = np.array([self._loss, self._weight]).view(np.int64).tolist()
        number = unit.evaluation * TICKETS + unit.number + COPY * self._copy
        self._send(request.vector, [number] * len(self.fetched), (loss, weight))
