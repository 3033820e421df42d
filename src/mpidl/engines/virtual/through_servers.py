"""Fetch and push in virtual time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import simpy

from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines.virtual.cluster import Process, Signal, VirtualCluster, VirtualReplica, VirtualServer
from mpidl.engines.virtual.handler import Action, RequestHandler
from mpidl.wire import Wire


@dataclass(slots=True, eq=False)
class InFlight:
    """A vector on its way from a replica to all servers.

    Attributes
    ----------
    replica : VirtualReplica
        The sender.
    vector : array, shape (size,) or (2, size)
        What arrives. It returns to the spare vectors when no server needs it any more.
    awaited : int
        Number of servers that still need it.
    begun : dict of int to simpy.Event
        For servers, by number, that tell when they begin to apply it.
    """

    replica: VirtualReplica
    vector: np.ndarray
    awaited: int
    begun: dict[int, simpy.Event] = field(default_factory=dict, kw_only=True)


@dataclass(slots=True, eq=False)
class PushInFlight(InFlight):
    """A push on its way to all servers.

    Attributes
    ----------
    nbytes : int
        Number of bytes of the whole push.
    """

    nbytes: int


class ThroughServers(RequestHandler):
    """Carries out the requests of algorithms that exchange through servers.

    Parameters
    ----------
    cluster : VirtualCluster
    wire, wire_fetch : Wire or None
        How pushes, and how fetches are encoded. None: not at all.
    packed : float
        What part of the bytes of a push travels, where gradients travel in factors; replicas multiply them here.
    """

    def __init__(
        self, cluster: VirtualCluster, wire: Wire | None, wire_fetch: Wire | None = None, packed: float = 1.0
    ) -> None:
        self._cluster, self._wire, self._wire_fetch, self._packed = cluster, wire, wire_fetch, packed
        self._updated = Signal(cluster.environment)
        self.actions: Mapping[type, Action] = {Fetch: self._fetch, Push: self._push}

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """See `RequestHandler.remove_replica`; tells the servers that no more of its pushes follow."""
        yield from self.wait_applied(replica)
        for server in self._cluster.servers:
            server.shard.remove_worker(replica.number)
            self._look(server, self._cluster.environment.now)
        self._updated.announce()

    def add_replica(self, replica: VirtualReplica) -> None:
        """See `RequestHandler.add_replica`."""
        for server in self._cluster.servers:
            server.shard.add_worker(replica.number)

    def wait_applied(self, replica: VirtualReplica) -> Process:
        """See `RequestHandler.wait_applied`."""
        for delivery in replica.unapplied:
            if delivery.is_alive:
                yield delivery
        replica.unapplied.clear()

    def _fetch(self, replica: VirtualReplica, request: Fetch) -> Process:
        cluster = self._cluster
        cluster.totals.fetches += 1
        cluster.begin()
        if request.ahead:
            if not replica.brought:
                yield from self._take_ahead(replica, request.parameters)
                self._fetch_ahead(replica)
            replica.brought = False
            return
        yield from self.wait_applied(replica)
        while request.newer and not self._all_newer(replica.fetched):
            yield self._updated.next
        replica.fetched = yield from self._copy_all(replica, request.parameters, replica.following)
        replica.following = {}

    def _take_ahead(self, replica: VirtualReplica, parameters: np.ndarray) -> Process:
        """Copy what is fetched ahead; the first time, fetch it before."""
        if replica.spare is None:
            replica.spare = np.empty_like(parameters)
            self._fetch_ahead(replica)
        assert replica.fetching is not None
        replica.fetched = yield replica.fetching
        np.copyto(parameters, replica.spare)

    def _fetch_ahead(self, replica: VirtualReplica) -> None:
        """Begin a fetch into the spare vector, behind the last push where it follows."""
        assert replica.spare is not None
        following, replica.following = replica.following, {}
        replica.fetching = self._cluster.environment.process(self._copy_all(replica, replica.spare, following))

    def _all_newer(self, fetched: list[int]) -> bool:
        servers = self._cluster.servers
        return not fetched or all(s.shard.clock > clock for s, clock in zip(servers, fetched, strict=True))

    def _copy_all(
        self, replica: VirtualReplica, vector: np.ndarray, following: Mapping[int, simpy.Process] | None = None
    ) -> Process:
        """Copy all shards into a vector, each at the moment its own answer leaves; return their clocks.

        Of some servers that is under way, `following` a push.
        """
        if self._cluster.machines is None:
            for server in self._cluster.servers:
                self._cluster.totals.bytes_fetched += self._read(replica, server, vector)
            return [server.shard.clock for server in self._cluster.servers]
        environment, servers, under_way = self._cluster.environment, range(len(self._cluster.servers)), following or {}
        others = [
            under_way.get(number) or environment.process(self._copy(replica, number, vector)) for number in servers[1:]
        ]
        first = (yield under_way[0]) if 0 in under_way else (yield from self._copy(replica, 0, vector))
        if others:
            yield environment.all_of(others)
        copies = [first, *(each.value for each in others)]
        self._cluster.totals.bytes_fetched += sum(nbytes for nbytes, _ in copies)
        return [clock for _, clock in copies]

    def _copy(self, replica: VirtualReplica, number: int, vector: np.ndarray) -> Process:
        """Copy a shard into a vector; return the number of bytes, and the shard's clock."""
        machines, server = self._cluster.machines, self._cluster.servers[number]
        assert machines is not None
        yield from machines.tell(replica.number)
        nbytes, clock = self._read(replica, server, vector), server.shard.clock
        yield from machines.fetch(replica.number, number, nbytes)
        return nbytes, clock

    def _read(self, replica: VirtualReplica, server: VirtualServer, vector: np.ndarray) -> int:
        """Read a shard into a vector as it is now, and return the number of bytes that it takes."""
        parameters = server.shard.parameters
        nbytes: int = parameters.nbytes
        if self._wire_fetch is not None:
            copy = replica.copy(self._wire_fetch, self._cluster.servers, server)
            nbytes = copy.fetch(parameters)
            parameters = copy.values
        if not np.may_share_memory(vector, parameters):
            vector[server.part] = parameters
        return nbytes

    def _push(self, replica: VirtualReplica, request: Push) -> Process:
        cluster, machines = self._cluster, self._cluster.machines
        followed, following, fetched = list[int](), request.fetched_next, replica.fetched
        if following is not None and machines is not None:
            followed = [n for n in range(len(cluster.servers)) if machines.by_messages(replica.number, n)]
            if followed and request.ahead:
                # A replica that dies meanwhile has pushed nothing.
                yield from self._take_ahead(replica, following)
                following, replica.brought = replica.spare, True
        portions, nbytes = replica.pushed(), round(request.vector.nbytes * self._packed)
        vector = self._vector_to_send(replica, request.vector)
        if self._wire is not None:
            nbytes = replica.encode(self._wire, cluster.servers, request.vector, vector)
        cluster.totals.pushes += 1
        cluster.totals.bytes_pushed += nbytes
        cluster.totals.last_push = cluster.clock()
        push = PushInFlight(replica, vector, len(cluster.servers), nbytes)
        for server, clock in zip(cluster.servers, fetched, strict=True):
            server.coming[push] = (replica.number, clock, vector[..., server.part], portions)
        if machines is None:
            for server in cluster.servers:
                self._apply(push, server)
            return
        self._send(push, followed, following)
        if replica.brought:
            self._fetch_ahead(replica)

    def _send(self, push: PushInFlight, followed: Collection[int], vector: np.ndarray | None) -> None:
        """Let a push leave for all servers, and fetches into a vector follow it from some of them."""
        environment, replica = self._cluster.environment, push.replica
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        for number in range(len(self._cluster.servers)):
            delivery = environment.process(self._deliver(push, number))
            replica.unapplied.append(delivery)
            if number in followed:
                assert vector is not None
                push.begun[number] = environment.event()
                replica.following[number] = environment.process(self._follow(push, number, delivery, vector))

    def _follow(self, push: PushInFlight, number: int, delivery: simpy.Process, vector: np.ndarray) -> Process:
        """Copy a shard behind a push, which its server applies chunk by chunk; see `_copy`.

        Differences are encoded when it has applied the whole push.
        """
        machines, server, replica = self._cluster.machines, self._cluster.servers[number], push.replica
        assert machines is not None
        last = math.inf
        if self._wire_fetch is None:
            size = server.shard.parameters.nbytes
            last = min(size, machines.chunk)
            yield push.begun[number]
            yield from machines.fetch(replica.number, number, size - last)
        if delivery.is_alive:
            yield delivery
        nbytes, clock = self._read(replica, server, vector), server.shard.clock
        yield from machines.fetch(replica.number, number, min(nbytes, last))
        return nbytes, clock

    def _vector_to_send(self, replica: VirtualReplica, vector: np.ndarray) -> np.ndarray:
        """Return the vector that travels: the replica's gradient, which it then gives up, or a spare one."""
        if self._cluster.machines is None and self._wire is None:
            return vector
        if self._wire is None and vector is replica.gradient:
            replica.gradient = None
            return vector
        sent = self._cluster.spares.take(vector.shape)
        if self._wire is None:
            np.copyto(sent, vector)
        return sent

    def _deliver(self, push: PushInFlight, number: int) -> Process:
        """Bring a server its part of a push and let it apply the push."""
        cluster, server = self._cluster, self._cluster.servers[number]
        size = push.nbytes * server.shard.range.size / push.vector.shape[-1]
        yield from self._occupy(push.replica, number, size, push.begun.get(number))
        self._apply(push, server)
        server.done()
        cluster.totals.last_push = cluster.clock()
        push.awaited -= 1
        if not push.awaited:
            cluster.spares.give(push.vector)

    def _occupy(self, replica: VirtualReplica, number: int, size: float, begun: simpy.Event | None = None) -> Process:
        """Bring a server `size` bytes of a replica, and let the time of its work on them pass; it is then occupied.

        `begun` occurs when it begins.
        """
        environment, machines, server = self._cluster.environment, self._cluster.machines, self._cluster.servers[number]
        assert machines is not None
        earlier, server.last[replica.number] = server.last.get(replica.number), environment.active_process
        # A server begins with the first chunk while the rest is on its way, and works on others' while it waits for it.
        # Of a gradient that has left early the first chunk is there; all its bytes take the time of the network.
        first = 0.0 if replica.early and machines.apart(replica.number, number) else min(size, machines.chunk)
        yield from machines.push(replica.number, number, first)
        rest = environment.process(machines.push(replica.number, number, size - first)) if size > first else None
        if machines.shares_cores:
            yield environment.timeout(0)  # The sender is still copying when the server wakes up.
        if earlier is not None and earlier.is_alive:
            yield earlier
        yield from server.turn()
        if begun is not None:
            begun.succeed()
        started = environment.now
        yield machines.serve(number)
        server.busy_seconds += environment.now - started
        if rest is not None and rest.is_alive:
            server.done()
            yield rest
            yield from server.turn()

    def _apply(self, push: PushInFlight, server: VirtualServer) -> None:
        started = self._cluster.clock()
        server.shard.receive_push(*server.coming.pop(push))
        server.busy_seconds += self._cluster.clock() - started
        self._look(server, self._cluster.environment.now)
        if server.shard.policy.awaited:
            self._updated.announce()

    def _look(self, server: VirtualServer, now: float) -> None:
        """Let a shard's policy act on the time, and again when that is due."""
        due = server.shard.look(now)
        if due not in (server.due, math.inf):
            self._cluster.environment.process(self._look_at(server, due))
        server.due = due

    def _look_at(self, server: VirtualServer, due: float) -> Process:
        yield self._cluster.environment.timeout(due - self._cluster.environment.now)
        # The policy's own number: the present time may be rounded.
        self._look(server, due)
        self._updated.announce()
