"""Traffic between the servers of the virtual cluster and the replicas and intermediaries that exchange with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from mpidl.engines.virtual.cluster import Exchanger, VirtualCluster
from mpidl.engines.virtual.server import ArrivingPush, Load, Process, Signal, VirtualServer
from mpidl.wire import Wire


@dataclass(slots=True, eq=False)
class InFlight:
    """A vector on its way from its sender to all servers.

    It has shape (size,) or (2, size), and is returned to the spare ones when no server needs it any more; `awaited` is
    the number of servers that still do. `begun` has the events that occur when a server, by number, begins to apply it.
    """

    sender: Exchanger
    vector: np.ndarray
    awaited: int
    begun: dict[int, simpy.Event] = field(default_factory=dict, kw_only=True)


@dataclass(slots=True, eq=False)
class PushInFlight(InFlight):
    """A push on its way to all servers, with the bytes that each gets, and what these have beside its vector."""

    nbytes: Sequence[float]
    side_data: Sequence[Load] = field(default=(), kw_only=True)


class Traffic:
    """Carries pushes to the servers, and fetches back, encoded by `wire_fetch`, if any.

    With `wait_free`, replicas send finished parts of a gradient while they compute the rest. `updated` is announced
    when a shard has changed; unless it is `watched`, not by pushes that are applied at once.
    """

    def __init__(
        self, cluster: VirtualCluster, wire_fetch: Wire | None, wait_free: bool = False, watched: bool = False
    ) -> None:
        self._cluster, self.wire_fetch, self._wait_free, self._watched = cluster, wire_fetch, wait_free, watched
        self.updated = Signal(cluster.environment)

    def fetch(
        self, exchanger: Exchanger, vector: np.ndarray, following: Mapping[int, simpy.Process] | None = None
    ) -> Process:
        """Copy all shards into a vector, each when its own answer leaves; return their clocks.

        `following` has the fetches that are already under way behind a push, by server.
        """
        if self._cluster.machines is None:
            for number in range(len(self._cluster.servers)):
                self._cluster.totals.bytes_fetched += self._read(exchanger, number, vector)
            return [server.shard.clock for server in self._cluster.servers]
        environment, servers, under_way = self._cluster.environment, range(len(self._cluster.servers)), following or {}
        others = [
            under_way.get(number) or environment.process(self._copy(exchanger, number, vector))
            for number in servers[1:]
        ]
        first = (yield under_way[0]) if 0 in under_way else (yield from self._copy(exchanger, 0, vector))
        if others:
            yield environment.all_of(others)
        copies = [first, *(each.value for each in others)]
        self._cluster.totals.bytes_fetched += sum(nbytes for nbytes, _ in copies)
        return [clock for _, clock in copies]

    def _copy(self, exchanger: Exchanger, number: int, vector: np.ndarray) -> Process:
        """Copy a shard into a vector; return the number of bytes, and the shard's clock."""
        machines, server = self._cluster.machines, self._cluster.servers[number]
        assert machines is not None
        yield from machines.tell(exchanger.number)
        nbytes, clock = self._read(exchanger, number, vector), server.shard.clock
        yield from machines.fetch(exchanger.number, number, nbytes)
        return nbytes, clock

    def _read(self, exchanger: Exchanger, number: int, vector: np.ndarray) -> int:
        """Read a shard's current parameters into a vector, and return the number of bytes sent."""
        server = self._cluster.servers[number]
        parameters = server.shard.parameters
        nbytes: int = parameters.nbytes
        if self.wire_fetch is not None and self._cluster.encodes(exchanger.number, number):
            copy = exchanger.encodings.copies[number]
            nbytes = copy.fetch(parameters)
            parameters = copy.values
        if not np.may_share_memory(vector, parameters):
            vector[server.part] = parameters
        return nbytes

    def expect(self, push: PushInFlight, fetched: Sequence[int], batches: tuple[int, int]) -> None:
        """Announce a push to the servers, with the clock of each at which it was computed."""
        sender, vector = push.sender.number, push.vector
        loads = [each.values for each in push.side_data] or [None] * len(fetched)
        for server, clock, side_data in zip(self._cluster.servers, fetched, loads, strict=True):
            server.coming[push] = ArrivingPush(sender, clock, vector[..., server.part], batches, side_data)

    def send(self, push: PushInFlight, followed: Collection[int] = (), vector: np.ndarray | None = None) -> None:
        """Send a push to all servers, `followed` by fetches into a vector from some of them."""
        environment, sender = self._cluster.environment, push.sender
        sender.unapplied = [delivery for delivery in sender.unapplied if delivery.is_alive]
        for number in range(len(self._cluster.servers)):
            delivery = environment.process(self._deliver(push, number))
            sender.unapplied.append(delivery)
            if number in followed:
                assert vector is not None
                push.begun[number] = environment.event()
                sender.following[number] = environment.process(self._follow(push, number, delivery, vector))

    def _follow(self, push: PushInFlight, number: int, delivery: simpy.Process, vector: np.ndarray) -> Process:
        """Copy a shard as `_copy` does, right behind a push that its server applies chunk by chunk.

        Differences are encoded only after the whole push.
        """
        machines, server, sender = self._cluster.machines, self._cluster.servers[number], push.sender
        assert machines is not None
        last = math.inf
        if self.wire_fetch is None:
            size = server.shard.parameters.nbytes
            last = min(size, machines.chunk)
            yield push.begun[number]
            yield from machines.fetch(sender.number, number, size - last)
        if delivery.is_alive:
            yield delivery
        nbytes, clock = self._read(sender, number, vector), server.shard.clock
        yield from machines.fetch(sender.number, number, min(nbytes, last))
        return nbytes, clock

    def _deliver(self, push: PushInFlight, number: int) -> Process:
        """Carry a server's part of a push to it, and apply it."""
        cluster, server, machines = self._cluster, self._cluster.servers[number], self._cluster.machines
        assert machines is not None
        work = partial(machines.serve, number, push.side_data[number].seconds if push.side_data else 0.0)
        worked = yield from self.occupy(push.sender, number, push.nbytes[number], work, push.begun.get(number))
        self.apply(push, server, worked)
        server.done()
        cluster.totals.last_push = cluster.clock()
        push.awaited -= 1
        if not push.awaited:
            cluster.spares.give(push.vector)

    def occupy(
        self,
        exchanger: Exchanger,
        number: int,
        size: float,
        work: Callable[[], simpy.Event],
        begun: simpy.Event | None = None,
    ) -> Process:
        """Carry `size` bytes to a server, and wait for its `work` on them; it is then occupied.

        Return the times at which that began and ended, in seconds of the cluster's clock. `begun` occurs at the
        beginning of the work.
        """
        cluster, environment, machines = self._cluster, self._cluster.environment, self._cluster.machines
        assert machines is not None
        server = cluster.servers[number]
        earlier, server.last[exchanger.number] = server.last.get(exchanger.number), environment.active_process
        # A server begins with the first chunk while the rest is on its way, and serves others while it waits for it.
        # The first chunk of a wait-free push has already arrived, though all its bytes take the time of the network.
        there = self._wait_free and exchanger.number < machines.replicas and machines.apart(exchanger.number, number)
        first = 0.0 if there else min(size, machines.chunk)
        yield from machines.push(exchanger.number, number, first)
        rest = environment.process(machines.push(exchanger.number, number, size - first)) if size > first else None
        if machines.cores is not None:
            yield environment.timeout(0)  # the sender is still copying when the server wakes up
        if earlier is not None and earlier.is_alive:
            yield earlier
        yield from server.turn()
        if begun is not None:
            begun.succeed()
        started, at = environment.now, cluster.clock()
        yield work()
        server.busy_seconds += environment.now - started
        worked = at, cluster.clock()
        if rest is not None and rest.is_alive:
            server.done()
            yield rest
            yield from server.turn()
        return worked

    def apply(self, push: PushInFlight, server: VirtualServer, worked: tuple[float, float] | None = None) -> None:
        """Apply a push that has arrived at a server, which has worked for it between two times."""
        started, before, (sender, fetched, *_) = self._cluster.clock(), server.shard.clock, server.coming[push]
        server.coming.pop(push).receive(server.shard)
        ended = self._cluster.clock()
        server.busy_seconds += ended - started
        self._cluster.on_applied(server.shard, sender, fetched, before, *(worked or (started, ended)))
        self.pass_time(server, self._cluster.environment.now)
        if self._watched or server.shard.policy.awaited:
            self.updated.announce()

    def pass_time(self, server: VirtualServer, now: float) -> None:
        """Let a shard's policy handle the passage of time, now and whenever it is due again."""
        due = server.shard.pass_time(now)
        if due not in (server.due, math.inf):
            self._cluster.environment.process(self._pass_time_at(server, due))
        server.due = due

    def _pass_time_at(self, server: VirtualServer, due: float) -> Process:
        yield self._cluster.environment.timeout(due - self._cluster.environment.now)
        # Use the policy's own number, because the current time may be rounded.
        self.pass_time(server, due)
        self.updated.announce()
