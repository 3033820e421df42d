"""Units of a coordinator's evaluations, taken from its window and accrued by the servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.coordinator_requests import SEGMENTS, Segment
from mpidl.algorithms.requests import Accrue, Fetch, NextUnit, Unit
from mpidl.algorithms.units import UnitOf, minibatches, units
from mpidl.data.portions import Portions
from mpidl.engines.mpi.sandblaster.server import COPY
from mpidl.engines.mpi.through_servers import ThroughServers
from mpidl.rma.counters import Counter
from mpidl.rma.transport import Fabric

#: Tickets of evaluation e are e * EVALUATION + 0, 1, 2, ...
EVALUATION = 1 << 32


class Notice(IntEnum):
    """Elements of the coordinator's `evaluation` region; the segments' first portions and counts follow."""

    NUMBER = 0  # of the evaluation that workers may take units of
    TEST = 1  # how many times the test data are to have been evaluated
    OVER = 2  # whether training is over
    SEGMENTS = 3  # how many segments
    PIECE = 4  # the next piece of the test data, counted from that number times EVALUATION


#: Elements of the region.
NOTICE = len(Notice) + 2 * SEGMENTS


class ByOperations(ThroughServers):
    """A worker's part in evaluations.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.
    algorithm : Algorithm
    portions : Portions
        Units are made of these, in the order of the first epoch.
    between : callable
        Called while it waits.
    test : callable
        Evaluates pieces of the test data, for the so-manieth time, until none is left; returns for which at last.
    """

    def __init__(
        self,
        fabric: Fabric,
        worker: int,
        algorithm: Algorithm,
        portions: Portions,
        between: Callable[[], None],
        test: Callable[[int], int],
    ) -> None:
        super().__init__(fabric, worker)
        self.actions = {Fetch: self._fetch, NextUnit: self._next_unit, Accrue: self._accrue}
        self._algorithm, self._order, self._between, self._test = algorithm, portions, between, test
        self._coordinator, self._backoff = fabric.roles.coordinator, fabric.backoff()
        self._tickets = fabric.tickets()
        self._copies = [Counter(fabric.window, self._coordinator, "copies", unit) for unit in range(fabric.units)]
        self._notice = np.zeros(NOTICE, np.int64)
        self._known, self._tested = 0, 0
        self._units: list[UnitOf] = []
        self._done = np.zeros(fabric.units, np.uint8)
        self._all_done = np.zeros(fabric.units, np.uint8)
        self._copy = False
        self._loss = 0.0

    def computed(self, loss: float) -> None:
        """Note the sum of the losses of a gradient's samples."""
        self._loss += loss

    def _next_unit(self, request: NextUnit) -> Unit | None:
        self._loss = 0.0
        self.row.post()
        started = time.perf_counter()
        self._backoff.reset()
        while True:
            self._read_notice()
            if self._notice[Notice.OVER]:
                return None
            if self._notice[Notice.TEST] != self._tested:
                self._tested = self._test(int(self._notice[Notice.TEST]))
            number = self._take() if self._notice[Notice.NUMBER] else None
            if number is not None:
                self.row.figures["waiting_seconds"] += time.perf_counter() - started
                return Unit(self._known, number, minibatches(self._units[number], self._order))
            self._between()
            self._backoff.pause()

    def _read_notice(self) -> None:
        self._window.get(self._notice, self._coordinator, "evaluation")
        self._window.flush(self._coordinator)

    def _take(self) -> int | None:
        """Return a unit that nobody has taken; if there is none, and backups are on, a copy of an outstanding one."""
        evaluation, ticket = divmod(self._tickets.fetch_add(), EVALUATION)
        while self._notice[Notice.NUMBER] != evaluation:
            self._read_notice()
        if evaluation != self._known:
            self._known = evaluation
            count = int(self._notice[Notice.SEGMENTS])
            pairs = self._notice[len(Notice) :].reshape(-1, 2)[:count].tolist()
            self._units = units([Segment("", first, of) for first, of in pairs], self._algorithm.unit)
            self._taken: set[int] = set()
        self._copy = ticket >= len(self._units)
        if self._copy:
            return self._take_copy() if self._algorithm.backups else None
        self._taken.add(ticket)
        return ticket

    def _take_copy(self) -> int | None:
        self._all_done.fill(1)
        for rank in self._servers:
            self._window.get(self._done, rank, "done")
            self._window.flush(rank)
            self._all_done &= self._done
        for unit in np.flatnonzero(self._all_done[: len(self._units)] == 0).tolist():
            if unit not in self._taken and self._copies[unit].fetch_add() == 0:
                self._taken.add(unit)
                return int(unit)
        return None

    def _accrue(self, request: Accrue) -> None:
        unit = request.unit
        bits = int(np.float64(self._loss).view(np.int64))
        number = unit.number + COPY * self._copy
        self._send(request.vector, [unit.evaluation] * len(self._outboxes), (number, bits))
