"""A relay's link over windows: to its workers it is a server that has all shards, to the servers it is two workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.inboxes import RelayInbox
from mpidl.rma.link import WindowLink
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.reading import Holder, ShardReader
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ShardClock

#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, RECEIVED, CUT = (int(number) for number in ShardClock)


class WindowRelayLink(WindowLink):
    """See `mpidl.transport.interface.relay.RelayLink`.

    Parameters
    ----------
    shared : SharedState
    number : int
        The relay's number.
    """

    def __init__(self, shared: SharedState, number: int) -> None:
        super().__init__(shared)
        self._number, capacity, relay = number, shared.capacity, shared.roles.relays[number]
        self.shards: list[Range] = list(capacity.shards)
        self.workers = len(relay.workers)
        geometries, window = capacity.relay_mailboxes(relay), self._window
        self.chunks = [geometry.chunk for geometry in geometries]
        self.inboxes = [
            RelayInbox(window, geometry, list(relay.workers), self._doorbells, shard)
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
        self.rings = [
            Outboxes(
                window,
                [Outbox(window, rank, ring, shared.geometries[shard], None, shard) for rank, shard in holders],
                self._parts,
                self._doorbells,
            )
            for ring in (first, first + 1)
        ]
        self._after = np.zeros((len(self.shards), len(ShardClock)), np.int64)

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        """See `FollowerLink.post`."""
        self._post("relays", self._number, status, wake)

    def fetch(self, parameters: Any, clocks: np.ndarray) -> None:
        """See `RelayLink.fetch`."""
        self._reader.start_clocks(clocks)
        self._reader.start(parameters)
        self._reader.finish()
        self._reader.start_clocks(self._after)
        self._reader.finish()
        clocks[:, CUT] = self._after[:, CUT]

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """See `RelayLink.show`: a worker that sees a clock finds the parameters of that clock, or later ones."""
        for (_, shown), row in zip(self._shown, clocks, strict=True):
            shown[CUT] = row[CUT]
        self._window.sync()
        for (values, _), part in zip(self._shown, self._parts, strict=True):
            np.copyto(values, parameters[part])
        self._window.sync()
        for (_, shown), row in zip(self._shown, clocks, strict=True):
            shown[RECEIVED] = row[RECEIVED]
            shown[CLOCK] = row[CLOCK]
        self._window.sync()
