"""Sandblaster in virtual time: the coordinator's operations on the shards, and the units that replicas compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from mpidl.algorithms.coordination import (
    Coordinated,
    Evaluate,
    Iteration,
    Operate,
    UnitData,
    cut_units,
    evaluated,
    minibatches,
    targets,
)
from mpidl.algorithms.requests import Accrue, Fetch, NextUnit, Unit, drive
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Hooks, Training
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.server import Process, Signal, VirtualServer
from mpidl.engines.virtual.through_servers import VirtualThroughServers
from mpidl.engines.virtual.traffic import InFlight
from mpidl.shards.matrix import nbytes
from mpidl.shards.vectors import Accrual, Vectors, merged


@dataclass(slots=True)
class UnitInFlight(InFlight):
    """The gradient of a unit on its way to the servers, with the sums of its batches' weighted losses and weights."""

    unit: Unit
    loss: float
    weight: float


class VirtualSandblaster(VirtualThroughServers):
    """Handles the requests of a coordinator and of the replicas that compute for it.

    Units consist of the portions of the schedule's first epoch; the run ends with the schedule. The coordinator resumes
    from `state`, that of an earlier `Iteration`, by which `accrued` samples had been accrued.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        training: Training,
        hooks: Hooks,
        state: dict[str, Any] | None = None,
        accrued: int = 0,
    ) -> None:
        super().__init__(cluster, training.algorithm, replicas=1)
        assert isinstance(training.algorithm, Coordinated)
        self._algorithm, self._hooks, self._state = training.algorithm, hooks, state
        self._accrued, self._layout = accrued, training.layout
        schedule, self._portions = training.schedule, training.schedule.portions
        self._samples = schedule.samples_in_all
        self.actions = {Fetch: self._fetch, NextUnit: self._next_unit, Accrue: self._accrue}
        self._vectors = [Vectors(server.shard.vectors, start=server.shard.range.start) for server in cluster.servers]
        self._accruals = [
            Accrual(vectors, server.shard.pieces)
            for vectors, server in zip(self._vectors, cluster.servers, strict=True)
        ]
        self._changed = Signal(cluster.environment)
        self._units: list[UnitData] = []
        self._waiting: Iterator[int] = iter(())
        self._takers: list[list[int]] = []  # for each unit, the replicas that have taken it
        self._single: deque[int] = deque()  # units without a backup, in the order of their assignment
        self._lost: list[int] = []  # units of replicas that died
        self._evaluation = self._task = self._backups = self._won = 0
        self._handed_out = self._operating = 0.0
        self._messages = 0
        self._over = False
        cluster.environment.process(self._coordinate())

    # The coordinator.

    def _coordinate(self) -> Process:
        layout, samples = self._layout, self._samples
        coordinator = self._algorithm.coordinator(self._portions.per_epoch, self._state, layout, samples)
        actions: dict[type, Callable[[Any], Process]] = {
            Operate: self._operate, Evaluate: self._evaluate, Iteration: self._iterate,
        }  # fmt: skip
        yield from drive(coordinator, actions)
        self._over = True
        self._changed.announce()

    def _operate(self, request: Operate) -> Process:
        started = self._cluster.clock()
        results = [vectors.carry_out(request.operations) for vectors in self._vectors]
        self._messages += 2 * len(self._vectors)
        if (machines := self._cluster.machines) is not None:
            yield from self._carry(machines, machines.push, [sum(map(nbytes, request.operations))] * len(results))
            yield from self._carry(machines, machines.fetch, [sum(map(nbytes, each)) for each in results])
        self._operating += self._cluster.clock() - started
        return merged(results)

    def _carry(self, machines: Machines, way: Callable[[int, int, float], Process], sizes: Sequence[int]) -> Process:
        """Send messages with vectors of `sizes` bytes between each server and the coordinator, near replica 0."""
        if not any(sizes):
            yield from machines.tell(0)
            return
        environment = self._cluster.environment
        yield environment.all_of([environment.process(way(0, server, size)) for server, size in enumerate(sizes)])

    def _evaluate(self, request: Evaluate) -> Process:
        self._evaluation += 1
        self._task = request.task
        self._units = cut_units(request.segments, self._algorithm.unit)
        self._takers = [[] for _ in self._units]
        self._single = deque(range(len(self._units)))
        self._waiting, self._backups, self._won = iter(range(len(self._units))), 0, 0
        for accrual in self._accruals:
            accrual.begin(self._evaluation, *targets(request.segments, self._units))
        self._changed.announce()
        while any(accrual.complete < len(self._units) for accrual in self._accruals):
            yield self._traffic.updated.next
        self._messages += 3 * len(self._accruals)
        first = self._accruals[0]
        return evaluated(
            request.segments, self._units, first.losses, first.weights, self._portions,
            self._backups, self._won, self._cluster.clock() - self._handed_out,
        )  # fmt: skip

    def _iterate(self, request: Iteration) -> Process:
        yield from ()
        samples = self._accrued + request.samples
        counted = replace(request, samples=samples, operating=self._operating, messages=self._messages)
        self._messages, self._operating = 0, 0.0
        return self._hooks.on_iteration(counted) or samples >= self._samples

    # The replicas.

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Assign the units of a replica that died to others."""
        yield from self.wait_applied(replica)
        self._lost += [unit for unit in self._outstanding() if replica.number in self._takers[unit]]
        self._changed.announce()

    def _next_unit(self, replica: VirtualReplica, request: NextUnit) -> Process:
        self._hooks.on_batch()
        while not self._over:
            number = self._take(replica)
            if number is not None:
                if self._cluster.machines is not None:
                    yield from self._cluster.machines.tell(replica.number)
                self._cluster.begin()
                replica.loss = replica.weight = 0.0
                return Unit(self._evaluation, number, minibatches(self._units[number], self._portions), self._task)
            yield self._changed.next
        return None

    def _take(self, replica: VirtualReplica) -> int | None:
        """Return a unit that hasn't been taken or, if there is none, one of a dead replica or a backup."""
        number = next(self._waiting, None)
        if number is not None:
            self._handed_out = self._cluster.clock()
        elif self._lost:
            number = self._lost.pop()
        elif self._algorithm.backups:
            number = self._take_backup(replica)
            self._backups += number is not None
        if number is not None:
            self._takers[number].append(replica.number)
        return number

    def _take_backup(self, replica: VirtualReplica) -> int | None:
        """Return an outstanding unit of another replica without a backup, if there is one."""
        for _ in range(len(self._single)):
            unit = self._single.popleft()
            if replica.number in self._takers[unit]:
                self._single.append(unit)
            elif not all(accrual.has(unit) for accrual in self._accruals):
                return unit
        return None

    def _outstanding(self) -> list[int]:
        unfinished: set[int] = set()
        for accrual in self._accruals:
            unfinished |= set(accrual.unfinished().tolist())
        return sorted(unfinished)

    def _accrue(self, replica: VirtualReplica, request: Accrue) -> Process:
        yield from ()
        cluster = self._cluster
        cluster.totals.pushes += 1
        cluster.totals.bytes_pushed += request.vector.nbytes
        vector = cluster.spares.take(request.vector.shape)
        np.copyto(vector, request.vector)
        push = UnitInFlight(replica, vector, len(cluster.servers), request.unit, replica.loss, replica.weight)
        replica.unapplied = [delivery for delivery in replica.unapplied if delivery.is_alive]
        for number, server in enumerate(cluster.servers):
            replica.unapplied.append(cluster.environment.process(self._deliver_unit(push, number, server)))

    def _deliver_unit(self, push: UnitInFlight, number: int, server: VirtualServer) -> Process:
        """Carry a server's part of a unit's gradient to it, and accrue the part."""
        cluster, unit, part = self._cluster, push.unit, push.vector[server.part]
        if cluster.machines is not None:
            work = partial(cluster.machines.serve, number)
            yield from self._traffic.occupy(push.sender, number, part.nbytes, work)
        accrual, completed = self._accruals[number], False
        for chunk, piece in enumerate(server.shard.pieces):
            values = part[piece.start : piece.stop]
            completed |= accrual.add_chunk(unit.evaluation, unit.number, chunk, values, push.loss, push.weight)
        if cluster.machines is not None:
            server.done()
        if completed and number == 0 and self._takers[unit.number][0] != push.sender.number:
            self._won += 1
        cluster.totals.last_push = cluster.clock()
        push.awaited -= 1
        if not push.awaited:
            cluster.spares.give(push.vector)
        self._traffic.updated.announce()
