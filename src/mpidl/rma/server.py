"""A server's link: to the workers and to the coordinator."""

from __future__ import annotations

from mpidl.parameters.ranges import within
from mpidl.rma.answers import Answers
from mpidl.rma.calls import Callee
from mpidl.rma.differences import DifferenceAnswers
from mpidl.rma.evaluation import Accrued
from mpidl.rma.mailboxes import Inbox
from mpidl.rma.orders import OwnOrders
from mpidl.rma.reports import StatusReports
from mpidl.rma.shared_state import SharedState
from mpidl.shards.ledger import region
from mpidl.shards.state import PARAMETERS
from mpidl.transport.protocol import ShardClock

#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, CUT = int(ShardClock.CLOCK), int(ShardClock.CUT)


class ServerLink:
    """A server's link for one of its shards.

    Its reports, clock, inbox and parameters are the shard's; everything else is the same for all shards of the server.

    `vectors` has the memory of the shard's vectors, by their names, and `ledger` that of its numbers. `answers` is its
    end of answers to what workers ask for beside pushes, if they do. `backoff` is that of `SharedState`, and `crowded`
    says whether the ranks of this node outnumber the cores that they may run on.
    """

    def __init__(self, shared: SharedState, number: int) -> None:
        self._shared, self.crowded, self.backoff = shared, shared.crowded, shared.backoff
        window = shared.window
        self.orders, self.reports = OwnOrders(shared), StatusReports(shared, "servers", number)
        self.calls = Callee(shared.comm, shared.roles.coordinator, shared.doorbells)
        self.units = Accrued(shared)
        self._clock = window.local(f"clock/{number}")
        capacity, roles = shared.capacity, shared.roles
        self.vectors = shared.vectors(number)
        self.ledger = window.local(region(number))
        partition = next(own for own in range(shared.partitions) if number in capacity.of_partition(own))
        self.inbox = Inbox(window, shared.geometries[number], roles.pushers(partition), shared.doorbells, number)
        self.answers = None
        if capacity.side_data:
            ranks = roles.fetchers(partition)
            self.answers = Answers(window, ranks, shared.doorbells, number, capacity.side_data)
        self._differences = None
        if capacity.wire_fetch is not None:
            self._differences = DifferenceAnswers(
                window, self.vectors[PARAMETERS], capacity.wire_fetch, roles.fetchers(partition), shared.doorbells,
                number, self.inbox.pending, within(capacity.statistics, capacity.shards[number]),
            )  # fmt: skip

    def show_clock(self, clock: int) -> None:
        """Show workers the number of updates that have been applied."""
        self._clock[CLOCK] = clock

    @property
    def cut(self) -> int:
        """The order that `show_cut` has shown last, by this process or another."""
        return int(self._clock[CUT])

    def show_cut(self, order: int) -> None:
        """Show workers that pushes from now on may not be in the checkpoint of an order."""
        self._clock[CUT] = order
        self._shared.window.sync()

    def answer_fetches(self) -> bool:
        """Answer the workers that have asked for differences; return whether there was one."""
        return self._differences is not None and self._differences.answer()

    def wake_workers(self) -> None:
        """Wake all workers, which may be waiting for an update."""
        for rank in self._shared.workers:
            self._shared.doorbells.ring(rank)
