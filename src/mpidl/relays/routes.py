"""The routes of a job with relays: their workers see a relay where others see servers and the coordinator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mpidl.rma.regions import answers, mailboxes, of_shard
from mpidl.topology.roles import RelayRank, Roles
from mpidl.transport.capacity import MAILBOX_BYTES, Capacity, MailboxGeometry, answer_bytes
from mpidl.transport.protocol import WORKER_STATUS, Control, ShardClock
from mpidl.transport.routes import Holder, Route, Routes


class RelayedRoutes(Routes):
    """Routes in which some workers push to a relay of their node."""

    def __init__(self, roles: Roles, capacity: Capacity) -> None:
        super().__init__(roles, capacity)
        self._relays = {relay.rank: relay for relay in roles.relays}

    def of(self, worker: int) -> Route:
        rank, partitions = self.workers[worker], len(self.roles.replicas[0])
        partition, relay = worker % partitions, self.roles.relay_of(rank)
        if relay is None:
            return super().of(worker)
        shards, row = self.capacity.of_partition(partition), relay.workers.index(rank)
        geometries = self.mailboxes(relay)
        holders = [Holder(relay.rank, shard) for shard in shards]
        boxes = [geometries[shard] for shard in shards]
        return Route(holders, boxes, row // partitions, relay.rank, row, len(relay.workers), direct=False)

    def mailboxes(self, relay: RelayRank) -> list[MailboxGeometry]:
        """Return the mailboxes of a relay for each shard; together they are as large as those of one server."""
        capacity, replicas = self.capacity, len(relay.workers) // len(self.roles.replicas[0])
        geometry = partial(
            MailboxGeometry.of, workers=replicas, dtype=capacity.dtype, chunk_bytes=capacity.chunk_bytes,
            room=MAILBOX_BYTES // len(capacity.shards), least=capacity.side_data,
        )  # fmt: skip
        return [geometry(shard) for shard in capacity.shards]

    def regions(self, rank: int) -> dict[str, tuple[Any, int]]:
        """Return what a relay offers to its workers: the regions of a server with all shards, and the coordinator's."""
        relay = self._relays.get(rank)
        if relay is None:
            return {}
        found: dict[str, tuple[Any, int]] = {
            "control": (np.int64, len(Control)),
            "workers": (WORKER_STATUS, len(relay.workers)),
            "sums": (np.float64, len(relay.workers) * self.capacity.sums),
        }
        for number, geometry in enumerate(self.mailboxes(relay)):
            found |= {
                f"parameters/{number}": (self.capacity.dtype, self.capacity.shards[number].size),
                of_shard(number).clock: (np.int64, len(ShardClock)),
                **mailboxes(geometry, number, applied_later=True),
            }
            if self.capacity.side_data:
                found |= answers(geometry.workers, number, self.capacity.side_data)
        return found

    def side_data(self, rank: int) -> int:
        """Return the bytes of what a relay fetches: parameters and answers; of two sums, and its rings' residuals."""
        capacity = self.capacity
        whole: int = capacity.shards[-1].stop * np.dtype(capacity.dtype).itemsize
        return (3 if capacity.wire is None else 5) * whole + answer_bytes(capacity, capacity.shards)

    def askers(self, rank: int) -> set[int] | None:
        relay = self._relays.get(rank)
        return None if relay is None else {self.roles.coordinator, *relay.workers}


def routes(roles: Roles, capacity: Capacity) -> Routes:
    """Return the routes of a job, which may have relays."""
    return RelayedRoutes(roles, capacity) if roles.relays else Routes(roles, capacity)
