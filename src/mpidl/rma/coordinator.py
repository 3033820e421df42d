"""The coordinator's link over windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.algorithms.coordinator_requests import Segment
from mpidl.rma.calls import Caller
from mpidl.rma.counters import Counter
from mpidl.rma.link import WindowLink
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ROUNDS, TICKETS, Control, Notice, Phase, Saved, Tag

#: Portions that a worker takes, in the mean, before relays are told that all tickets up to then have been taken.
TOLD_AFTER = 4


class WindowCoordinatorLink(WindowLink):
    """See `mpidl.transport.interface.coordinator.CoordinatorLink`.

    Parameters
    ----------
    shared : SharedState
    """

    def __init__(self, shared: SharedState) -> None:
        super().__init__(shared)
        window = self._window
        self._numbers = window.local("control")
        self.workers, self.servers = window.local("workers"), window.local("servers")
        self.relays = window.local("relays")
        self.holders = len(shared.roles.servers)
        self.sums = window.local("sums").reshape(len(shared.workers), -1)
        self._evaluations, self._evaluated = window.local("evaluations"), window.local("evaluated")
        self._seen = np.zeros(len(self._evaluated), bool)
        self._tickets = self._control(Control.TICKETS)
        # Who is told of orders, and which number of tickets relays have been told of.
        self._relays = [relay.rank for relay in shared.roles.relays]
        self._told, self._taken_told = [*shared.roles.servers, *self._relays], 0
        self._caller = Caller(shared.comm, shared.roles.servers, self._doorbells)
        if shared.capacity.units:
            self._notice, self._copies = window.local("notice"), window.local("copies")

    def look(self) -> None:
        self._window.sync()

    def evaluations(self) -> Iterator[tuple[int, Any]]:
        for index in np.flatnonzero((self._evaluated != 0) & ~self._seen):
            self._seen[index] = True
            yield int(index) + 1, self._evaluations[index]

    def signals(self) -> int:
        return int(self._numbers[Control.SIGNALS])

    def tickets_taken(self) -> int:
        return self._tickets.read()

    def show_taken(self, taken: int) -> None:
        self._numbers[Control.TAKEN] = taken
        if self._relays and taken - self._taken_told >= TOLD_AFTER * len(self._shared.workers):
            self._taken_told = taken
            self._tell(self._relays, Control.TAKEN)

    def set_tickets(self, taken: int) -> int:
        return self._tickets.swap(taken)

    def order_save(self, number: int, last: int) -> None:
        self._numbers[Control.LAST] = last
        self._window.sync()
        self._numbers[Control.ORDER] = number
        self._window.sync()
        self._tell(self._told, Control.LAST)
        self._tell(self._told, Control.ORDER)
        self._wake(self._told)

    def decide_round(self, number: int) -> None:
        # Whoever begins a round from now on sees the order; whoever had begun one before is counted here.
        pushes = self._control(Control.BEGUN).fetch_add(0)
        self._numbers[Control.ROUND] = number * ROUNDS + pushes
        self._window.sync()

    def saved(self) -> list[Saved]:
        found: list[Saved] = []
        status = MPI.Status()
        while self._shared.comm.iprobe(MPI.ANY_SOURCE, Tag.SAVED, status):
            found.append(self._shared.comm.recv(source=status.source, tag=Tag.SAVED))
        return found

    def set_phase(self, phase: Phase) -> None:
        self._numbers[Control.PHASE] = phase
        self._window.sync()
        self._tell(self._told, Control.PHASE)
        self._wake(self._told)

    def _tell(self, ranks: Sequence[int], element: Control) -> None:
        """Write one of the numbers to other ranks."""
        for rank in ranks:
            self._window.put(self._numbers[element : element + 1], rank, "control", element)
        for rank in ranks:
            self._window.fence(rank)

    def _wake(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._doorbells.ring(rank)

    # A coordinator's evaluations.

    def call(self, message: Any) -> None:
        self._caller.call(message)

    def answers(self) -> list[Any] | None:
        return self._caller.answers()

    def notices(self) -> list[tuple[int, Any]]:
        return self._caller.notices()

    def show_evaluation(self, number: int, segments: Sequence[Segment]) -> None:
        self._notice[Notice.SEGMENTS] = len(segments)
        places = [place for segment in segments for place in (segment.first, segment.count)]
        self._notice[len(Notice) : len(Notice) + len(places)] = places
        # A worker that still holds a ticket of the last evaluation reads the notice until it is that of its ticket.
        self._tickets.swap(number * TICKETS)
        self._show(Notice.NUMBER, number)

    def units_taken(self, number: int) -> int:
        return self._tickets.read() - number * TICKETS

    def copies_taken(self, number: int) -> int:
        return int(np.count_nonzero(self._copies == number))

    def show_test(self, number: int) -> None:
        Counter(self._window, self._coordinator, "notice", Notice.PIECE).swap(number * TICKETS)
        self._show(Notice.TEST, number)

    def show_over(self) -> None:
        self._show(Notice.OVER, 1)

    def _show(self, element: Notice, value: int) -> None:
        """Write one number of the notice, and wake the workers."""
        self._notice[element] = value
        self._window.sync()
        self._notice[Notice.NEWS] += 1
        self._window.sync()
        self._wake(self._shared.workers)
