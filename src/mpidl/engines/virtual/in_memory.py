"""Updates of one vector that all replicas share, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpidl.algorithms.requests import Gradient, Update
from mpidl.engines.virtual.cluster import Process, VirtualCluster, VirtualReplica


class InMemory:
    """Carries out the requests of algorithms whose replicas share the parameters.

    Parameters
    ----------
    cluster : VirtualCluster
        Its one server holds the shared parameters.
    compute : callable
        Lets a gradient's time pass and computes it.
    """

    def __init__(self, cluster: VirtualCluster, compute: Callable[[VirtualReplica, Gradient], Process]) -> None:
        self._cluster, self._compute = cluster, compute
        self.actions: dict[type, Callable[[VirtualReplica, Any], Process]] = {
            Gradient: self._gradient,
            Update: self._update,
        }

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Nobody waits for a replica."""
        return
        yield

    def wait_applied(self, replica: VirtualReplica) -> Process:
        """Nothing of a replica's is ever under way."""
        return
        yield

    def _gradient(self, replica: VirtualReplica, request: Gradient) -> Process:
        self._cluster.begin()
        replica.fetched = [server.shard.clock for server in self._cluster.servers]
        # Others write while it computes: what it reads is what there is at its beginning.
        read = self._cluster.spares.take()
        read[:] = request.parameters
        gradient = yield from self._compute(replica, Gradient(read, request.batch))
        self._cluster.spares.give(read)
        return gradient

    def _update(self, replica: VirtualReplica, request: Update) -> Process:
        _, portion = replica.pushed()
        (server,), (read,) = self._cluster.servers, replica.fetched
        shard = server.shard
        shard.update_sparsely(request.gradient, shard.clock + 1, portion)
        shard.staleness.add(shard.clock - read)
        shard.pushes += 1
        shard.clock += 1
        self._cluster.totals.pushes += 1
        self._cluster.totals.last_push = self._cluster.clock()
        return
        yield
