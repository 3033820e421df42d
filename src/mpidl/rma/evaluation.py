"""Evaluations driven by the coordinator (Sandblaster): its notices, and the parts of workers and servers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpidl.algorithms.coordination import Evaluate
from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.transport.coordination import TICKETS, Notice
from mpidl.transport.protocol import Control


class ShownEvaluation:
    """The coordinator's notice to the workers."""

    def __init__(self, shared: SharedState) -> None:
        self._window, self._doorbells, self._workers = shared.window, shared.doorbells, shared.workers
        self._coordinator = shared.roles.coordinator
        self._tickets = Counter(shared.window, self._coordinator, "control", Control.TICKETS)
        if shared.capacity.units:
            self._notice, self._copies = shared.window.local("notice"), shared.window.local("copies")

    def show(self, number: int, evaluate: Evaluate) -> None:
        """Let workers take the units of evaluation `number`."""
        segments = evaluate.segments
        self._notice[Notice.SEGMENTS], self._notice[Notice.TASK] = len(segments), evaluate.task
        places = [place for segment in segments for place in (segment.first, segment.count)]
        self._notice[len(Notice) : len(Notice) + len(places)] = places
        # A worker that still holds a ticket of the last evaluation reads the notice until it is that of its ticket.
        self._tickets.swap(number * TICKETS)
        self._show(Notice.NUMBER, number)

    def units_taken(self, number: int) -> int:
        """Return how many tickets for units of evaluation `number` have been taken."""
        return self._tickets.read() - number * TICKETS

    def copies_taken(self, number: int) -> int:
        """Return how many units of evaluation `number` have been taken a second time."""
        return int(np.count_nonzero(self._copies == number))

    def show_test(self, number: int) -> None:
        """Let workers evaluate the model; `number` counts these evaluations from 1."""
        Counter(self._window, self._coordinator, "notice", Notice.PIECE).swap(number * TICKETS)
        self._show(Notice.TEST, number)

    def show_over(self) -> None:
        """Tell workers that training is over."""
        self._show(Notice.OVER, 1)

    def _show(self, element: Notice, value: int) -> None:
        """Write one number of the notice, and wake the workers."""
        self._notice[element] = value
        self._window.sync()
        self._notice[Notice.NEWS] += 1
        self._window.sync()
        for rank in self._workers:
            self._doorbells.ring(rank)


class WorkerEvaluation:
    """A worker's part."""

    def __init__(self, shared: SharedState) -> None:
        self._coordinator = shared.roles.coordinator
        self._window = shared.window.to(self._coordinator)
        self._servers = {rank: shared.window.to(rank) for rank in shared.roles.servers}
        # The number of changes of the notice so far, and a function that tells whether there is one more.
        self._changes = 0
        self._changed: Callable[[], bool] | None = None

    def changed(self) -> bool:
        """Return whether the coordinator has shown something new, once for each change; `read` it then."""
        if self._changed is None:
            self._changed = self._window.watch(self._coordinator, "notice", Notice.NEWS, self._changes + 1)
        if not self._changed():
            return False
        self._changed, self._changes = None, self._changes + 1
        return True

    def read(self, notice: np.ndarray) -> None:
        """Read the coordinator's notice, int64 (NOTICE,)."""
        self._window.get(notice, self._coordinator, "notice")
        self._window.flush(self._coordinator)

    def take_piece(self) -> int:
        """Take the next ticket for a piece of the evaluated data."""
        return Counter(self._window, self._coordinator, "notice", Notice.PIECE).fetch_add()

    def take_copy(self, evaluation: int, unit: int) -> bool:
        """Return whether this worker is the first to take a unit of an evaluation for the second time.

        The result may be True in an evaluation that is over, without an effect on later ones.
        """
        return Counter(self._window, self._coordinator, "copies", unit).raise_to(evaluation) < evaluation

    def read_done(self, done: np.ndarray) -> None:
        """Read which units all servers have accrued, into a uint8 array (units,)."""
        at_each = np.empty((len(self._servers), len(done)), done.dtype)
        for row, (rank, window) in zip(at_each, self._servers.items(), strict=True):
            window.get(row, rank, "done")
        for rank, window in self._servers.items():
            window.flush(rank)
        np.bitwise_and.reduce(at_each, axis=0, out=done)


class Accrued:
    """A server's part: it shows workers the units that it has accrued."""

    def __init__(self, shared: SharedState) -> None:
        self._window = shared.window
        self._done = shared.window.local("done") if shared.capacity.units else np.zeros(0, np.uint8)

    def expect(self, units: int) -> None:
        """Show that none of `units` units has been accrued."""
        self._done[:units] = 0
        self._window.sync()

    def show(self, unit: int) -> None:
        """Show that a unit has been accrued."""
        self._done[unit] = 1
        self._window.sync()
