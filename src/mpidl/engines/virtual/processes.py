"""The replicas of a virtual cluster: their portions of the data, their own requests, their deaths and returns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy

from mpidl.algorithms.algorithm import Exchange
from mpidl.algorithms.requests import Clock, Gradient, NextBatch, WaitForEpoch, drive
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.engines.progress import UnpushedBatches
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Action, Hooks, Training, VirtualRequestHandler, reported
from mpidl.engines.virtual.server import Process, Signal
from mpidl.engines.virtual.times import Death
from mpidl.nn.model import GivenUp
from mpidl.storage.position import ReplicaPosition


class Supply:
    """Hands out a schedule's portions, those first that replicas have given back.

    Parameters
    ----------
    schedule : Schedule
    on_epoch : callable
        Called with an epoch's number (from 1) when the first portion beyond that epoch is taken for the first time.
    taken : int
        Number of portions that were taken before.
    """

    def __init__(self, schedule: Schedule, on_epoch: Callable[[int], None], taken: int) -> None:
        self._schedule, self._on_epoch, self._tickets = schedule, on_epoch, taken
        self._given_back: deque[int] = deque()
        self._epochs: set[int] = set()
        self._taken: Signal

    def begin(self, environment: simpy.Environment) -> None:
        """Hand out portions to the replicas of an environment."""
        self._taken = Signal(environment)

    @property
    def tickets(self) -> int:
        """Number of portions taken so far, without those that were given back."""
        return min(self._tickets, self._schedule.tickets)

    @property
    def given_back(self) -> dict[int, tuple[int, int]]:
        """What replicas have given back and no other has taken, as `Schedule.given_back`."""
        given_back = self._schedule.given_back
        return {ticket: given_back[ticket] for ticket in self._given_back}

    def take(self) -> int:
        """Take a ticket."""
        if self._given_back:
            return self._given_back.popleft()
        self._tickets += 1
        self._taken.announce()
        return self._tickets - 1

    def give_back(self, parts: Iterable[tuple[int, int]]) -> None:
        """Hand out portions again, each from a batch on."""
        self._given_back.extend(self._schedule.give_back(*part) for part in parts)

    def reset(self, tickets: int, left: Iterable[tuple[int, int]]) -> None:
        """Go back to when some tickets had been taken, and some of their portions, each from a batch on, were left."""
        self._tickets = tickets
        self._given_back.clear()
        self.give_back(left)

    def announce_epoch(self, epoch: int) -> None:
        """Announce the end of an epoch, if it hasn't ended before."""
        if epoch not in self._epochs:
            self._epochs.add(epoch)
            self._on_epoch(epoch)

    def wait(self, epoch: float) -> Process:
        """Wait until all portions before the end of an epoch have been taken."""
        wanted = self._schedule.tickets_before(epoch)
        while self._tickets < wanted:
            yield self._taken.next


#: The position of each resumed replica, and its saved vectors.
Resumed = Mapping[int, tuple[ReplicaPosition, Mapping[str, np.ndarray]]]


class ReplicaProcesses:
    """Runs the replicas of a cluster, each as a process.

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
        self._advanced = Signal(cluster.environment)
        self.wasted_batches = wasted_batches
        self._handler: VirtualRequestHandler
        self._actions: Mapping[type, Action]

    def begin(self, handler: VirtualRequestHandler, resumed: Resumed, in_turn: bool, deaths: Sequence[Death]) -> None:
        """Run all replicas, with a handler of the requests that are not only their own.

        Those in `resumed` continue from their positions; see `VirtualReplica.load` for `in_turn`.
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
        algorithm = self._training.algorithm
        encodings = self._cluster.encodings(algorithm.encoding(), algorithm.fetch_encoding())
        replica = VirtualReplica(number, vector, loader, self._training.replica_state(), encodings)
        if position is not None:
            replica.load(position, kept or {}, in_turn)
            self._training.channel.load(replica, kept or {})
        replica.process = self._environment.process(self._run(replica))
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
            ahead=training.channel.ahead > 0,
            sampler=None if training.samplers is None else training.samplers[number],
        )

    def _run(self, replica: VirtualReplica) -> Process:
        try:
            # A process starts at its first event, so that all replicas exist before the first of them runs.
            yield self._environment.timeout(0)
            training = self._training
            requests = training.model.requests(
                training.algorithm, replica.number, replica.parameters, len(self._vectors), replica.state
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
        left, computed = replica.unfinished(), replica.unpushed.parts
        self._cluster.totals.again += sum(self._training.schedule.samples(*part) for part in computed)
        self.wasted_batches += sum(last - first for _, first, last in computed)
        replica.loader.sampler.resume(replica.unpushed.own_position(replica.loader))
        replica.loader, replica.unpushed = self._loader(replica.number), UnpushedBatches()
        self._supply.give_back(left)
        self._log("failure", replica, portions=[portion for portion, _ in left])

    # Requests.

    def _next_batch(self, replica: VirtualReplica, request: NextBatch) -> Process:
        yield from ()
        self._hooks.on_batch()
        return replica.next_batch()

    def gradient(self, replica: VirtualReplica, request: Gradient) -> Process:
        """Compute a gradient, and return it, or None if it was given up; the replica's next gradient overwrites it."""
        cluster, channel = self._cluster, self._training.channel
        cluster.begin()
        yield from channel.bring(replica, request.batch, replica.loader.coming(channel.ahead))
        if cluster.machines is not None:
            # It is computed after the passage of its time: few gradients exist at once, and they stay in the cache.
            before = self._environment.now
            computed = cluster.machines.compute(replica.number)
            in_time = yield from self._handler.wait_computed(replica, computed, request.late_by)
            seconds = float(self._environment.now) - before
            replica.seconds += seconds
            if not in_time:
                replica.stopped.stop(seconds)
                replica.give_back()
                return None
            replica.computed.append(seconds)
            replica.stopped.completed(seconds)
        model, batch = self._training.model, self._training.split.take(request.batch)
        # The model computes with the replica's vector itself.
        if request.parameters is not model.parameters:
            model.parameters = request.parameters
        channel.computing(replica)
        try:
            loss, gradient = request.function(model, batch)
        except GivenUp:
            replica.give_back()
            return None
        if not math.isfinite(loss) and not self._training.algorithm.coordinated:
            self._hooks.on_divergence(replica.number, replica.state.portion, float(loss))
        if cluster.machines is not None:
            # The next gradient overwrites the model's buffer.
            if replica.gradient is None:
                replica.gradient = cluster.spares.take(gradient.shape)
            np.copyto(replica.gradient, gradient)
            gradient = replica.gradient
        if replica.unpushed.unused:
            replica.unpushed.computed()
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
        yield from channel.computed(replica)
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
