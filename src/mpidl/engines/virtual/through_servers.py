"""Fetch and push in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines.virtual.world import Process, Replica, Server, Signal, World
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.wire import Wire


class ThroughServers:
    """Carries out the requests of algorithms that exchange through servers.

    Parameters
    ----------
    world : World
    wire : Wire or None
        How pushes are encoded.
    """

    def __init__(self, world: World, wire: Wire | None) -> None:
        self._world, self._wire = world, wire
        self._updated = Signal(world.environment)
        self.actions: dict[type, Callable[[Replica, Any], Process]] = {Fetch: self._fetch, Push: self._push}

    def remove_replica(self, replica: Replica) -> Process:
        """Tell the servers that no more of a replica's pushes follow."""
        yield from self.wait_applied(replica)
        for server in self._world.servers:
            server.shard.remove_worker(replica.number)
        self._updated.announce()

    def wait_applied(self, replica: Replica) -> Process:
        """Wait until a replica's pushes have been applied."""
        for delivery in replica.unapplied:
            if delivery.is_alive:
                yield delivery
        replica.unapplied.clear()

    def _fetch(self, replica: Replica, request: Fetch) -> Process:
        world = self._world
        world.totals.fetches += 1
        world.totals.bytes_fetched += request.parameters.nbytes
        world.begin()
        if request.ahead:
            if replica.spare is None:
                replica.spare = np.empty_like(request.parameters)
                replica.fetching = world.environment.process(self._bring(replica, replica.spare))
            assert replica.fetching is not None
            replica.fetched = yield replica.fetching
            np.copyto(request.parameters, replica.spare)
            replica.fetching = world.environment.process(self._bring(replica, replica.spare))
            return
        yield from self.wait_applied(replica)
        while request.newer and not self._all_newer(replica.fetched):
            yield self._updated.next
        replica.fetched = yield from self._bring(replica, request.parameters)

    def _all_newer(self, fetched: list[int]) -> bool:
        servers = self._world.servers
        return not fetched or all(s.shard.clock > clock for s, clock in zip(servers, fetched, strict=True))

    def _bring(self, replica: Replica, vector: np.ndarray) -> Process:
        """Copy the shards into a vector, each at the moment its own answer leaves; return their clocks."""
        first, *others = self._world.servers
        if self._world.cluster is None:
            self._world.collect(vector)
            return [server.shard.clock for server in self._world.servers]
        environment = self._world.environment
        copies = [environment.process(self._copy(replica, server, vector)) for server in others]
        clock = yield from self._copy(replica, first, vector)
        if copies:
            yield environment.all_of(copies)
        return [clock, *(copy.value for copy in copies)]

    def _copy(self, replica: Replica, server: Server, vector: np.ndarray) -> Process:
        cluster = self._world.cluster
        assert cluster is not None
        yield from cluster.send(replica.number, 0)
        vector[server.part] = server.shard.parameters
        clock = server.shard.clock
        yield from cluster.send(replica.number, server.shard.parameters.nbytes)
        return clock

    def _push(self, replica: Replica, request: Push) -> Process:
        world = self._world
        portions, size = replica.pushed(), request.vector.nbytes
        vector = self._leaving(replica, request.vector)
        if self._wire is not None:
            size = replica.encode(self._wire, world.servers, request.vector, vector)
        world.totals.pushes += 1
        world.totals.bytes_pushed += size
        world.totals.last_push = world.clock()
        if world.cluster is None:
            for server, fetched in zip(world.servers, replica.fetched, strict=True):
                self._apply(replica, server, vector, fetched, portions)
            return
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        arriving = [len(world.servers)]
        for server, fetched in zip(world.servers, replica.fetched, strict=True):
            part = size * server.shard.range.size / vector.size
            delivery = self._deliver(replica, server, vector, part, fetched, portions, arriving)
            replica.unapplied.append(world.environment.process(delivery))
        return
        yield

    def _leaving(self, replica: Replica, vector: np.ndarray) -> np.ndarray:
        """Return the vector that travels: the gradient itself, which the replica then gives up, or another."""
        if self._world.cluster is None and self._wire is None:
            return vector
        if self._wire is None and vector is replica.gradient:
            replica.gradient = None
            return vector
        leaving = self._world.spares.take()
        if self._wire is None:
            np.copyto(leaving, vector)
        return leaving

    def _deliver(
        self,
        replica: Replica,
        server: Server,
        vector: np.ndarray,
        size: float,
        fetched: int,
        portions: tuple[int, int],
        arriving: list[int],
    ) -> Process:
        world = self._world
        assert world.cluster is not None
        # A server begins with the first chunk while the rest is on its way.
        first = min(size, CHUNK_BYTES)
        yield from world.cluster.send(replica.number, first)
        rest = world.environment.process(world.cluster.send(replica.number, size - first)) if size > first else None
        if world.cluster.shares_cores:
            yield world.environment.timeout(0)  # The sender is at it when the server wakes.
        yield from server.turn()
        started = world.environment.now
        yield world.cluster.serve(world.servers.index(server))
        if rest is not None and rest.is_alive:
            yield rest
        server.busy_seconds += world.environment.now - started
        self._apply(replica, server, vector, fetched, portions)
        server.done()
        world.totals.last_push = world.clock()
        arriving[0] -= 1
        if not arriving[0]:
            world.spares.give(vector)

    def _apply(
        self, replica: Replica, server: Server, vector: np.ndarray, fetched: int, portions: tuple[int, int]
    ) -> None:
        started = self._world.clock()
        server.shard.receive_push(replica.number, fetched, vector[server.part], portions)
        server.busy_seconds += self._world.clock() - started
        if server.shard.policy.awaited:
            self._updated.announce()
