"""Reductions over the replicas, in virtual time."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import simpy

from mpidl.algorithms.requests import FinishReduction, Reduce, Speed, StartReduction
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import RequestHandler
from mpidl.engines.virtual.processes import Process
from mpidl.parameters.ranges import Range


@dataclass
class Reduction:
    """A reduction of a part of the replicas' vectors.

    Attributes
    ----------
    part : Range
    whole : bool
        Whether it is of the whole vector, which takes all that the replicas have computed; they wait for it.
    mean : bool
        Whether the mean is one update; else the sum is.
    arrived : simpy.Event
        Occurs when all replicas that are active have given their vectors, and these have been exchanged.
    vectors : dict of int to (array or None, float)
        For each replica its vector, if it gives one, and what that counts.
    portion : int
        The last portion that a vector was computed on.
    seconds : dict of int to float
        For each replica, the mean duration of its gradients since it gave a vector before; 0 if there were none.
    given : int or None
        Number of vectors in the update; None before it.
    """

    part: Range
    whole: bool
    mean: bool
    arrived: simpy.Event
    vectors: dict[int, tuple[np.ndarray | None, float]] = field(default_factory=dict)
    portion: int = -1
    seconds: dict[int, float] = field(default_factory=dict)
    given: int | None = None


class ByReduction(RequestHandler):
    """Carries out the requests of algorithms that exchange by reduction.

    The update of a part is made when the first replica finishes the reduction. Each shard lies within one part.

    Parameters
    ----------
    cluster : VirtualCluster
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._portion = -1
        # Those for which not all replicas have given vectors yet, and those that each replica hasn't finished.
        self._gathering: deque[Reduction] = deque()
        self._started: defaultdict[int, deque[Reduction]] = defaultdict(deque)
        self._speeds: dict[int, float] = {}
        self.actions = {
            Reduce: self._reduce, StartReduction: self._start_part, FinishReduction: self._finish_part,
            Speed: self._speed,
        }  # fmt: skip

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """See `RequestHandler.remove_replica`; the reductions that wait for the replica go on without it."""
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
        replica.pushed(request.rest)
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
        self._portion = max([self._portion, *(batches.portion for batches in replica.unpushed[-1:])])
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
            reduction.portion = self._portion
            for number in reduction.vectors if reduction.whole else ():
                self._cluster.replicas[number].pushed()
            self._cluster.environment.process(self._exchange(reduction))

    def _exchange(self, reduction: Reduction) -> Process:
        cluster, replicas = self._cluster, len(reduction.vectors)
        if cluster.machines is not None and replicas > 1:
            itemsize = cluster.servers[0].shard.parameters.itemsize
            yield from cluster.machines.all_reduce(replicas, reduction.part.size * itemsize)
        reduction.arrived.succeed()

    def _finish(self, replica: VirtualReplica, vector: np.ndarray) -> Process:
        """Wait for a replica's first reduction, whose result is copied to a vector; return how many vectors counted."""
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
        """Apply the mean, or the sum, of the vectors that are given, in the order of the replicas."""
        in_order = [each for _, each in sorted(reduction.vectors.items())]
        given = [(vector, weight) for vector, weight in in_order if vector is not None]
        vectors, portions = [vector for vector, _ in given], (reduction.portion, reduction.portion)
        weights = [weight for _, weight in given] if reduction.mean else None
        reduction.given = len(given)
        for server in self._cluster.servers if given else ():
            if server.shard.range.intersect(reduction.part) is not None:
                server.shard.receive_sum([vector[server.part] for vector in vectors], weights, portions)
