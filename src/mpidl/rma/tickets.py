"""Tickets for portions of the data, and the clocks of replicas: counters in the coordinator's memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.rma.takings import Returns, Takings
from mpidl.transport.protocol import STOPPED, Control


class Tickets:
    """A worker's access to the counter of tickets, and to what other workers give back.

    What it takes through a window is noted there for others; `size` returns the numbers of batches and samples that a
    ticket stands for.
    """

    def __init__(self, shared: SharedState, worker: int = 0) -> None:
        self._coordinator = shared.roles.coordinator
        self._window = shared.window.to(self._coordinator)
        self._counter = self._new_counter()
        noted = not self._window.supports_deferred_get
        of_worker = (worker, len(shared.workers), shared.backoff())
        self._takings = Takings(self._window, self._coordinator, *of_worker) if noted else None
        self.returns = Returns(self._window, self._coordinator, worker)
        # The request for a ticket that is under way.
        self._asked: Counter | None = None
        self.size: Callable[[int], tuple[int, int]] = lambda ticket: (0, 0)

    def _new_counter(self) -> Counter:
        return Counter(self._window, self._coordinator, "control", Control.TICKETS)

    def ask(self) -> bool:
        """Ask for a ticket if that takes a message, and return whether it does; `take` must follow."""
        if not self._window.supports_deferred_get:
            return False
        self._asked = self._new_counter()
        self._asked.start_add()
        return True

    def take(self) -> int:
        """Take the next ticket for a portion, or the one that was asked for; no other worker gets the same."""
        asked, self._asked = self._asked, None
        if asked is not None:
            return asked.finish()
        if self._takings is None:
            return self._counter.fetch_add()
        self._takings.begin()
        ticket = self._counter.fetch_add()
        self._takings.end(ticket, self.size(ticket))
        return ticket

    def claim(self, ticket: int) -> bool:
        """Take a ticket, which is negative, for what another worker has given back; False if one has it already."""
        if self._takings is None:
            return self.returns.claim(-1 - ticket)
        self._takings.begin()
        claimed = self.returns.claim(-1 - ticket)
        self._takings.end(ticket if claimed else None, self.size(ticket))
        if claimed:
            self.returns.show_taker(-1 - ticket)
        return claimed

    def taken(self) -> int:
        """Return the number of tickets taken so far."""
        return self._counter.read()


class Clocks:
    """A replica's view of all replicas' clocks."""

    def __init__(self, shared: SharedState, replica: int) -> None:
        self._doorbells, self._workers = shared.doorbells, shared.workers
        self._coordinator, self._replica = shared.roles.coordinator, replica
        self._window = shared.window.to(self._coordinator)
        self._own = np.zeros(1, np.int64)
        # The clocks as they were read last. They only grow.
        self._clocks = np.zeros(len(shared.roles.replicas), np.int64)
        # Tells whether the replica that was the slowest has come as far as this one waits for.
        self._slower: Callable[[], bool] | None = None

    def show(self, clock: int) -> None:
        """Show the other replicas this replica's clock, and wake them if it was the slowest."""
        before = int(self._own[0])
        self._own[0] = clock
        self._window.put(self._own, self._coordinator, "clocks", self._replica)
        self._window.fence(self._coordinator)
        # A coordinator of another node answers this node's workers when they need not wait any more.
        if self._window.supports_deferred_get or self._slowest() <= before:
            return
        for rank in self._workers:
            self._doorbells.ring(rank)
        if not self._doorbells.alone:
            # It answers the workers of other nodes.
            self._doorbells.ring(self._coordinator)

    def all_reached(self, clock: int) -> bool:
        """Return whether no replica's clock is less; call it with the same clock until it returns True."""
        while self._clocks.min() < clock:
            if self._slower is not None and not self._slower():
                return False
            self._slower = None
            if self._slowest() < clock:
                slowest = int(self._clocks.argmin())
                self._slower = self._window.watch(self._coordinator, "clocks", slowest, clock)
        return True

    def one_has_stopped(self) -> bool:
        """Return whether a replica has no more data."""
        self._slowest()
        return bool(self._clocks.max() == STOPPED)

    def _slowest(self) -> int:
        self._window.get(self._clocks, self._coordinator, "clocks")
        self._window.flush(self._coordinator)
        return int(self._clocks.min())
