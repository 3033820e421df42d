"""Routes: which ranks workers push to, fetch from, report to and take orders from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mpidl.topology.roles import Roles
from mpidl.transport.capacity import Capacity, MailboxGeometry


class Holder(NamedTuple):
    """Where a shard is read: the rank that shows it, and the shard's number."""

    rank: int
    shard: int


class Route(NamedTuple):
    """The route of one worker.

    Attributes
    ----------
    holders : sequence of Holder
        For each shard of its slice, the rank that takes its pushes and shows it parameters; empty without servers.
    geometries : sequence of MailboxGeometry
        For each shard, the mailboxes there.
    ring : int
        Its ring in each of them.
    rank : int
        The rank that takes its status and shows it the coordinator's orders.
    row : int
        Its row of status there.
    reporting : int
        Number of ranks that report there.
    direct : bool
        Whether it pushes to the servers themselves. If not, the ranks that it pushes to count the bytes that travel
        and need whole pushes.
    """

    holders: Sequence[Holder]
    geometries: Sequence[MailboxGeometry]
    ring: int
    rank: int
    row: int
    reporting: int
    direct: bool = True


class Routes:
    """The routes of a job whose workers push to servers, or exchange among themselves.

    `workers` has the rank of each: those of the first replica in the order of its partitions, then those of the next,
    ... A shard's mailboxes have `rings` rings, and `readers` ranks fetch it.
    """

    def __init__(self, roles: Roles, capacity: Capacity) -> None:
        self.roles, self.capacity = roles, capacity
        self.workers = [rank for replica in roles.replicas for rank in replica]
        self.rings, self.readers = len(roles.pushers()), len(roles.fetchers())

    @property
    def geometries(self) -> list[MailboxGeometry]:
        """The mailboxes of each shard, at its server."""
        return [self.capacity.mailboxes(number, self.rings) for number in range(len(self.capacity.shards))]

    @property
    def reporting(self) -> int:
        """Number of ranks that report to the coordinator."""
        partitions = range(len(self.roles.replicas[0]))
        return len({rank for partition in partitions for rank in self.roles.fetchers(partition)})

    def servers(self, partition: int) -> list[Holder]:
        """Return the server of each shard of a partition; none in a job without servers."""
        capacity, servers = self.capacity, self.roles.servers
        holders = {shard: rank for number, rank in enumerate(servers) for shard in capacity.held_by(number)}
        return [Holder(holders[shard], shard) for shard in capacity.of_partition(partition) if holders]

    def of(self, worker: int) -> Route:
        """Return the route of worker number `worker`."""
        partition = worker % len(self.roles.replicas[0])
        servers, geometries = self.servers(partition), self.geometries
        boxes = [geometries[shard] for _, shard in servers]
        ring = self.roles.fetchers(partition).index(self.workers[worker])
        return Route(servers, boxes, ring, self.roles.coordinator, worker, self.reporting)

    def regions(self, rank: int) -> dict[str, tuple[Any, int]]:
        """Return the window regions of a rank that is neither the coordinator nor a server: (dtype, count) by name."""
        return {}

    def side_data(self, rank: int) -> int:
        """Return the bytes that such a rank needs beside its window."""
        return 0

    def askers(self, rank: int) -> set[int] | None:
        """Return the ranks that access the memory of `rank`; None if any may."""
        return None
