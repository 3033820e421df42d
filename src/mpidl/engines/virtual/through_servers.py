"""Fetch and push in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import simpy

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.requests import Fetch, LateBy, Push
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Action, VirtualRequestHandler, VirtualSideChannel
from mpidl.engines.virtual.server import Process
from mpidl.engines.virtual.traffic import PushInFlight, Traffic
from mpidl.shards.shard import ABSENT, outside


class Intermediary(Protocol):
    """Exchanges with the servers for several replicas; `fetched` has the clock of each shard's part that it serves."""

    fetched: list[int]

    def leaves(self, replica: int) -> None:
        """Expect no more pushes of a replica."""

    def joins(self, replica: int) -> None:
        """Expect pushes of a replica that has returned."""

    def push(self, replica: int, vector: np.ndarray, fetched: Sequence[int], batches: tuple[int, int]) -> Process:
        """Take a push, and return a process that ends when the servers have applied it."""
        ...

    def fetch(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Fetch into a replica's vector; return the shards' clocks."""
        ...


class VirtualThroughServers(VirtualRequestHandler):
    """Handles the requests of algorithms whose replicas exchange through servers, with a side channel."""

    def __init__(
        self, cluster: VirtualCluster, algorithm: Algorithm, replicas: int, channel: VirtualSideChannel | None = None
    ) -> None:
        self._cluster, self._wire, self._channel = cluster, algorithm.encoding(), channel or VirtualSideChannel()
        self._pattern = algorithm.pattern(replicas)
        # What is beside a push leaves before it, and is complete after the gradient.
        wait_free = self._pattern.pushes_gradients and not self._channel.pushes
        self._traffic = Traffic(cluster, algorithm.fetch_encoding(), wait_free, self._pattern.gives_up)
        self._channel.begin(cluster, self._traffic)
        self._intermediaries: dict[int, Intermediary] = {}
        self.actions: Mapping[type, Action] = {Fetch: self._fetch, Push: self._push}
        if (machines := cluster.machines) is not None and (between := machines.intermediaries) is not None:
            for number, served in enumerate(machines.served, machines.replicas):
                made: Intermediary = between(number, served, cluster, self._traffic, self._wire)
                self._intermediaries |= dict.fromkeys(served, made)

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Tell the servers that no more pushes of the replica follow."""
        if replica.number in self._intermediaries:
            self._intermediaries[replica.number].leaves(replica.number)
        yield from self.wait_applied(replica)
        rest = self._channel.push(replica)
        for server, load in zip(self._cluster.servers, rest, strict=False):
            if not replica.died and load.values and server.shard.side_state is not None:
                self._cluster.totals.bytes_pushed += round(load.nbytes)
                server.shard.side_state.receive(replica.number, load.values)
        for server in self._cluster.servers:
            server.shard.remove_worker(replica.number)
            self._traffic.pass_time(server, self._cluster.environment.now)
        self._traffic.updated.announce()

    def add_replica(self, replica: VirtualReplica) -> None:
        if replica.number in self._intermediaries:
            self._intermediaries[replica.number].joins(replica.number)
        for server in self._cluster.servers:
            server.shard.add_worker(replica.number)

    def wait_applied(self, replica: VirtualReplica) -> Process:
        since = self._cluster.clock()
        for delivery in replica.unapplied:
            if delivery.is_alive:
                yield delivery
        replica.unapplied.clear()
        self.waited(replica, since)

    def wait_computed(self, replica: VirtualReplica, computed: simpy.Event, late_by: LateBy) -> Process:
        if late_by is None:
            yield computed
            return True
        machines = self._cluster.machines
        while not (computed.processed or self._all_newer(replica, late_by)):
            # What ranks do together, or on cores that they share, ends as a whole.
            yield computed if machines is None or machines.together else computed | self._traffic.updated.next
        return not self._all_newer(replica, late_by)

    def _fetch(self, replica: VirtualReplica, request: Fetch) -> Process:
        cluster = self._cluster
        cluster.totals.fetches += 1
        cluster.begin()
        if self._pattern.prefetches:
            if not replica.brought:
                yield from self._take_ahead(replica, request.parameters)
                self._fetch_ahead(replica)
            replica.brought = False
            return
        yield from self.wait_applied(replica)
        while request.newer and not self._all_newer(replica):
            yield self._traffic.updated.next
        without = outside(request.parts, [server.shard.range for server in cluster.servers])
        before, kept = list(replica.fetched), [request.parameters[cluster.servers[n].part].copy() for n in without]
        replica.fetched = yield from self._bring(replica, request.parameters)
        for number, values in zip(without, kept, strict=True):
            request.parameters[cluster.servers[number].part], replica.fetched[number] = values, before[number]

    def _bring(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Fetch into a vector, behind the last push if possible; return the shards' clocks."""
        following, replica.following = replica.following, {}
        between = self._intermediaries.get(replica.number)
        return self._traffic.fetch(replica, vector, following) if between is None else between.fetch(replica, vector)

    def _take_ahead(self, replica: VirtualReplica, parameters: np.ndarray) -> Process:
        """Copy the parameters fetched ahead; the first time, fetch them now."""
        if replica.spare is None:
            replica.spare = np.empty_like(parameters)
            self._fetch_ahead(replica)
        assert replica.fetching is not None
        replica.fetched = yield replica.fetching
        np.copyto(parameters, replica.spare)

    def _fetch_ahead(self, replica: VirtualReplica) -> None:
        """Begin a fetch into the spare vector."""
        assert replica.spare is not None
        replica.fetching = self._cluster.environment.process(self._bring(replica, replica.spare))

    def _all_newer(self, replica: VirtualReplica, by: Callable[[int], int] = lambda clock: 1) -> bool:
        between, fetched = self._intermediaries.get(replica.number), replica.fetched
        clocks = [server.shard.clock for server in self._cluster.servers] if between is None else between.fetched
        return not fetched or all(clock - before >= by(before) for clock, before in zip(clocks, fetched, strict=True))

    def _push(self, replica: VirtualReplica, request: Push) -> Process:
        cluster, machines = self._cluster, self._cluster.machines
        if replica.number in self._intermediaries:
            self._push_to_intermediary(replica, request.vector)
            return
        followed, fetched = list[int](), replica.fetched
        following: np.ndarray | None = replica.parameters
        if self._pattern.fetches_next and machines is not None:
            followed = [n for n in range(len(cluster.servers)) if machines.by_messages(replica.number, n)]
            if followed and self._pattern.prefetches:
                # If the replica dies meanwhile, it has pushed nothing.
                yield from self._take_ahead(replica, replica.parameters)
                following, replica.brought = replica.spare, True
        batches = self._pushed(replica)
        vector = self._vector_to_send(replica, request.vector)
        if self._wire is None:
            nbytes = [vector[..., server.part].nbytes for server in cluster.servers]
        else:
            nbytes = replica.encode(self._wire, cluster, request.vector, vector)
        loads = self._channel.push(replica)
        sent = [own + load.nbytes for own, load in zip(nbytes, loads, strict=True)] if loads else nbytes
        cluster.totals.bytes_pushed += round(sum(sent))
        push = PushInFlight(replica, vector, len(cluster.servers), sent, side_data=loads)
        absent = outside(request.parts, [server.shard.range for server in cluster.servers])
        clocks = [ABSENT if number in absent else clock for number, clock in enumerate(fetched)]
        self._traffic.expect(push, clocks, batches)
        if machines is None:
            for server in cluster.servers:
                self._traffic.apply(push, server)
            return
        self._traffic.send(push, followed, following)
        if replica.brought:
            self._fetch_ahead(replica)

    def _push_to_intermediary(self, replica: VirtualReplica, vector: np.ndarray) -> None:
        batches = self._pushed(replica)
        taken = self._intermediaries[replica.number].push(replica.number, vector, replica.fetched, batches)
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        replica.unapplied.append(self._cluster.environment.process(taken))

    def _pushed(self, replica: VirtualReplica) -> tuple[int, int]:
        """Count a push, and return the first and the last minibatch that it was computed on."""
        self._cluster.totals.pushes += 1
        self._cluster.totals.last_push = self._cluster.clock()
        batches = replica.unpushed.batches
        replica.unpushed.pushed()
        return batches

    def _vector_to_send(self, replica: VirtualReplica, vector: np.ndarray) -> np.ndarray:
        """Return the vector to send: the replica's gradient, which it then gives up, or a spare one."""
        if self._cluster.machines is None and self._wire is None:
            return vector
        if self._wire is None and vector is replica.gradient:
            replica.gradient = None
            return vector
        sent = self._cluster.spares.take(vector.shape)
        if self._wire is None:
            np.copyto(sent, vector)
        return sent
