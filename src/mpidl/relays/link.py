"""A relay's link: to its workers it is a server that has all shards, to the servers it is two workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.relays.routes import RelayedRoutes
from mpidl.rma.answers import AnswerReader, Answers
from mpidl.rma.differences import DifferenceFetch, take_answers
from mpidl.rma.fetches import ShardReader, ShownShards
from mpidl.rma.mailboxes import Inbox
from mpidl.rma.orders import OwnOrders
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.reports import ForwardedReports
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ShardClock
from mpidl.transport.routes import Holder
from mpidl.wire import Differences, ErrorFeedback


class RelayLink:
    """A relay's link to the workers of its node, to the servers and to the coordinator.

    Error feedback encodes the pushes of each ring to each shard, and `copies` the fetches of each shard. The workers
    are the ranks of `replicas` replicas; each has a mailbox for each shard, in `inboxes`, with `chunks` elements a
    chunk. `rings` are two. For each shard, `answers` and `asked` are the ends of answers on the side channel, to
    workers and from servers; empty in a job without one.
    """

    def __init__(
        self,
        shared: SharedState,
        number: int,
        feedback: Sequence[Sequence[ErrorFeedback]] = (),
        copies: Sequence[Differences] = (),
    ) -> None:
        window, capacity, relay, routes = shared.window, shared.capacity, shared.roles.relays[number], shared.routes
        assert isinstance(routes, RelayedRoutes)
        workers = [shared.workers.index(rank) for rank in relay.workers]
        self.orders, self.reports = OwnOrders(shared), ForwardedReports(shared, "intermediaries", number, workers)
        self.shards: list[Range] = list(capacity.shards)
        self.replicas = len(relay.workers) // shared.partitions
        geometries = routes.mailboxes(relay)
        self.chunks = [geometry.chunk for geometry in geometries]
        ranks, holders = dict[int, list[int]](), dict[int, Holder]()
        for partition in range(shared.partitions):
            for holder in routes.servers(partition):
                ranks[holder.shard] = list(relay.workers[partition :: shared.partitions])
                holders[holder.shard] = holder
        self.inboxes = [
            Inbox(window, geometry, ranks[shard], shared.doorbells, shard) for shard, geometry in enumerate(geometries)
        ]
        of_all = [holders[shard] for shard in range(len(self.shards))]
        slots = [(each, capacity.side_data) for each in of_all if capacity.side_data]
        self.answers = [Answers(window, ranks[shard], shared.doorbells, shard, slot) for (_, shard), slot in slots]
        self._parts = [slice(*shard) for shard in self.shards]
        self._shown, self._reader = ShownShards(window, self._parts), ShardReader(window, of_all, self._parts)
        first = shared.roles.pushers().index(relay.rank)
        self.asked = [AnswerReader(window, rank, first, shard, slot) for (rank, shard), slot in slots]
        self._fetches = {
            shard: DifferenceFetch(window, rank, first, copy, shared.doorbells, shard)
            for (rank, shard), copy in zip(of_all, copies, strict=False)
            if shared.encodes(rank)
        }
        self.rings = [
            Outboxes(
                [
                    Outbox(window, rank, ring, shared.geometries[shard], shared.encoder(rank, encoder), shard)
                    for (rank, shard), encoder in zip(of_all, own or repeat(None), strict=False)
                ],
                self._parts,
                shared.doorbells,
            )
            for ring, own in zip((first, first + len(shared.roles.intermediaries)), feedback or ((), ()), strict=True)
        ]
        self._after = np.zeros((len(self.shards), len(ShardClock)), np.int64)
        self._bytes_read = 0

    def start_fetch(self, parameters: Any, clocks: np.ndarray) -> None:
        """Read all shards into a vector and, before each, its `protocol.ShardClock` into a row of `clocks`.

        Where fetches are encoded, servers are asked for differences, which bring the link's copies up to date.
        """
        self._reader.start_clocks(clocks)
        self._reader.start(parameters, self._fetches)
        for fetch in self._fetches.values():
            fetch.ask()
        self._reader.finish()
        read = (part for shard, part in enumerate(self._parts) if shard not in self._fetches)
        self._bytes_read += sum(parameters[part].nbytes for part in read)

    def finish_fetch(self, clocks: np.ndarray) -> bool:
        """Return whether everything that was asked for has arrived.

        The servers' checkpoint cuts are read after the parameters, which may have changed since the cut.
        """
        if not take_answers(self._fetches.values()):
            return False
        self._reader.start_clocks(self._after)
        self._reader.finish()
        clocks[:, ShardClock.CUT] = self._after[:, ShardClock.CUT]
        return True

    @property
    def bytes_fetched(self) -> int:
        """Bytes of values that have arrived from servers."""
        return self._bytes_read + sum(each.bytes for each in self._fetches.values())

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """Show the workers what has been fetched."""
        self._shown.show(parameters, clocks)
