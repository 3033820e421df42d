"""Carries out the requests of any number of replicas in one process, in seeded virtual time.

The arithmetic is real, only time is not: with the same seed a run is the same to the last bit. It is the oracle for
tests, it predicts what a cluster does, and with one replica and no durations it is the serial baseline, a world of one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from mpidl import wire
from mpidl.algorithms.algorithm import Algorithm, Exchange
from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.algorithms.requests import Clock, Gradient, NextBatch, NextUnit, Request, WaitForEpoch
from mpidl.algorithms.steps import Steps
from mpidl.data.dataset import Split
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.engines.times import Death, Times
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.by_reduction import ByReduction
from mpidl.engines.virtual.cluster import Cluster
from mpidl.engines.virtual.in_memory import InMemory
from mpidl.engines.virtual.sandblaster import ByOperations
from mpidl.engines.virtual.through_servers import ThroughServers
from mpidl.engines.virtual.world import Process, Replica, Server, Signal, World
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.shards.shard import Shard


class VirtualEngine:
    """A cluster in one process.

    Parameters
    ----------
    algorithm : Algorithm
    model : Model
        Shared by all replicas: its parameters are set before each gradient.
    split : Split
        The training data.
    schedule : Schedule
    shards : list of Shard
        Together they hold the whole parameter vector; a single one where replicas share memory.
    replicas : int
    seed : int
        Decides every duration.
    times : Times, optional
        None: nothing takes time, and requests are carried out at once; for one replica.
    clock : callable, optional
        Returns the time in seconds for the totals; virtual time after `start` by default.
    start : float
        When virtual time begins, in seconds.
    rate_at, sparing
        Of the replicas' own steps; see `Steps`.
    on_epoch : callable, optional
        Called with an epoch's number (from 1) when the first portion beyond it is taken.
    on_batch : callable, optional
        Called before each batch.
    on_event : callable, optional
        Called as (kind, replica, **details) when a replica dies ("failure") or returns ("recovery").
    on_iteration : callable, optional
        Called with each iteration of a coordinator; returns whether to stop.
    state : dict, optional
        What a coordinator goes on from.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        split: Split,
        schedule: Schedule,
        shards: list[Shard],
        replicas: int,
        seed: int = 0,
        times: Times | None = None,
        clock: Callable[[], float] | None = None,
        start: float = 0.0,
        rate_at: Callable[[int], float] = lambda portion: 1.0,
        sparing: Sequence[Range] = (),
        on_epoch: Callable[[int], None] = lambda epoch: None,
        on_batch: Callable[[], None] = lambda: None,
        on_event: Callable[..., None] = lambda kind, replica, **details: None,
        on_iteration: Callable[[Iteration], bool] = lambda iteration: False,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._on_iteration, self._state = on_iteration, state
        self._algorithm, self._model, self._split, self._schedule = algorithm, model, split, schedule
        self._rate_at, self._sparing = rate_at, sparing
        self._on_epoch, self._on_batch, self._on_event = on_epoch, on_batch, on_event
        environment = self._environment = simpy.Environment()
        cluster = Cluster(environment, times, seed, replicas, len(shards)) if times is not None else None
        servers = [Server(environment, shard) for shard in shards]
        clock = clock or (lambda: start + float(environment.now))
        self._world = World(environment, cluster, servers, model.parameters, clock)
        self._tickets = 0
        self._given_back: deque[int] = deque()
        self._epochs: set[int] = set()
        self._taken, self._advanced = Signal(environment), Signal(environment)
        self._exchange = self._make_exchange()
        self._actions: dict[type, Callable[[Replica, Any], Process]] = {
            Gradient: self._gradient,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
            **self._exchange.actions,
        }
        self._vectors = self._allocate(replicas)
        for number in range(replicas):
            replica = Replica(number, self._vector(number), self._loader())
            self._world.replicas.append(replica)
            replica.process = environment.process(self._live(replica))
        for death in times.deaths if times is not None else ():
            environment.process(self._die(self._world.replicas[death.replica], death))

    def _make_exchange(self) -> ThroughServers | ByReduction | InMemory:
        if self._algorithm.exchange is Exchange.REDUCTION:
            return ByReduction(self._world)
        if self._algorithm.exchange is Exchange.SHARED_MEMORY:
            return InMemory(self._world, self._gradient)
        if self._algorithm.coordinated:
            return ByOperations(
                self._world, self._algorithm, self._schedule, self._gradient, self._on_iteration, self._state
            )
        return ThroughServers(self._world, wire.parse(self._algorithm.wire))

    def _allocate(self, replicas: int) -> list[np.ndarray]:
        """Return a vector of parameters for each replica."""
        own = self._model.parameters
        if self._algorithm.exchange is Exchange.SHARED_MEMORY:
            return [self._world.servers[0].shard.parameters] * replicas
        if replicas == 1:
            return [own]
        # One block, which the kernel backs with large pages, of rows that begin on cache lines.
        block = np.empty((replicas, -(-own.size // 16) * 16), own.dtype)
        return [row[: own.size] for row in block]

    def _vector(self, number: int) -> np.ndarray:
        """Return a new replica's parameters; without servers to fetch them from, as they are now."""
        vector = self._vectors[number]
        if self._algorithm.exchange is Exchange.REDUCTION:
            self._world.collect(vector)
        return vector

    def _loader(self) -> Loader:
        alone = self._world.cluster is None
        return Loader(self._schedule, self._split, self._take, self._announce_epoch, prepare=alone)

    @property
    def totals(self) -> Totals:
        """The running totals, without what the shards count."""
        return self._world.totals

    @property
    def replicas(self) -> list[Replica]:
        """All replicas, those that have ended included."""
        return self._world.replicas

    @property
    def now(self) -> float:
        """The time in seconds."""
        return self._world.clock()

    @property
    def tickets(self) -> int:
        """Portions taken so far."""
        return min(self._tickets, self._schedule.tickets)

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the portions taken but not used up, each with the number of its batches that are done."""
        rest = [pair for replica in self.replicas for pair in replica.loader.unfinished()]
        waiting = [self._schedule.assignment(ticket) for ticket in self._given_back]
        return sorted(rest + [(part.portion, part.first) for part in waiting if part is not None])

    def stop(self) -> None:
        """Let every replica end after the batch in work."""
        for replica in self.replicas:
            replica.loader.stop()

    def run(self) -> Totals:
        """Run all replicas to their end and return the totals."""
        own = self._model.parameters
        self._environment.run()
        self._model.parameters = own
        for server in self._world.servers:
            server.shard.apply_rest()
        return self.look()

    def look(self) -> Totals:
        """Return the totals so far."""
        servers = self._world.servers
        staleness = [server.shard.staleness for server in servers]
        return replace(
            self.totals,
            now=self._world.clock(),
            busy_seconds=[server.busy_seconds for server in servers],
            staleness=np.sum([histogram.counts for histogram in staleness], axis=0),
            staleness_sum=sum(histogram.sum for histogram in staleness),
            staleness_max=max(histogram.max for histogram in staleness),
            dropped=sum(server.shard.dropped for server in servers),
        )

    def parameters(self) -> np.ndarray:
        """Return a copy of what the shards hold, as one vector."""
        vector = np.empty_like(self._model.parameters)
        self._world.collect(vector)
        return vector

    def _take(self) -> int:
        if self._given_back:
            return self._given_back.popleft()
        self._tickets += 1
        self._taken.announce()
        return self._tickets - 1

    def _announce_epoch(self, epoch: int) -> None:
        if epoch not in self._epochs:
            self._epochs.add(epoch)
            self._on_epoch(epoch)

    # The life of a replica.

    def _live(self, replica: Replica) -> Process:
        try:
            # A process begins at its first event, so that all replicas exist before the first of them runs.
            yield self._environment.timeout(0)
            yield from self._follow(replica)
        except simpy.Interrupt:
            self._give_back(replica)
        replica.active = False
        self._advance_clock(replica, math.inf)
        yield from self._exchange.remove_replica(replica)

    def _follow(self, replica: Replica) -> Process:
        steps = Steps(self._rate_at, self._sparing)
        generator = self._algorithm.replica(replica.number, replica.parameters, len(self.replicas), steps)
        answer: Any = None
        while True:
            try:
                request: Request = generator.send(answer)
            except StopIteration:
                return
            if isinstance(request, NextBatch | NextUnit):
                self._on_batch()
            if isinstance(request, NextBatch):
                answer = replica.next_batch()
                if replica.loader.current is not None:
                    steps.portion = replica.loader.current.portion
            else:
                answer = yield from self._actions[type(request)](replica, request)

    def _die(self, replica: Replica, death: Death) -> Process:
        yield self._environment.timeout(death.at)
        if not replica.active:
            return
        replica.process.interrupt()
        if death.returns is None:
            return
        yield self._environment.timeout(death.returns - death.at)
        self._on_event("recovery", replica.number)
        others = [other.clock for other in self.replicas if other.active]
        anew = Replica(replica.number, self._vector(replica.number), self._loader())
        anew.clock = min(others, default=0)
        self.replicas[replica.number] = anew
        anew.process = self._environment.process(self._live(anew))

    def _give_back(self, replica: Replica) -> None:
        """Hand out again what a dead replica had taken and not pushed."""
        again = replica.taken()
        self._given_back.extend(map(self._schedule.give_back, again))
        self._on_event("failure", replica.number, portions=sorted({part.portion for part in again}))
        replica.loader = self._loader()

    # What needs no servers.

    def _gradient(self, replica: Replica, request: Gradient) -> Process:
        world, samples = self._world, len(request.batch.indices)
        if world.cluster is not None:
            # Computed when its time has passed: few gradients are then alive at once, and they stay in cache.
            yield world.cluster.compute(replica.number)
        batch = self._split.take(request.batch)
        # The model computes with the replica's vector itself.
        if request.parameters is not self._model.parameters:
            self._model.parameters = request.parameters
        loss, gradient = self._model.loss_and_gradient(batch)
        if world.cluster is not None:
            # The model's buffer belongs to whichever replica computes next.
            if replica.gradient is None:
                replica.gradient = world.spares.take()
            np.copyto(replica.gradient, gradient)
            gradient = replica.gradient
        world.totals.samples += samples
        world.totals.batches += 1
        world.totals.loss += float(loss) * samples
        replica.loss += float(loss) * samples
        return gradient

    def _wait_for_epoch(self, replica: Replica, request: WaitForEpoch) -> Process:
        wanted = self._schedule.tickets_before(request.epoch)
        while self._tickets < wanted:
            yield self._taken.next

    def _wait_for_clock(self, replica: Replica, request: Clock) -> Process:
        yield from self._exchange.wait_applied(replica)
        self._advance_clock(replica, replica.clock + 1)
        while min(other.clock for other in self.replicas) < replica.clock - request.bound:
            yield self._advanced.next

    def _advance_clock(self, replica: Replica, clock: float) -> None:
        replica.clock = clock
        self._advanced.announce()
