"""A worker's part in Sandblaster: it takes units, and sends their gradients to the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mpidl.algorithms.coordinated import Coordinated
from mpidl.algorithms.coordination import Segment, UnitData, cut_units, minibatches
from mpidl.algorithms.requests import Accrue, Fetch, NextUnit, Unit
from mpidl.data.schedule import Portions
from mpidl.engines.mpi.servers.through_servers import ThroughServers
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.transport.protocol import COPY, NOTICE, TICKETS, Notice

#: Sent by the lead of a replica to its other ranks to evaluate the test data.
TEST = [-1]


class SandblasterWorker(ThroughServers):
    """A worker's part in evaluations.

    Units are made of `portions`, in the order of the first epoch. `between` is called while the worker waits for a
    unit. `test` evaluates pieces of the test data until none is left, and returns how many times they have been
    evaluated.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        *,
        algorithm: Coordinated,
        portions: Portions,
        between: Callable[[], None],
        test: Callable[[], int],
    ) -> None:
        super().__init__(shards)
        self.actions = {Fetch: self._fetch, NextUnit: self._next_unit, Accrue: self._accrue}
        self._algorithm, self._order, self._between, self._test = algorithm, portions, between, test
        self._notice = np.zeros(NOTICE, np.int64)
        self._done = np.zeros(algorithm.units(portions.per_epoch), np.uint8)
        self._known = self._tested = self._task = 0
        self._places: Sequence[int] = ()
        self._units: list[UnitData] = []
        self._taken: set[int] = set()
        self._copy = False
        self._loss = self._weight = 0.0

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._backoff = link.backoff()

    def computed(self, loss: float, weight: float) -> None:
        self._loss += loss
        self._weight += weight

    def _next_unit(self, request: NextUnit) -> Unit | None:
        self._loss = self._weight = 0.0
        self._link.reports.post(self.status.row)
        while found := self._next_task():
            if found == TEST:
                self._tested = self._test()
                continue
            evaluation, number, copy, task, *places = found
            if not self.lead.leads:
                self._know(evaluation, places)
                self._copy = bool(copy)
            return Unit(evaluation, number, minibatches(self._units[number], self._order), task)
        return None

    def _next_task(self) -> Sequence[int]:
        with self.status.wait:
            return self.lead.share(self._find)

    def _find(self) -> Sequence[int]:
        """Wait for the next task; called on the lead of the replica.

        It is empty if training is over, `TEST` to evaluate the test data, or else an evaluation, the number of a unit,
        whether it is a copy, its task, and the first portion and the count of each segment.
        """
        while True:
            self._link.evaluation.read(self._notice)
            if self._notice[Notice.OVER]:
                return ()
            if self._notice[Notice.TEST] != self._tested:
                return TEST
            number = self._take() if self._notice[Notice.NUMBER] else None
            if number is not None:
                return self._known, number, self._copy, self._task, *self._places
            self._backoff.until(self._has_news)

    def _has_news(self) -> bool:
        """Return whether there may be a new task; if not, act as between two looks."""
        if self._link.evaluation.changed():
            return True
        self._between()
        return False

    def _take(self) -> int | None:
        """Return a unit that no worker has taken, or else, with backups, a copy of an outstanding one."""
        evaluation, ticket = divmod(self._link.tickets.take(), TICKETS)
        if evaluation != self._known and not self._begin(evaluation):
            return None
        self._copy = ticket >= len(self._units)
        if self._copy:
            return self._take_copy() if self._algorithm.backups else None
        self._taken.add(ticket)
        return ticket

    def _begin(self, evaluation: int) -> bool:
        """Cut the units of an evaluation; return False if it is over because this worker was delayed."""
        while self._notice[Notice.NUMBER] < evaluation:
            self._backoff.progress()
            self._link.evaluation.read(self._notice)
        # The number says that the segments are there: they are read after it.
        self._link.evaluation.read(self._notice)
        if self._notice[Notice.NUMBER] > evaluation:
            return False
        count, self._task = int(self._notice[Notice.SEGMENTS]), int(self._notice[Notice.TASK])
        self._know(evaluation, self._notice[len(Notice) :][: 2 * count].tolist())
        return True

    def _know(self, evaluation: int, places: Sequence[int]) -> None:
        """Cut the units of an evaluation, given the first portion and the count of each segment."""
        if evaluation == self._known:
            return
        self._known, self._places, self._taken = evaluation, places, set()
        segments = [Segment("", first, of) for first, of in zip(places[::2], places[1::2], strict=True)]
        self._units = cut_units(segments, self._algorithm.unit)

    def _take_copy(self) -> int | None:
        self._link.evaluation.read_done(self._done)
        for unit in np.flatnonzero(self._done[: len(self._units)] == 0).tolist():
            if unit not in self._taken and self._link.evaluation.take_copy(self._known, unit):
                self._taken.add(unit)
                return int(unit)
        return None

    def _accrue(self, request: Accrue) -> None:
        unit = request.unit
        loss, weight = np.array([self._loss, self._weight]).view(np.int64).tolist()
        number = unit.evaluation * TICKETS + unit.number + COPY * self._copy
        self.connection.begin(request.vector, [number] * len(self.connection.fetched), (loss, weight))
        self.connection.deliver(request.vector)
