"""Updates of one vector that all replicas share, in virtual time."""

from __future__ import annotations

from mpidl.algorithms.requests import Gradient, Update
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import Action, RequestHandler
from mpidl.engines.virtual.processes import Process


class InMemory(RequestHandler):
    """Carries out the requests of algorithms whose replicas share the parameters.

    Parameters
    ----------
    cluster : VirtualCluster
        Its one server holds the shared parameters.
    compute : callable
        Lets the time of a gradient pass and computes it.
    """

    def __init__(self, cluster: VirtualCluster, compute: Action) -> None:
        self._cluster, self._compute = cluster, compute
        self.actions = {Gradient: self._gradient, Update: self._update}

    def _gradient(self, replica: VirtualReplica, request: Gradient) -> Process:
        replica.fetched = [server.shard.clock for server in self._cluster.servers]
        # Others write while it computes: it reads the parameters as they are when it begins.
        read = self._cluster.spares.take(request.parameters.shape)
        read[:] = request.parameters
        gradient = yield from self._compute(replica, Gradient(read, request.batch))
        self._cluster.spares.give(read)
        return gradient

    def _update(self, replica: VirtualReplica, request: Update) -> Process:
        yield from ()
        _, portion = replica.pushed()
        (server,), (read,) = self._cluster.servers, replica.fetched
        shard = server.shard
        staleness = shard.clock - read
        shard.update_sparsely(request.gradient, shard.clock + 1, portion, staleness)
        shard.staleness.add(staleness)
        shard.pushes += 1
        shard.clock += 1
        self._cluster.totals.pushes += 1
        self._cluster.totals.last_push = self._cluster.clock()
