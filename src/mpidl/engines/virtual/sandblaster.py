"""A coordinator's operations on the shards, and the units that replicas compute for it, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.coordinator_requests import Evaluate, Evaluation, Iteration, Operate
from mpidl.algorithms.requests import Accrue, Fetch, Gradient, NextUnit, Unit
from mpidl.algorithms.units import UnitOf, minibatches, of_segments, targets, units
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual.through_servers import ThroughServers
from mpidl.engines.virtual.world import Process, Replica, Server, Signal, World
from mpidl.shards.accrual import Accrual
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.shards.vectors import Vectors


class ByOperations(ThroughServers):
    """Carries out what the coordinator and the replicas of Sandblaster ask for.

    Parameters
    ----------
    world : World
    algorithm : Algorithm
    schedule : Schedule
        Units are made of the portions of its first epoch; its end is that of the run.
    compute : callable
        Lets a gradient's time pass and computes it; the sum of its losses is then the replica's `loss`.
    on_iteration : callable
        Called with each `Iteration`; returns whether to stop.
    state : dict, optional
        What the coordinator goes on from.
    """

    def __init__(
        self,
        world: World,
        algorithm: Algorithm,
        schedule: Schedule,
        compute: Callable[[Replica, Gradient], Process],
        on_iteration: Callable[[Iteration], bool],
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(world, None)
        self._algorithm, self._portions, self._compute = algorithm, schedule.portions, compute
        self._samples = schedule.steps / schedule.steps_per_epoch * schedule.portions.samples
        self._on_iteration, self._state = on_iteration, state
        self.actions = {
            Fetch: self._fetch, Gradient: self._gradient, NextUnit: self._next_unit, Accrue: self._accrue,
        }  # fmt: skip
        self._vectors = [Vectors(server.shard.vectors) for server in world.servers]
        self._accruals = [
            Accrual(vectors, server.shard.pieces) for vectors, server in zip(self._vectors, world.servers, strict=True)
        ]
        self._changed = Signal(world.environment)
        self._units: list[UnitOf] = []
        self._waiting: Iterator[int] = iter(())
        self._copies: list[list[int]] = []
        self._single: deque[int] = deque()
        self._evaluation = self._backups = self._won = 0
        self._handed_out = self._operating = 0.0
        self._messages = 0
        self._over = False
        self._lost: list[int] = []
        self.coordinator = world.environment.process(self._coordinate())

    # The coordinator.

    def _coordinate(self) -> Process:
        coordinator = self._algorithm.coordinator(self._portions.per_epoch, self._state)
        answer: Any = None
        while True:
            try:
                request = coordinator.send(answer)
            except StopIteration:
                break
            match request:
                case Operate():
                    answer = yield from self._operate(request)
                case Evaluate():
                    answer = yield from self._evaluate(request)
                case Iteration():
                    counted = replace(request, operating=self._operating, messages=self._messages)
                    self._messages, self._operating = 0, 0.0
                    answer = self._on_iteration(counted) or request.samples >= self._samples
        self._over = True
        self._changed.announce()

    def _operate(self, request: Operate) -> Process:
        started = self._world.clock()
        results = [vectors.carry_out(request.operations) for vectors in self._vectors]
        self._messages += 2 * len(self._vectors)
        if self._world.cluster is not None:
            yield from self._world.cluster.send(0, 0)
            yield from self._world.cluster.send(0, 0)
        self._operating += self._world.clock() - started
        return [fsum(parts) for parts in zip(*results, strict=True)]

    def _evaluate(self, request: Evaluate) -> Process:
        self._evaluation += 1
        self._units = units(request.segments, self._algorithm.unit)
        self._copies = [[] for _ in self._units]
        # Those that nobody has taken a copy of, in the order in which they were handed out.
        self._single = deque(range(len(self._units)))
        self._waiting, self._backups, self._won = iter(range(len(self._units))), 0, 0
        for accrual in self._accruals:
            accrual.begin(self._evaluation, *targets(request.segments, self._units))
        self._changed.announce()
        while any(accrual.complete < len(self._units) for accrual in self._accruals):
            yield self._updated.next
        self._messages += 3 * len(self._accruals)
        return self._evaluated(request)

    def _evaluated(self, request: Evaluate) -> Evaluation:
        losses, samples = of_segments(request.segments, self._units, self._accruals[0].losses, self._portions)
        return Evaluation(
            losses, samples, sum(len(unit.portions) for unit in self._units),
            self._backups, self._won, self._world.clock() - self._handed_out,
        )  # fmt: skip

    # The replicas.

    def remove_replica(self, replica: Replica) -> Process:
        """Hand out again what a replica had taken, if it died."""
        yield from self.wait_applied(replica)
        self._lost += [unit for unit in self._outstanding() if replica.number in self._copies[unit]]
        self._changed.announce()

    def _next_unit(self, replica: Replica, request: NextUnit) -> Process:
        while not self._over:
            number = self._take(replica)
            if number is not None:
                if self._world.cluster is not None:
                    yield from self._world.cluster.send(replica.number, 0)
                self._world.begin()
                replica.loss = 0.0
                return Unit(self._evaluation, number, minibatches(self._units[number], self._portions))
            yield self._changed.next
        return None

    def _take(self, replica: Replica) -> int | None:
        """Return a unit that nobody has taken; if there is none, and backups are on, a copy of an outstanding one."""
        number = next(self._waiting, None)
        if number is not None:
            self._handed_out = self._world.clock()
        elif self._lost:
            number = self._lost.pop()
        elif self._algorithm.backups:
            number = self._take_copy(replica)
            self._backups += number is not None
        if number is not None:
            self._copies[number].append(replica.number)
        return number

    def _take_copy(self, replica: Replica) -> int | None:
        for _ in range(len(self._single)):
            unit = self._single.popleft()
            if replica.number in self._copies[unit]:
                self._single.append(unit)
            elif not all(accrual.has(unit) for accrual in self._accruals):
                return unit
        return None

    def _outstanding(self) -> list[int]:
        unfinished: set[int] = set()
        for accrual in self._accruals:
            unfinished |= set(accrual.unfinished().tolist())
        return sorted(unfinished)

    def _gradient(self, replica: Replica, request: Gradient) -> Process:
        gradient = yield from self._compute(replica, request)
        replica.pushed()
        return gradient

    def _accrue(self, replica: Replica, request: Accrue) -> Process:
        world = self._world
        world.totals.pushes += 1
        world.totals.bytes_pushed += request.vector.nbytes
        vector = world.spares.take()
        np.copyto(vector, request.vector)
        arriving, loss = [len(world.servers)], replica.loss
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        for number, server in enumerate(world.servers):
            delivery = self._deliver_unit(replica, number, server, vector, request.unit, loss, arriving)
            replica.unapplied.append(world.environment.process(delivery))
        return
        yield

    def _deliver_unit(
        self,
        replica: Replica,
        number: int,
        server: Server,
        vector: np.ndarray,
        unit: Unit,
        loss: float,
        arriving: list[int],
    ) -> Process:
        world = self._world
        part = vector[server.part]
        if world.cluster is not None:
            yield from world.cluster.send(replica.number, min(part.nbytes, CHUNK_BYTES))
            yield from server.turn()
            started = world.environment.now
            yield world.cluster.serve(number)
            server.busy_seconds += world.environment.now - started
        accrual, completed = self._accruals[number], False
        for chunk, piece in enumerate(server.shard.pieces):
            values = part[piece.start : piece.stop]
            completed |= accrual.add_chunk(unit.evaluation, unit.number, chunk, values, loss)
        if world.cluster is not None:
            server.done()
        if completed and number == 0 and self._copies[unit.number][0] != replica.number:
            self._won += 1
        world.totals.last_push = world.clock()
        arriving[0] -= 1
        if not arriving[0]:
            world.spares.give(vector)
        self._updated.announce()
