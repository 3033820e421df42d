"""Reductions over the replicas in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Reduce
from mpidl.engines.virtual.world import Process, Replica, Signal, World


class ByReduction:
    """Carries out the requests of algorithms that exchange by reduction.

    Parameters
    ----------
    world : World
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._came: dict[int, Reduce] = {}
        self._portion = -1
        self._met = Signal(world.environment)
        self.actions: dict[type, Callable[[Replica, Any], Process]] = {Reduce: self._reduce}

    def remove_replica(self, replica: Replica) -> Process:
        """Let the others no longer wait for a replica."""
        self._came.pop(replica.number, None)
        self._meet_if_complete()
        return
        yield

    def wait_applied(self, replica: Replica) -> Process:
        """Nothing of a replica's is ever under way."""
        return
        yield

    def _reduce(self, replica: Replica, request: Reduce) -> Process:
        self._world.begin()
        self._portion = max(self._portion, replica.pushed()[1])
        self._came[replica.number] = request
        met = self._met.next
        self._meet_if_complete()
        return (yield met)

    def _meet_if_complete(self) -> None:
        world = self._world
        if self._came and len(self._came) == sum(replica.active for replica in world.replicas):
            requests = [self._came[number] for number in sorted(self._came)]
            met, self._came, self._met = self._met, {}, Signal(world.environment)
            world.environment.process(self._meet(requests, met))

    def _meet(self, requests: list[Reduce], met: Signal) -> Process:
        world = self._world
        size = requests[0].parameters.nbytes
        if world.cluster is not None and len(requests) > 1:
            yield from world.cluster.all_reduce(len(requests), size)
        given = [request.vector for request in requests if request.vector is not None]
        if given:
            self._update(given, requests[0].mean)
            for request in requests:
                world.collect(request.parameters)
            world.totals.last_push = world.clock()
        world.totals.pushes += len(given)
        world.totals.bytes_pushed += len(given) * size
        world.totals.fetches += len(requests)
        world.totals.bytes_fetched += len(requests) * size
        met.announce(len(given))

    def _update(self, vectors: list[np.ndarray], mean: bool) -> None:
        for server in self._world.servers:
            parts = [vector[server.part] for vector in vectors]
            server.shard.receive_sum(parts, mean, (self._portion, self._portion))
