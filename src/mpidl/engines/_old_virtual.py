"""Carries out the requests of any number of replicas in one process, in seeded virtual time.

The arithmetic is real, only time is not: with the same seed a run is the same to the last bit. It is the oracle for
tests, and with one replica and no durations it is the serial baseline, a world of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.requests import Clock, Fetch, Gradient, NextBatch, Push, Request, WaitForEpoch
from mpidl.data.dataset import Split
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.engines.times import Times
from mpidl.nn.model import Model
from mpidl.shard import Shard
from mpidl.totals import Totals

Process = Generator[simpy.Event, Any, Any]


class _Server:
    """A shard, and the queue before it."""

    def __init__(self, environment: simpy.Environment, shard: Shard, random: np.random.Generator) -> None:
        self.shard, self.random = shard, random
        self.queue = simpy.Resource(environment, capacity=1)
        self.busy_seconds = 0.0


class _Replica:
    """What belongs to one replica."""

    def __init__(self, number: int, parameters: np.ndarray, loader: Loader, random: np.random.Generator) -> None:
        self.number, self.parameters, self.loader, self.random = number, parameters, loader, random
        self.fetched: list[int] = []
        self.gradient: np.ndarray | None = None
        self.spare: np.ndarray | None = None
        self.spare_fetched: list[int] = []
        self.fetching: simpy.Event | None = None
        self.unapplied: list[simpy.Process] = []
        self.clock: float = 0


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
        Together they hold the whole parameter vector, each as one chunk.
    replicas : int
    seed : int
        Decides every duration.
    times : Times, optional
        None: nothing takes time, and requests are carried out at once, in turn.
    clock : callable, optional
        Returns the time in seconds for the totals; by default virtual time.
    on_epoch : callable, optional
        Called with an epoch's number (from 1) when the first portion beyond it is taken.
    on_batch : callable, optional
        Called before each batch.
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
        on_epoch: Callable[[int], None] = lambda epoch: None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._split, self._schedule = model, split, schedule
        self._times, self._on_batch = times, on_batch
        self._environment = simpy.Environment()
        self._clock = clock or (lambda: float(self._environment.now))
        self._tickets = 0
        self._taken = self._environment.event()
        self._advanced = self._environment.event()
        streams = np.random.default_rng(seed).spawn(replicas + len(shards))
        self._servers = [_Server(self._environment, shard, streams.pop()) for shard in shards]
        self.totals = Totals(0.0)
        self._replicas = []
        for number in range(replicas):
            loader = Loader(schedule, split, self._take, on_epoch)
            own = model.parameters if replicas == 1 else np.empty_like(model.parameters)
            self._collect(own)
            self._replicas.append(_Replica(number, own, loader, streams.pop()))
            self._environment.process(self._run(self._replicas[-1], algorithm))
        self._actions: dict[type, Callable[[_Replica, Any], Process]] = {
            Fetch: self._fetch,
            Gradient: self._gradient,
            Push: self._push,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
        }

    @property
    def tickets(self) -> int:
        """Portions taken so far."""
        return min(self._tickets, self._schedule.tickets)

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the portions taken but not used up, each with the number of its batches that are done."""
        return sorted(pair for replica in self._replicas for pair in replica.loader.unfinished())

    def stop(self) -> None:
        """Let every replica end after the batch in work."""
        for replica in self._replicas:
            replica.loader.stop()

    def run(self) -> Totals:
        """Run all replicas to their end and return the totals."""
        self._environment.run()
        for server in self._servers:
            server.shard.finish()
        return self.look()

    def look(self) -> Totals:
        """Return the totals so far."""
        return replace(
            self.totals,
            now=self._clock(),
            busy_seconds=[server.busy_seconds for server in self._servers],
            staleness=np.sum([server.shard.staleness.counts for server in self._servers], axis=0),
            staleness_sum=sum(server.shard.staleness.sum for server in self._servers),
            staleness_max=max(server.shard.staleness.max for server in self._servers),
        )

    def parameters(self) -> np.ndarray:
        """Return a copy of what the shards hold, as one vector."""
        vector = np.empty_like(self._model.parameters)
        self._collect(vector)
        return vector

    def _collect(self, vector: np.ndarray) -> None:
        for server in self._servers:
            vector[server.shard.range.start : server.shard.range.stop] = server.shard.parameters

    def _take(self) -> int:
        self._tickets += 1
        self._taken.succeed()
        self._taken = self._environment.event()
        return self._tickets - 1

    def _run(self, replica: _Replica, algorithm: Algorithm) -> Process:
        generator = algorithm.replica(replica.number, replica.parameters, len(self._replicas))
        answer: Any = None
        # A process begins at its first event, so that all replicas exist before the first of them runs.
        yield self._environment.timeout(0)
        while True:
            try:
                request: Request = generator.send(answer)
            except StopIteration:
                break
            if isinstance(request, NextBatch):
                self._on_batch()
                answer = replica.loader.next()
            else:
                answer = yield from self._actions[type(request)](replica, request)
        self._advance_clock(replica, math.inf)

    def _fetch(self, replica: _Replica, request: Fetch) -> Process:
        self.totals.fetches += 1
        self.totals.bytes_fetched += request.parameters.nbytes
        self.totals.first_fetch = self.totals.first_fetch or self._clock()
        if not request.ahead:
            yield from self._wait_until_applied(replica)
            replica.fetched = yield from self._bring(replica, request.parameters)
            return
        if replica.spare is None:
            replica.spare = np.empty_like(request.parameters)
            replica.fetching = self._environment.process(self._bring(replica, replica.spare))
        assert replica.fetching is not None
        replica.fetched = yield replica.fetching
        np.copyto(request.parameters, replica.spare)
        replica.fetching = self._environment.process(self._bring(replica, replica.spare))

    def _bring(self, replica: _Replica, vector: np.ndarray) -> Process:
        """Copy the shards into a vector, each at the moment its own answer leaves; return their clocks."""
        if self._times is None:
            self._collect(vector)
            return [server.shard.clock for server in self._servers]
        copies = [self._environment.process(self._copy(replica, server, vector)) for server in self._servers]
        yield self._environment.all_of(copies)
        return [copy.value for copy in copies]

    def _copy(self, replica: _Replica, server: _Server, vector: np.ndarray) -> Process:
        yield self._link(replica, 0)
        part = server.shard.range
        vector[part.start : part.stop] = server.shard.parameters
        clock = server.shard.clock
        yield self._link(replica, server.shard.parameters.nbytes)
        return clock

    def _link(self, replica: _Replica, size: int) -> simpy.Event:
        """Return the event of a message of `size` bytes having arrived."""
        assert self._times is not None
        return self._environment.timeout(self._times.latency(replica.random) + size / self._times.bandwidth)

    def _gradient(self, replica: _Replica, request: Gradient) -> Process:
        if self._times is not None:
            yield self._environment.timeout(self._times.compute(replica.random))
        batch = self._split.gather(request.batch)
        if request.parameters is not self._model.parameters:
            np.copyto(self._model.parameters, request.parameters)
        loss, gradient = self._model.loss_and_gradient(batch)
        samples = len(request.batch)
        self.totals.samples += samples
        self.totals.batches += 1
        self.totals.loss += float(loss) * samples
        if len(self._replicas) == 1:
            return gradient
        # The model's buffer belongs to whichever replica computes next.
        if replica.gradient is None:
            replica.gradient = np.empty_like(gradient)
        np.copyto(replica.gradient, gradient)
        return replica.gradient

    def _push(self, replica: _Replica, request: Push) -> Process:
        self.totals.pushes += 1
        self.totals.bytes_pushed += request.vector.nbytes
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        for server, fetched in zip(self._servers, replica.fetched, strict=True):
            part = server.shard.range
            values = request.vector[part.start : part.stop]
            if self._times is None:
                self._apply(replica, server, values, fetched)
            else:
                delivery = self._deliver(replica, server, values.copy(), fetched)
                replica.unapplied.append(self._environment.process(delivery))
        self.totals.last_push = self._clock()
        return
        yield

    def _deliver(self, replica: _Replica, server: _Server, values: np.ndarray, fetched: int) -> Process:
        assert self._times is not None
        yield self._link(replica, values.nbytes)
        with server.queue.request() as turn:
            yield turn
            service = self._times.service(server.random)
            yield self._environment.timeout(service)
            server.busy_seconds += service
            self._apply(replica, server, values, fetched)
        self.totals.last_push = self._clock()

    def _apply(self, replica: _Replica, server: _Server, values: np.ndarray, fetched: int) -> None:
        started = self._clock()
        server.shard.receive(replica.number, 0, fetched, values)
        server.busy_seconds += self._clock() - started

    def _wait_for_epoch(self, replica: _Replica, request: WaitForEpoch) -> Process:
        wanted = self._schedule.tickets_before(request.epoch)
        while self._tickets < wanted:
            yield self._taken

    def _wait_for_clock(self, replica: _Replica, request: Clock) -> Process:
        yield from self._wait_until_applied(replica)
        self._advance_clock(replica, replica.clock + 1)
        while min(other.clock for other in self._replicas) < replica.clock - request.bound:
            yield self._advanced

    def _advance_clock(self, replica: _Replica, clock: float) -> None:
        replica.clock = clock
        self._advanced.succeed()
        self._advanced = self._environment.event()

    def _wait_until_applied(self, replica: _Replica) -> Process:
        if replica.unapplied:
            yield self._environment.all_of(replica.unapplied)
            replica.unapplied.clear()
