"""Reductions over the replicas, in virtual time."""

from __future__ import annotations

from mpidl.algorithms.requests import Reduce
from mpidl.engines.virtual.cluster import Process, Signal, VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import RequestHandler


class ByReduction(RequestHandler):
    """Carries out the requests of algorithms that exchange by reduction.

    Parameters
    ----------
    cluster : VirtualCluster
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, Reduce] = {}
        self._portion = -1
        self._met = Signal(cluster.environment)
        self.actions = {Reduce: self._reduce}

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """See `RequestHandler.remove_replica`; the reduction that waits for the replica goes on without it."""
        yield from ()
        self._waiting.pop(replica.number, None)
        self._meet_if_complete()

    def _reduce(self, replica: VirtualReplica, request: Reduce) -> Process:
        self._portion = max(self._portion, replica.pushed()[1])
        self._waiting[replica.number] = request
        met = self._met.next
        self._meet_if_complete()
        return (yield met)

    def _meet_if_complete(self) -> None:
        cluster = self._cluster
        if self._waiting and len(self._waiting) == sum(replica.active for replica in cluster.replicas):
            requests = [self._waiting[number] for number in sorted(self._waiting)]
            met, self._waiting, self._met = self._met, {}, Signal(cluster.environment)
            cluster.environment.process(self._meet(requests, met))

    def _meet(self, requests: list[Reduce], met: Signal) -> Process:
        """Reduce the vectors of all replicas, apply the result, and answer the requests."""
        cluster = self._cluster
        size = requests[0].parameters.nbytes
        if cluster.machines is not None and len(requests) > 1:
            yield from cluster.machines.all_reduce(len(requests), size)
        given = [request for request in requests if request.vector is not None]
        if given:
            self._update(given)
            for request in requests:
                cluster.collect(request.parameters)
            cluster.totals.last_push = cluster.clock()
        cluster.totals.pushes += len(given)
        cluster.totals.bytes_pushed += len(given) * size
        cluster.totals.fetches += len(requests)
        cluster.totals.bytes_fetched += len(requests) * size
        met.announce(len(given))

    def _update(self, requests: list[Reduce]) -> None:
        weights = [request.weight for request in requests] if requests[0].mean else None
        for server in self._cluster.servers:
            parts = [request.vector[server.part] for request in requests if request.vector is not None]
            server.shard.receive_sum(parts, weights, (self._portion, self._portion))
