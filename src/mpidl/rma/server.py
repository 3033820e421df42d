"""A server's link over windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.parameters.ranges import within
from mpidl.rma.calls import Callee
from mpidl.rma.differences import DifferenceAnswers
from mpidl.rma.inboxes import Inbox
from mpidl.rma.link import WindowLink
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import Order, ShardClock

#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, CUT = (int(number) for number in ShardClock)


class WindowServerLink(WindowLink):
    """See `mpidl.transport.interface.server.ServerLink`.

    Parameters
    ----------
    shared : SharedState
    number : int
        The shard's number.
    """

    def __init__(self, shared: SharedState, number: int) -> None:
        super().__init__(shared)
        self._number = number
        self.parameters = self._window.local(f"parameters/{number}")
        partition = next(own for own in range(shared.partitions) if number in shared.capacity.of_partition(own))
        pushers, fetchers = shared.roles.pushers(partition), shared.roles.fetchers(partition)
        geometry = shared.geometries[number]
        self.inbox = Inbox(self._window, geometry, pushers, self._doorbells, number)
        capacity, self._differences = shared.capacity, None
        if capacity.wire_fetch is not None:
            self._differences = DifferenceAnswers(
                self._window, self.parameters, capacity.wire_fetch, fetchers, self._doorbells, number,
                self.inbox.pending, within(capacity.statistics, capacity.shards[number]),
            )  # fmt: skip
        self._clock, self._told = self._window.local(f"clock/{number}"), self._window.local("control")
        self._done = self._window.local("done") if shared.capacity.units else np.zeros(0, np.uint8)
        self._callee = Callee(shared.comm, self._coordinator, self._doorbells)

    def order(self) -> Order:
        return Order.of(self._told)

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        self._post("servers", self._number, status, wake)

    def show_clock(self, clock: int) -> None:
        self._clock[CLOCK] = clock

    def show_cut(self, order: int) -> None:
        self._clock[CUT] = order
        self._window.sync()

    def answer_fetches(self) -> bool:
        return self._differences is not None and self._differences.answer()

    def wake_workers(self) -> None:
        for rank in self._shared.workers:
            self._doorbells.ring(rank)

    def next_call(self) -> Any | None:
        return self._callee.next()

    def answer(self, message: Any) -> None:
        self._callee.answer(message)

    def notify(self, message: Any) -> None:
        self._callee.notify(message)

    def expect_units(self, count: int) -> None:
        self._done[:count] = 0
        self._window.sync()

    def show_done(self, unit: int) -> None:
        self._done[unit] = 1
        self._window.sync()
