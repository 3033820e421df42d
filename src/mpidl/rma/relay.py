"""A relay's link over windows: to its workers it is a server that has all shards, to the servers it is two workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.differences import DifferenceFetch, take_answers
from mpidl.rma.inboxes import RelayInbox
from mpidl.rma.link import WindowLink
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.reading import Holder, ShardReader
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ANNOUNCING, Order, ShardClock
from mpidl.wire import Differences, ErrorFeedback

#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, CUT = (int(number) for number in ShardClock)


def runs(numbers: Sequence[int]) -> list[tuple[slice, int]]:
    """Return where runs of consecutive numbers are, and the first number of each."""
    starts = [place for place, each in enumerate(numbers) if place == 0 or each != numbers[place - 1] + 1]
    return [(slice(start, stop), numbers[start]) for start, stop in pairwise([*starts, len(numbers)])]


class WindowRelayLink(WindowLink):
    """See `mpidl.transport.interface.relay.RelayLink`.

    Parameters
    ----------
    shared : SharedState
    number : int
        The relay's number.
    feedback : sequence of sequence of ErrorFeedback
        For each ring, what encodes its pushes to each shard, if there is a wire format.
    copies : sequence of Differences
        For each shard, if fetches are encoded.
    """

    def __init__(
        self,
        shared: SharedState,
        number: int,
        feedback: Sequence[Sequence[ErrorFeedback]] = (),
        copies: Sequence[Differences] = (),
    ) -> None:
        super().__init__(shared)
        self._number, capacity, relay = number, shared.capacity, shared.roles.relays[number]
        self._told = self._window.local("control")
        self._statuses, self._sums = self._window.local("workers"), self._window.local("sums")
        self._runs, self._forwarded = runs([shared.workers.index(rank) for rank in relay.workers]), b""
        self.shards: list[Range] = list(capacity.shards)
        self.replicas = len(relay.workers) // shared.partitions
        geometries, window = capacity.relay_mailboxes(relay), self._window
        self.chunks = [geometry.chunk for geometry in geometries]
        ranks = {
            shard: list(relay.workers[partition :: shared.partitions])
            for partition in range(shared.partitions)
            for shard in capacity.of_partition(partition)
        }
        self.inboxes = [
            RelayInbox(window, geometry, ranks[shard], self._doorbells, shard)
            for shard, geometry in enumerate(geometries)
        ]
        self._shown = [
            (window.local(f"parameters/{shard}"), window.local(f"clock/{shard}")) for shard in range(len(geometries))
        ]
        servers = shared.roles.servers
        held = {shard: rank for holder, rank in enumerate(servers) for shard in capacity.held_by(holder)}
        holders = [Holder(held[shard], shard) for shard in range(len(self.shards))]
        self._parts = [slice(*shard) for shard in self.shards]
        self._reader = ShardReader(window, holders, self._parts)
        first = shared.roles.pushers().index(relay.rank)
        self._fetches = {
            shard: DifferenceFetch(window, rank, first, copy, self._doorbells, shard)
            for (rank, shard), copy in zip(holders, copies, strict=False)
            if self._encodes(rank)
        }
        self.rings = [
            Outboxes(
                window,
                [
                    Outbox(window, rank, ring, shared.geometries[shard], self._encoder(rank, encoder), shard)
                    for (rank, shard), encoder in zip(holders, own or repeat(None), strict=False)
                ],
                self._parts,
                self._doorbells,
            )
            for ring, own in zip((first, first + len(shared.roles.relays)), feedback or ((), ()), strict=True)
        ]
        self._after = np.zeros((len(self.shards), len(ShardClock)), np.int64)
        self._bytes_read = 0

    def order(self) -> Order:
        return Order.of(self._told)

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        self._forward()
        self._post("relays", self._number, status, wake)

    def _forward(self) -> None:
        """Post what the workers have posted, if it has changed."""
        # What announces other fields is read before these, and what is announced last is read first.
        announcing = {name: self._statuses[name].copy() for name in reversed(ANNOUNCING)}
        self._window.sync()
        statuses, sums = self._statuses.copy(), self._sums.copy()
        for name, values in announcing.items():
            statuses[name] = values
        written = statuses.tobytes() + sums.tobytes()
        if written == self._forwarded:
            return
        self._forwarded, width = written, self._shared.capacity.sums
        for own, first in self._runs:
            self._put(self._coordinator, "sums", first * width, sums[own.start * width : own.stop * width])
            self._post("workers", first, statuses[own], False)

    def start_fetch(self, parameters: Any, clocks: np.ndarray) -> None:
        self._reader.start_clocks(clocks)
        self._reader.start(parameters, self._fetches)
        for fetch in self._fetches.values():
            fetch.ask()
        self._reader.finish()
        read = (part for shard, part in enumerate(self._parts) if shard not in self._fetches)
        self._bytes_read += sum(parameters[part].nbytes for part in read)

    def finish_fetch(self, clocks: np.ndarray) -> bool:
        if not take_answers(self._window, self._fetches.values()):
            return False
        self._reader.start_clocks(self._after)
        self._reader.finish()
        clocks[:, CUT] = self._after[:, CUT]
        return True

    @property
    def bytes_fetched(self) -> int:
        return self._bytes_read + sum(each.bytes for each in self._fetches.values())

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """See `RelayLink.show`: a worker that sees a clock finds the parameters of that clock, or later ones."""
        for (_, shown), row in zip(self._shown, clocks, strict=True):
            shown[CUT] = row[CUT]
        self._window.sync()
        for (values, _), part in zip(self._shown, self._parts, strict=True):
            np.copyto(values, parameters[part])
        self._window.sync()
        for (_, shown), row in zip(self._shown, clocks, strict=True):
            shown[CLOCK] = row[CLOCK]
        self._window.sync()
