"""Fetch and push in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines.virtual.cluster import Process, Signal, VirtualCluster, VirtualReplica, VirtualServer
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.wire import Wire


class ThroughServers:
    """Carries out the requests of algorithms that exchange through servers.

    Parameters
    ----------
    cluster : VirtualCluster
    wire : Wire or None
        How pushes are encoded.
    """

    def __init__(self, cluster: VirtualCluster, wire: Wire | None) -> None:
        self._cluster, self._wire = cluster, wire
        self._updated = Signal(cluster.environment)
        self.actions: dict[type, Callable[[VirtualReplica, Any], Process]] = {Fetch: self._fetch, Push: self._push}

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Tell the servers that no more of a replica's pushes follow."""
        yield from self.wait_applied(replica)
        for server in self._cluster.servers:
            server.shard.remove_worker(replica.number)
        self._updated.announce()

    def wait_applied(self, replica: VirtualReplica) -> Process:
        """Wait until a replica's pushes have been applied."""
        for delivery in replica.unapplied:
            if delivery.is_alive:
                yield delivery
        replica.unapplied.clear()

    def _fetch(self, replica: VirtualReplica, request: Fetch) -> Process:
        cluster = self._cluster
        cluster.totals.fetches += 1
        cluster.totals.bytes_fetched += request.parameters.nbytes
        cluster.begin()
        if request.ahead:
            if replica.spare is None:
                replica.spare = np.empty_like(request.parameters)
                replica.fetching = cluster.environment.process(self._bring(replica, replica.spare))
            assert replica.fetching is not None
            replica.fetched = yield replica.fetching
            np.copyto(request.parameters, replica.spare)
            replica.fetching = cluster.environment.process(self._bring(replica, replica.spare))
            return
        yield from self.wait_applied(replica)
        while request.newer and not self._all_newer(replica.fetched):
            yield self._updated.next
        replica.fetched = yield from self._bring(replica, request.parameters)

    def _all_newer(self, fetched: list[int]) -> bool:
        servers = self._cluster.servers
        return not fetched or all(s.shard.clock > clock for s, clock in zip(servers, fetched, strict=True))

    def _bring(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Copy the shards into a vector, each at the moment its own answer leaves; return their clocks."""
        first, *others = self._cluster.servers
        if self._cluster.machines is None:
            self._cluster.collect(vector)
            return [server.shard.clock for server in self._cluster.servers]
        environment = self._cluster.environment
        copies = [environment.process(self._copy(replica, server, vector)) for server in others]
        clock = yield from self._copy(replica, first, vector)
        if copies:
            yield environment.all_of(copies)
        return [clock, *(copy.value for copy in copies)]

    def _copy(self, replica: VirtualReplica, server: VirtualServer, vector: np.ndarray) -> Process:
        cluster = self._cluster.machines
        assert cluster is not None
        yield from cluster.send(replica.number, 0)
        vector[server.part] = server.shard.parameters
        clock = server.shard.clock
        yield from cluster.send(replica.number, server.shard.parameters.nbytes)
        return clock

    def _push(self, replica: VirtualReplica, request: Push) -> Process:
        cluster = self._cluster
        portions, size = replica.pushed(), request.vector.nbytes
        vector = self._leaving(replica, request.vector)
        if self._wire is not None:
            size = replica.encode(self._wire, cluster.servers, request.vector, vector)
        cluster.totals.pushes += 1
        cluster.totals.bytes_pushed += size
        cluster.totals.last_push = cluster.clock()
        if cluster.machines is None:
            for server, fetched in zip(cluster.servers, replica.fetched, strict=True):
                self._apply(replica, server, vector, fetched, portions)
            return
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        arriving = [len(cluster.servers)]
        for server, fetched in zip(cluster.servers, replica.fetched, strict=True):
            part = size * server.shard.range.size / vector.size
            delivery = self._deliver(replica, server, vector, part, fetched, portions, arriving)
            replica.unapplied.append(cluster.environment.process(delivery))
        return
        yield

    def _leaving(self, replica: VirtualReplica, vector: np.ndarray) -> np.ndarray:
        """Return the vector that travels: the gradient itself, which the replica then gives up, or another."""
        if self._cluster.machines is None and self._wire is None:
            return vector
        if self._wire is None and vector is replica.gradient:
            replica.gradient = None
            return vector
        leaving = self._cluster.spares.take()
        if self._wire is None:
            np.copyto(leaving, vector)
        return leaving

    def _deliver(
        self,
        replica: VirtualReplica,
        server: VirtualServer,
        vector: np.ndarray,
        size: float,
        fetched: int,
        portions: tuple[int, int],
        arriving: list[int],
    ) -> Process:
        cluster = self._cluster
        assert cluster.machines is not None
        # A server begins with the first chunk while the rest is on its way.
        first = min(size, CHUNK_BYTES)
        yield from cluster.machines.send(replica.number, first)
        rest = (
            cluster.environment.process(cluster.machines.send(replica.number, size - first)) if size > first else None
        )
        if cluster.machines.shares_cores:
            yield cluster.environment.timeout(0)  # The sender is at it when the server wakes.
        yield from server.turn()
        started = cluster.environment.now
        yield cluster.machines.serve(cluster.servers.index(server))
        if rest is not None and rest.is_alive:
            yield rest
        server.busy_seconds += cluster.environment.now - started
        self._apply(replica, server, vector, fetched, portions)
        server.done()
        cluster.totals.last_push = cluster.clock()
        arriving[0] -= 1
        if not arriving[0]:
            cluster.spares.give(vector)

    def _apply(
        self,
        replica: VirtualReplica,
        server: VirtualServer,
        vector: np.ndarray,
        fetched: int,
        portions: tuple[int, int],
    ) -> None:
        started = self._cluster.clock()
        server.shard.receive_push(replica.number, fetched, vector[server.part], portions)
        server.busy_seconds += self._cluster.clock() - started
        if server.shard.policy.awaited:
            self._updated.announce()
