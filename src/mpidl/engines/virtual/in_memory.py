"""Updates of one vector that all replicas share, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpidl.algorithms.requests import Gradient, Update
from mpidl.engines.virtual.world import Process, Replica, World


class InMemory:
    """Carries out the requests of algorithms whose replicas share the parameters.

    Parameters
    ----------
    world : World
        Its one server holds the shared parameters.
    compute : callable
        Lets a gradient's time pass and computes it.
    """

    def __init__(self, world: World, compute: Callable[[Replica, Gradient], Process]) -> None:
        self._world, self._compute = world, compute
        self.actions: dict[type, Callable[[Replica, Any], Process]] = {Gradient: self._gradient, Update: self._update}

    def remove_replica(self, replica: Replica) -> Process:
        """Nobody waits for a replica."""
        return
        yield

    def wait_applied(self, replica: Replica) -> Process:
        """Nothing of a replica's is ever under way."""
        return
        yield

    def _gradient(self, replica: Replica, request: Gradient) -> Process:
        self._world.begin()
        replica.fetched = [server.shard.clock for server in self._world.servers]
        # Others write while it computes: what it reads is what there is at its beginning.
        read = self._world.spares.take()
        read[:] = request.parameters
        gradient = yield from self._compute(replica, Gradient(read, request.batch))
        self._world.spares.give(read)
        return gradient

    def _update(self, replica: Replica, request: Update) -> Process:
        _, portion = replica.pushed()
        (server,), (read,) = self._world.servers, replica.fetched
        shard = server.shard
        shard.update_sparsely(request.gradient, shard.clock + 1, portion)
        shard.staleness.add(shard.clock - read)
        shard.pushes += 1
        shard.clock += 1
        self._world.totals.pushes += 1
        self._world.totals.last_push = self._world.clock()
        return
        yield
