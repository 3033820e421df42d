"""Exchange without servers in virtual time: reductions over the replicas, and updates of one shared vector."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import simpy
from msgspec import Struct

from mpidl.algorithms.requests import FinishReduction, Gradient, Reduce, Speed, StartReduction, UpdateShared
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Action, VirtualRequestHandler
from mpidl.engines.virtual.server import Process
from mpidl.parameters.ranges import Range


class Reduction(Struct):
    """A reduction of a part of the replicas' vectors.

    Attributes
    ----------
    whole : bool
        Whether the whole vector is reduced, with everything that the replicas have computed; they wait for it.
    mean : bool
        Whether the update is the mean of the vectors; otherwise it is the sum.
    arrived : simpy.Event
        Occurs when all active replicas have contributed, and the vectors have been exchanged.
    vectors : dict of int to (array or None, float)
        For each replica its vector, if it contributes one, and the vector's weight.
    batch : int
        The number of the last batch that a vector was computed on.
    seconds : dict of int to float
        For each replica, the mean duration of its gradients since its previous reduction; 0 if there were none.
    given : int or None
        Number of vectors in the update; None before it.
    """

    part: Range
    whole: bool
    mean: bool
    arrived: simpy.Event
    vectors: dict[int, tuple[np.ndarray | None, float]] = {}
    batch: int = -1
    seconds: dict[int, float] = {}
    given: int | None = None


class VirtualByReduction(VirtualRequestHandler):
    """Handles the requests of algorithms that exchange by reduction.

    A part is updated when the first replica finishes the reduction. Each shard is within one part.
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._batch = -1
        # Reductions that lack vectors of some replicas, and those that each replica hasn't finished.
        self._gathering: deque[Reduction] = deque()
        self._started: defaultdict[int, deque[Reduction]] = defaultdict(deque)
        self._speeds: dict[int, float] = {}
        self.actions = {
            Reduce: self._reduce, StartReduction: self._start_part, FinishReduction: self._finish_part,
            Speed: self._speed,
        }  # fmt: skip

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Let reductions that wait for the replica continue without it."""
        yield from ()
        for reduction in self._gathering:
            reduction.vectors.pop(replica.number, None)
        self._started.pop(replica.number, None)
        self._exchange_if_complete()

    def _reduce(self, replica: VirtualReplica, request: Reduce) -> Process:
        part = Range(0, request.parameters.size)
        self._start(replica, part, request.mean, request.vector, request.weight, whole=True)
        return (yield from self._finish(replica, request.parameters))

    def _speed(self, replica: VirtualReplica, request: Speed) -> Process:
        yield from ()
        return self._speeds.get(replica.number, 1.0)

    def _start_part(self, replica: VirtualReplica, request: StartReduction) -> Process:
        yield from ()
        self._start(replica, request.part, True, request.vector if request.weight else None, request.weight)

    def _finish_part(self, replica: VirtualReplica, request: FinishReduction) -> Process:
        given = yield from self._finish(replica, request.vector)
        replica.unpushed.pushed(request.rest)
        return given

    def _start(
        self,
        replica: VirtualReplica,
        part: Range,
        mean: bool,
        vector: np.ndarray | None,
        weight: float,
        whole: bool = False,
    ) -> None:
        self._batch = max(self._batch, replica.unpushed.batches[1])
        reduction = next((each for each in self._gathering if replica.number not in each.vectors), None)
        if reduction is None:
            reduction = Reduction(part, whole, mean, self._cluster.environment.event())
            self._gathering.append(reduction)
        reduction.vectors[replica.number] = vector, weight
        reduction.seconds[replica.number] = replica.mean_seconds()
        self._started[replica.number].append(reduction)
        self._exchange_if_complete()

    def _exchange_if_complete(self) -> None:
        active = sum(replica.active for replica in self._cluster.replicas)
        while self._gathering and active and len(self._gathering[0].vectors) == active:
            reduction = self._gathering.popleft()
            reduction.batch = self._batch
            for number in reduction.vectors if reduction.whole else ():
                self._cluster.replicas[number].unpushed.pushed()
            self._cluster.environment.process(self._exchange(reduction))

    def _exchange(self, reduction: Reduction) -> Process:
        cluster, replicas = self._cluster, len(reduction.vectors)
        if cluster.machines is not None and replicas > 1:
            itemsize = cluster.servers[0].shard.parameters.itemsize
            yield from cluster.machines.all_reduce(replicas, reduction.part.size * itemsize)
        reduction.arrived.succeed()

    def _finish(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Wait for a replica's first reduction, and copy its result; return the number of vectors in it."""
        cluster, reduction = self._cluster, self._started[replica.number].popleft()
        yield reduction.arrived
        if reduction.given is None:
            self._update(reduction)
        own = reduction.seconds[replica.number]
        fastest = min((seconds for seconds in reduction.seconds.values() if seconds), default=own)
        self._speeds[replica.number] = fastest / own if own else 1.0
        totals, nbytes = cluster.totals, reduction.part.size * vector.itemsize
        totals.fetches += 1
        totals.bytes_fetched += nbytes
        if reduction.vectors[replica.number][0] is not None:
            totals.pushes += 1
            totals.bytes_pushed += nbytes
        if reduction.given:
            cluster.collect(vector, reduction.part)
            totals.last_push = cluster.clock()
        return reduction.given

    def _update(self, reduction: Reduction) -> None:
        """Apply the mean or the sum of the vectors, in the order of the replicas."""
        in_order = [each for _, each in sorted(reduction.vectors.items())]
        given = [(vector, weight) for vector, weight in in_order if vector is not None]
        vectors, batches = [vector for vector, _ in given], (reduction.batch, reduction.batch)
        weights = [weight for _, weight in given] if reduction.mean else None
        reduction.given = len(given)
        for server in self._cluster.servers if given else ():
            if server.shard.range.intersect(reduction.part) is not None:
                server.shard.receive_sum([vector[server.part] for vector in vectors], weights, batches)


class VirtualInMemory(VirtualRequestHandler):
    """Handles the requests of algorithms whose replicas share the parameters of the cluster's only server.

    `compute` computes a gradient after the passage of its time.
    """

    def __init__(self, cluster: VirtualCluster, compute: Action) -> None:
        self._cluster, self._compute = cluster, compute
        self.actions = {Gradient: self._gradient, UpdateShared: self._update}

    def _gradient(self, replica: VirtualReplica, request: Gradient) -> Process:
        replica.fetched = [server.shard.clock for server in self._cluster.servers]
        # Others write while it computes, so it reads the parameters at the beginning.
        read = self._cluster.spares.take(request.parameters.shape)
        read[:] = request.parameters
        gradient = yield from self._compute(replica, Gradient(read, request.batch))
        self._cluster.spares.give(read)
        return gradient

    def _update(self, replica: VirtualReplica, request: UpdateShared) -> Process:
        yield from ()
        batch = replica.unpushed.batch
        replica.unpushed.pushed()
        (server,), (read,) = self._cluster.servers, replica.fetched
        shard = server.shard
        staleness = shard.clock - read
        shard.update_sparsely(request.gradient, shard.clock + 1, batch, staleness)
        shard.staleness.add(staleness)
        shard.pushes += 1
        shard.clock += 1
        self._cluster.totals.pushes += 1
        self._cluster.totals.last_push = self._cluster.clock()
