"""The relay of a virtual node: it pushes the sum of what replicas push, and fetches for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy

from mpidl.engines.virtual.cluster import Exchanger, VirtualCluster, VirtualReplica
from mpidl.engines.virtual.server import Process, Signal
from mpidl.engines.virtual.traffic import PushInFlight, Traffic
from mpidl.relays.batching_window import BatchingWindow
from mpidl.topology.roles import Roles, assign
from mpidl.wire import Wire


@dataclass(slots=True, eq=False)
class Sum(PushInFlight):
    """The sum of pushes on its way from the relay to all servers.

    `applied` occurs when all servers have applied it and the relay shows what they had then. `fetched` has the oldest
    clock of each shard at which one of the pushes was computed, `batches` the first and the last minibatch, and
    `workers` the workers with a push in it, by their number at the relay; `missing` pushes have not arrived yet. Once
    `closed`, no further push is added.
    """

    applied: simpy.Event
    fetched: list[int]
    batches: tuple[int, int]
    workers: set[int] = field(default_factory=set)
    pushes: int = 0
    missing: int = 0
    closed: bool = False


class VirtualRelay(Exchanger):
    """Exchanges with the servers for `replicas` of its node, as `mpidl.relays.role.RelayRole`; `wire` encodes pushes.

    The arithmetic of a push is done when it leaves its replica; the sum waits until all pushes in it have arrived.
    """

    def __init__(
        self, number: int, replicas: Sequence[int], cluster: VirtualCluster, traffic: Traffic, wire: Wire | None
    ) -> None:
        super().__init__(number, cluster.encodings(wire, traffic.wire_fetch))
        assert cluster.machines is not None
        self._cluster, self._machines, self._traffic, self._wire = cluster, cluster.machines, traffic, wire
        self._workers = {replica: worker for worker, replica in enumerate(replicas)}
        self._shown, self._next = (cluster.spares.take((cluster.servers[-1].part.stop,)) for _ in range(2))
        cluster.collect(self._shown)
        self.fetched = [server.shard.clock for server in cluster.servers]
        self._statistics = [
            slice(*part.shift(server.part.start)) for server in cluster.servers for part in server.shard.statistics
        ]
        self._window = BatchingWindow(self._now, len(replicas))
        self._sums: deque[Sum] = deque()
        self._changed = Signal(cluster.environment)
        # The time at which all arrived pushes have been added.
        self._free = self._now
        cluster.environment.process(self._live())

    @staticmethod
    def assign(nodes: Sequence[int], servers: int, partitions: int) -> Roles:
        """Return the role of each rank, given its node."""
        return assign(nodes, servers, partitions, relay=True)

    @property
    def _now(self) -> float:
        return float(self._cluster.environment.now)

    def leaves(self, replica: int) -> None:
        """Expect no more pushes of a replica."""
        self._window.leaves(self._workers[replica])
        self._changed.announce()

    def joins(self, replica: int) -> None:
        """Expect pushes of a replica that has returned."""
        self._window.joins(self._workers[replica], self._now)

    def push(self, replica: int, vector: np.ndarray, fetched: Sequence[int], batches: tuple[int, int]) -> Process:
        """Add a push to a sum, and return a process that ends when the servers have applied the sum."""
        if not self._sums or self._sums[-1].closed:
            total = self._cluster.spares.take(vector.shape)
            total[:] = 0
            applied = self._cluster.environment.event()
            nbytes = [total[server.part].nbytes for server in self._cluster.servers]
            self._sums.append(Sum(self, total, len(nbytes), nbytes, applied, list(fetched), batches))
        gathered, worker = self._sums[-1], self._workers[replica]
        self._add(gathered, vector, fetched, batches)
        gathered.workers.add(worker)
        gathered.missing += 1
        self._window.begins_push(worker, self._now)
        return self._arrive(gathered, replica, vector.nbytes)

    def _add(self, gathered: Sum, vector: np.ndarray, fetched: Sequence[int], batches: tuple[int, int]) -> None:
        total = gathered.vector
        gathered.pushes += 1
        means = [total[part] + (vector[part] - total[part]) / gathered.pushes for part in self._statistics]
        total += vector
        for part, mean in zip(self._statistics, means, strict=True):
            total[part] = mean
        gathered.fetched = [min(pair) for pair in zip(gathered.fetched, fetched, strict=True)]
        gathered.batches = min(gathered.batches[0], batches[0]), max(gathered.batches[1], batches[1])
        self._traffic.expect(gathered, gathered.fetched, gathered.batches)

    def _arrive(self, gathered: Sum, replica: int, size: int) -> Process:
        """Carry a push to the relay, which adds up one push after the other."""
        yield from self._machines.tell(replica)
        self._free = max(self._free, self._now) + self._machines.copying(size)
        yield self._cluster.environment.timeout(self._free - self._now)
        gathered.missing -= 1
        first = gathered.missing == gathered.pushes - 1
        self._window.ends_push(self._workers[replica], self._now, first)
        self._changed.announce()
        yield gathered.applied

    def fetch(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Copy the parameters fetched last into a vector of a replica; return the clocks of the shards at that time."""
        np.copyto(vector, self._shown)
        clocks = self.fetched
        yield from self._machines.share(replica.number, vector.nbytes)
        return clocks

    def _live(self) -> Process:
        while True:
            while not self._sums:
                yield self._changed.next
            yield from self._gather(self._sums[0])
            yield from self._exchange(self._sums.popleft())

    def _gather(self, gathered: Sum) -> Process:
        """Wait for more pushes until the deadline of the batching window, and then for those that have begun."""
        while not gathered.closed:
            if gathered.missing == gathered.pushes:
                yield self._changed.next
                continue
            wait = self._window.deadline(gathered.workers) - self._now
            # The present time may be rounded.
            gathered.closed = self._now + wait <= self._now
            if not gathered.closed:
                yield self._changed.next | self._cluster.environment.timeout(wait)
        while gathered.missing:
            yield self._changed.next

    def _exchange(self, gathered: Sum) -> Process:
        """Push a sum, fetch when the servers have applied it, and show this to the replicas."""
        cluster, started = self._cluster, self._now
        if self._wire is not None:
            exact, gathered.vector = gathered.vector, cluster.spares.take(gathered.vector.shape)
            gathered.nbytes = self.encode(self._wire, cluster, exact, gathered.vector)
            cluster.spares.give(exact)
            self._traffic.expect(gathered, gathered.fetched, gathered.batches)
        cluster.totals.bytes_pushed += round(sum(gathered.nbytes))
        self._traffic.send(gathered)
        yield cluster.environment.all_of(self.unapplied)
        clocks = yield from self._traffic.fetch(self, self._next)
        yield cluster.environment.timeout(self._machines.copying(self._next.nbytes))
        self._shown, self._next, self.fetched = self._next, self._shown, clocks
        gathered.applied.succeed()
        behind = self._sums[0].workers if self._sums else set[int]()
        self._window.exchanged(gathered.workers - behind, self._now - started, self._now)
        self._traffic.updated.announce()
