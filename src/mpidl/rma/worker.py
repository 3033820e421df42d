"""A worker's link over windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.counters import Counter
from mpidl.rma.differences import DifferenceFetch, take_answers
from mpidl.rma.link import WindowLink
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.reading import Holder, ShardReader, regions
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ROUNDS, Control, Notice, Order, ShardClock
from mpidl.wire import Differences, ErrorFeedback


class WindowWorkerLink(WindowLink):
    """See `mpidl.transport.interface.worker.WorkerLink`.

    Parameters
    ----------
    shared : SharedState
    number : int
        The worker's number.
    feedback : sequence of ErrorFeedback
        For each of its shards, if there is a wire format.
    copies : sequence of Differences
        For each of its shards, if fetches are encoded.
    """

    def __init__(
        self,
        shared: SharedState,
        number: int,
        feedback: Sequence[ErrorFeedback] = (),
        copies: Sequence[Differences] = (),
    ) -> None:
        rank, relay = shared.workers[number], shared.roles.relay_of(shared.workers[number])
        super().__init__(shared, relay)
        # Of its status and its sums, where it posts them.
        self._row = number if relay is None else relay.workers.index(rank)
        self._servers = shared.roles.servers
        self._replica, partition = divmod(number, shared.partitions)
        capacity, numbers = shared.capacity, shared.capacity.of_partition(partition)
        self.shards: Sequence[Range] = [capacity.shards[each].shift(-capacity.origin(partition)) for each in numbers]
        # Without servers, the shards that this worker itself holds.
        self._own_shards = [each for each in capacity.held_by(self._replica) if each in numbers]
        self.peers, self.shared_vectors, self.shared_rows = shared.peers, shared.shared_vectors, shared.shared_rows
        self._order_taken = 0
        holders = {shard: rank for holder, rank in enumerate(self._servers) for shard in capacity.held_by(holder)}
        # Who holds each shard, and its numbers there; nobody where there are no servers.
        servers = [Holder(holders[shard], shard) for shard in numbers if holders]
        parts = [slice(*shard) for shard in self.shards[: len(servers)]]
        self.relayed, pushed, geometries, ring = relay is not None, servers, shared.geometries, self._replica
        if relay is not None:
            pushed, geometries = [Holder(relay.rank, shard) for shard in numbers], capacity.relay_mailboxes(relay)
            ring = self._row // shared.partitions
        elif shared.roles.relays:
            ring = shared.roles.pushers(partition).index(rank)
        self._holders, self._parts = pushed, parts
        self._reader = ShardReader(self._window, pushed, parts)
        self._servers_reader = ShardReader(self._window, servers, parts)
        self._fetches = {
            order: DifferenceFetch(self._window, holder, ring, copy, self._doorbells, shard)
            for order, ((holder, shard), copy) in enumerate(zip(servers, copies, strict=False))
            if self._encodes(holder)
        }
        outboxes = [
            Outbox(self._window, holder, ring, geometries[shard], self._encoder(holder, encoder), shard, self.relayed)
            for (holder, shard), encoder in zip(pushed, feedback or repeat(None), strict=False)
        ]
        self._outboxes = Outboxes(self._window, outboxes, parts, self._doorbells)
        self._tickets, self._begun = self._control(Control.TICKETS), self._control(Control.BEGUN)
        # The ticket that is on its way.
        self._next_ticket: Counter | None = None
        self._clock = np.zeros(1, np.int64)
        # The replicas' clocks when they were read last. They only grow.
        self._clocks = np.zeros(shared.replicas, np.int64)
        # Tells whether the replica that was the slowest has come as far as this one waits for.
        self._slower: Callable[[], bool] | None = None
        # How often the notice has changed, and what tells whether it has once more.
        self._changes = 0
        self._news: Callable[[], bool] | None = None
        self._followed: list[int] = []
        self._before = np.zeros((0, len(ShardClock)), np.int64)
        self._after = np.zeros((len(numbers), len(ShardClock)), np.int64)

    # Data, clocks and status, all at the coordinator; status at the relay, where there is one.

    def ask_for_ticket(self) -> bool:
        if not self._window.supports_deferred_get(self._coordinator):
            return False
        self._next_ticket = self._control(Control.TICKETS)
        self._next_ticket.start_add()
        return True

    def take_ticket(self) -> int:
        asked, self._next_ticket = self._next_ticket, None
        return self._tickets.fetch_add() if asked is None else asked.finish()

    def tickets_taken(self) -> int:
        return self._tickets.read()

    def taken(self) -> int:
        return int(self._numbers[Control.TAKEN])

    def fence(self) -> None:
        self._window.sync()

    def take_order(self, order: int) -> bool:
        if self._order_taken < order:
            copied = Counter(self._window, self._coordinator, "control", Control.COPIED)
            if copied.raise_to(order) >= order:
                return False
            self._order_taken = order
        return self._order_taken == order

    def set_clock(self, clock: int) -> None:
        before = int(self._clock[0])
        self._clock[0] = clock
        self._window.put(self._clock, self._coordinator, "clocks", self._replica)
        self._window.fence(self._coordinator)
        # A coordinator of another node answers this node's workers when they need not wait any more.
        if self._window.supports_deferred_get(self._coordinator) or self._slowest() <= before:
            return
        for rank in self._shared.workers:
            self._doorbells.ring(rank)
        if not self._doorbells.alone:
            # It is to answer the workers of other nodes.
            self._doorbells.ring(self._coordinator)

    def all_reached(self, clock: int) -> bool:
        while self._clocks.min() < clock:
            if self._slower is not None and not self._slower():
                return False
            self._slower = None
            if self._slowest() < clock:
                slowest = int(self._clocks.argmin())
                self._slower = self._window.watch(self._coordinator, "clocks", slowest, clock)
        return True

    def _slowest(self) -> int:
        self._window.get(self._clocks, self._coordinator, "clocks")
        self._window.flush(self._coordinator)
        return int(self._clocks.min())

    def begin_round(self, pushes: int) -> tuple[Order, int | None]:
        self._begun.raise_to(pushes)
        order = self.order()
        decided, pushes = divmod(int(self._numbers[Control.ROUND]), ROUNDS)
        return order, pushes if decided == order.number else None

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        self._post("workers", self._row, status, wake)

    def post_shard(self, status: np.ndarray, wake: bool = False, shard: int = 0) -> None:
        self._post("servers", self._own_shards[shard], status, wake)

    def post_sums(self, sums: np.ndarray) -> None:
        self._put(self._reports_to, "sums", self._row * sums.size, sums.reshape(-1))

    def post_evaluation(self, epoch: int, result: np.ndarray) -> None:
        self._put(self._coordinator, "evaluations", epoch - 1, result)
        self._put(self._coordinator, "evaluated", epoch - 1, np.ones(1, np.int64))
        self._doorbells.ring(self._coordinator)

    # Parameters, at the servers.

    @property
    def bytes_pushed(self) -> int:
        return self._outboxes.bytes

    def mark(self, order: int) -> bool:
        return self._outboxes.mark(order)

    def begin_push(self, fetched: Sequence[int], portions: tuple[int, int], zero_copy: bool = False) -> None:
        self._outboxes.begin(fetched, portions, zero_copy)

    def send_push(self, vector: Any, start: int = 0) -> bool:
        return self._outboxes.send(vector, start)

    def end_pushes(self) -> bool:
        return self._outboxes.end()

    def applied(self) -> bool:
        return self._outboxes.applied()

    def all_newer(self, clocks: np.ndarray) -> bool:
        return self._reader.all_newer(clocks)

    def start_fetch(self, parameters: Any, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        self._reader.start_clocks(clocks, without)
        self._outboxes.start_asking()
        self._reader.start(parameters, {*without, *self._fetches})
        for number, fetch in self._fetches.items():
            if number not in without:
                fetch.ask()

    def finish_fetch(self) -> None:
        self._reader.finish()

    def fetch_present(self, parameters: Any) -> None:
        self._servers_reader.start(parameters)
        self._servers_reader.finish()

    @property
    def can_follow(self) -> bool:
        return not self.relayed and any(self._window.supports_deferred_get(rank) for rank, _ in self._holders)

    def follow_push(self, parameters: Any, clocks: np.ndarray) -> Sequence[int]:
        self._before, self._followed = clocks, []
        for number, (rank, shard) in enumerate(self._holders):
            if self._window.supports_deferred_get(rank):
                self._followed.append(number)
                encoded = number in self._fetches
                part = None if encoded else parameters[self._parts[number]]
                self._outboxes[number].follow(part, clocks[number], self._after[number], regions(shard))
                if encoded:
                    self._fetches[number].ask()
        return self._followed

    def finish_following(self) -> None:
        followed, before = self._followed, self._before
        for number in followed:
            self._window.flush(self._holders[number].rank)
            self._outboxes[number].followed()
        # The push ended after the first reading, or both readings have it.
        after = self._after[followed]
        clock, cut = ShardClock.CLOCK, ShardClock.CUT
        before[followed, clock] = np.minimum(before[followed, clock] + 1, after[:, clock])
        before[followed, cut] = after[:, cut]

    @property
    def encoded(self) -> Collection[int]:
        return self._fetches.keys()

    def take_differences(self) -> bool:
        return take_answers(self._window, self._fetches.values())

    @property
    def bytes_fetched(self) -> int:
        return sum(each.bytes for each in self._fetches.values())

    # A coordinator's evaluations.

    def notice_changed(self) -> bool:
        if self._news is None:
            self._news = self._window.watch(self._coordinator, "notice", Notice.NEWS, self._changes + 1)
        if not self._news():
            return False
        self._news, self._changes = None, self._changes + 1
        return True

    def read_notice(self, notice: np.ndarray) -> None:
        self._window.get(notice, self._coordinator, "notice")
        self._window.flush(self._coordinator)

    def take_piece(self) -> int:
        return Counter(self._window, self._coordinator, "notice", Notice.PIECE).fetch_add()

    def take_copy(self, evaluation: int, unit: int) -> bool:
        return Counter(self._window, self._coordinator, "copies", unit).raise_to(evaluation) < evaluation

    def read_done(self, done: np.ndarray) -> None:
        at_each = np.empty((len(self._servers), len(done)), done.dtype)
        for row, rank in zip(at_each, self._servers, strict=True):
            self._window.get(row, rank, "done")
        for rank in self._servers:
            self._window.flush(rank)
        np.bitwise_and.reduce(at_each, axis=0, out=done)
