"""The lives of the replicas of a virtual cluster: what they ask of no server, their deaths and returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy

from mpidl.algorithms.algorithm import Exchange
from mpidl.algorithms.coordinated import Coordinated
from mpidl.algorithms.requests import Clock, Gradient, NextBatch, WaitForEpoch, drive
from mpidl.data.loader import Loader
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Action, Hooks, RequestHandler, Training, reported
from mpidl.engines.virtual.server import Process, Signal
from mpidl.engines.virtual.supply import Supply
from mpidl.engines.virtual.times import Death
from mpidl.storage.position import ReplicaPosition

#: Where each resumed replica goes on, and the vectors that it kept.
Resumed = Mapping[int, tuple[ReplicaPosition, Mapping[str, np.ndarray]]]


class Lives:
    """Lets the replicas of a cluster live.

    `vectors` has the parameters of each. `wasted_batches` counts the batches whose gradients were lost.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        training: Training,
        supply: Supply,
        hooks: Hooks,
        vectors: Sequence[np.ndarray],
        wasted_batches: int = 0,
    ) -> None:
        self._cluster, self._environment, self._training = cluster, cluster.environment, training
        self._supply, self._hooks, self._vectors = supply, hooks, vectors
        self._coordinated = isinstance(training.algorithm, Coordinated)
        self._advanced = Signal(cluster.environment)
        self.wasted_batches = wasted_batches
        self._handler: RequestHandler
        self._actions: Mapping[type, Action]

    def begin(self, handler: RequestHandler, resumed: Resumed, in_turn: bool, deaths: Sequence[Death]) -> None:
        """Let all replicas live, with a handler of the requests that are not only their own.

        Those of `resumed` go on where they were; see `VirtualReplica.load` for `in_turn`.
        """
        self._handler = handler
        self._actions = {
            NextBatch: self._next_batch,
            Gradient: self.gradient,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
            **handler.actions,
        }
        if (report := self._hooks.on_request) is not None:
            clock = self._cluster.clock
            self._actions = {kind: reported(action, report, clock) for kind, action in self._actions.items()}
            handler.waited = lambda replica, since: report(replica, None, since, clock())
        for number in range(len(self._vectors)):
            position, kept = resumed.get(number, (None, {}))
            self._cluster.replicas.append(self._start(number, position, kept, in_turn))
        for death in deaths:
            self._environment.process(self._die_and_return(death))

    def _start(
        self,
        number: int,
        position: ReplicaPosition | None = None,
        kept: Mapping[str, np.ndarray] | None = None,
        in_turn: bool = False,
    ) -> VirtualReplica:
        """Return a new replica, whose process begins at the next event."""
        vector = self._vectors[number]
        if self._training.algorithm.exchange is Exchange.REDUCTION:
            # There are no servers to fetch the parameters from.
            self._cluster.collect(vector)
        loader = self._loader(number, () if position is None else position.working)
        replica = VirtualReplica(number, vector, loader, self._training.replica_state())
        if position is not None:
            replica.load(position, kept or {}, in_turn)
            self._training.beside.load(replica, kept or {})
        replica.process = self._environment.process(self._live(replica))
        return replica

    def _loader(self, number: int, resumed: Sequence[tuple[int, int]] = ()) -> Loader:
        alone, training, supply = self._cluster.machines is None, self._training, self._supply
        return Loader(
            training.schedule,
            training.split,
            supply.take,
            supply.announce_epoch,
            resumed,
            prepare=alone,
            ahead=training.beside.ahead > 0,
            draws=None if training.draws is None else training.draws[number],
        )

    def _live(self, replica: VirtualReplica) -> Process:
        try:
            # A process starts at its first event, so that all replicas exist before the first of them runs.
            yield self._environment.timeout(0)
            requests = self._training.algorithm.replica(
                replica.number, replica.parameters, len(self._vectors), replica.state
            )
            yield from drive(requests, {kind: partial(action, replica) for kind, action in self._actions.items()})
        except simpy.Interrupt:
            self._give_back(replica)
            replica.died = True
        replica.active = False
        self._advance_clock(replica, math.inf)
        yield from self._handler.remove_replica(replica)

    def _die_and_return(self, death: Death) -> Process:
        yield self._environment.timeout(death.at - self._environment.now)
        replica = self._cluster.replicas[death.replica]
        if not replica.active:
            return
        replica.process.interrupt()
        if death.returns is None:
            return
        yield self._environment.timeout(death.returns - death.at)
        yield replica.process  # its pushes arrive first
        self._log("recovery", replica)
        others = [other.clock for other in self._cluster.replicas if other.active]
        returned = self._cluster.replicas[replica.number] = self._start(replica.number)
        returned.clock = min(others, default=0)
        self._handler.add_replica(returned)

    def _log(self, kind: str, replica: VirtualReplica, **details: Any) -> None:
        assert self._cluster.machines is not None
        roles = self._cluster.machines.roles
        self._hooks.on_event(kind, roles.replicas[replica.number][0], f"worker {replica.number}", **details)

    def _give_back(self, replica: VirtualReplica) -> None:
        """Make the batches that a dead replica had taken and not pushed available again."""
        left, computed = replica.unfinished(), replica.unpushed_batches()
        self._cluster.totals.again += sum(self._training.schedule.samples(*part) for part in computed)
        self.wasted_batches += len(computed)
        replica.draw_again()
        replica.loader, replica.unpushed, replica.computing = self._loader(replica.number), [], None
        self._supply.give_back(left)
        self._log("failure", replica, portions=[portion for portion, _ in left])

    # Requests.

    def _next_batch(self, replica: VirtualReplica, request: NextBatch) -> Process:
        yield from ()
        self._hooks.on_batch()
        return replica.next_batch()

    def gradient(self, replica: VirtualReplica, request: Gradient) -> Process:
        """Compute a gradient, and return it, or None if it was given up; the replica's next gradient overwrites it."""
        cluster, beside = self._cluster, self._training.beside
        cluster.begin()
        yield from beside.bring(replica, request.batch, replica.loader.coming(beside.ahead))
        if cluster.machines is not None:
            # It is computed after the passage of its time: few gradients exist at once, and they stay in the cache.
            before = self._environment.now
            computed = cluster.machines.compute(replica.number)
            in_time = yield from self._handler.wait_computed(replica, computed, request.unless_late)
            seconds = float(self._environment.now) - before
            replica.seconds += seconds
            if not in_time:
                replica.give_back()
                return None
            replica.computed.append(seconds)
        model, batch = self._training.model, self._training.split.take(request.batch)
        # The model computes with the replica's vector itself.
        if request.parameters is not model.parameters:
            model.parameters = request.parameters
        beside.computing(replica)
        loss, gradient = request.function(model, batch)
        if not math.isfinite(loss) and not self._coordinated:
            self._hooks.on_divergence(replica.number, replica.state.portion, float(loss))
        if cluster.machines is not None:
            # The next gradient overwrites the model's buffer.
            if replica.gradient is None:
                replica.gradient = cluster.spares.take(gradient.shape)
            np.copyto(replica.gradient, gradient)
            gradient = replica.gradient
        replica.computing = None
        replica.state.norm.look(gradient)
        weight = replica.state.weight = batch.total
        replica.samples += len(request.batch.indices)
        cluster.totals.samples += len(request.batch.indices)
        cluster.totals.batches += 1
        summed, counted = model.loss_sums(loss, batch)
        cluster.totals.loss += summed
        cluster.totals.weight += counted
        cluster.totals.epochs.count(self._training.schedule.portions.epoch(replica.state.portion), summed, counted)
        replica.loss += float(loss) * weight
        replica.weight += weight
        yield from beside.computed(replica)
        return gradient

    def _wait_for_epoch(self, replica: VirtualReplica, request: WaitForEpoch) -> Process:
        return self._supply.wait(request.epoch)

    def _wait_for_clock(self, replica: VirtualReplica, request: Clock) -> Process:
        yield from self._handler.wait_applied(replica)
        self._advance_clock(replica, replica.clock + 1)
        while min(other.clock for other in self._cluster.replicas) < replica.clock - request.bound:
            yield self._advanced.next

    def _advance_clock(self, replica: VirtualReplica, clock: float) -> None:
        replica.clock = clock
        self._advanced.announce()
