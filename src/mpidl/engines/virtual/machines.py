"""The machines of a virtual cluster: draw durations and let virtual time pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from mpidl.engines.virtual.cores import Cores
from mpidl.engines.virtual.network import Network
from mpidl.engines.virtual.times import Times
from mpidl.topology.roles import assign


class Machines:
    """The machines on which virtual replicas and servers run.

    Parameters
    ----------
    environment : simpy.Environment
    times : Times
        The durations.
    seed : int
        Decides every duration that is drawn.
    replicas, servers : int
        Number of replicas and of servers; 0 servers where the replicas themselves have the shards.

    Attributes
    ----------
    chunk : float
        See `Times`.
    """

    def __init__(self, environment: simpy.Environment, times: Times, seed: int, replicas: int, servers: int) -> None:
        self._environment, self._times, self.chunk = environment, times, times.chunk
        streams = np.random.default_rng(seed).spawn(replicas + servers)
        self._replicas, self._servers = streams[:replicas], streams[replicas:]
        self._cores = Cores(environment, times.cores) if times.cores is not None else None
        nodes = [rank // times.ranks_per_node for rank in range(1 + servers + replicas)]
        roles = assign(nodes, servers)
        self._of_replica = [nodes[rank] for (rank,) in roles.replicas]
        self._of_server = [nodes[rank] for rank in roles.servers]
        finite = math.isfinite(times.bandwidth)
        self._network = Network(environment, np.full(nodes[-1] + 1, times.bandwidth)) if finite else None

    @property
    def shares_cores(self) -> bool:
        """Whether all replicas and servers share a number of cores."""
        return self._cores is not None

    def compute(self, replica: int) -> simpy.Event:
        """Return an event that occurs when a replica has computed a gradient."""
        seconds = self._times.compute(self._replicas[replica]) * self._times.slow.get(replica, 1.0)
        return self._work(seconds)

    def serve(self, server: int) -> simpy.Event:
        """Return an event that occurs when a server has applied a push."""
        return self._work(self._times.service(self._servers[server]), urgent=True)

    def tell(self, replica: int) -> Generator[simpy.Event, Any, None]:
        """Let a message without data pass to or from a replica."""
        latency = self._times.latency(self._replicas[replica])
        if latency or self._cores is None:
            yield self._environment.timeout(latency)

    def push(self, replica: int, server: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let `size` bytes pass from a replica to a server."""
        yield from self._pass(replica, self._of_replica[replica], self._of_server[server], size)

    def fetch(self, replica: int, server: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let `size` bytes pass from a server to a replica."""
        yield from self._pass(replica, self._of_server[server], self._of_replica[replica], size)

    def all_reduce(self, replicas: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let the replicas reduce vectors of `size` bytes; each sends and receives all parts but its own, twice."""
        for _ in range(2):
            yield self._environment.timeout(max(self._times.latency(random) for random in self._replicas[:replicas]))
            if self._cores is None:
                yield self._environment.timeout(self._exchange(replicas, size / replicas))
            else:
                transfer = (replicas - 1) / replicas * size / self._times.bandwidth
                yield self._environment.all_of([self._cores.work(transfer) for _ in range(replicas)])

    def _exchange(self, replicas: int, size: float) -> float:
        """Return the seconds in which each replica sends `size` bytes to each other: those of the fullest card."""
        together = Counter(self._of_replica[:replicas]).values()
        through_card = max(ranks * (replicas - ranks) for ranks in together) * size / self._times.bandwidth
        return max(through_card, (max(together) - 1) * size / self._times.memory_bandwidth)

    def _pass(self, replica: int, sender: int, receiver: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let a message to or from a replica pass from one node to another."""
        yield from self.tell(replica)
        if not size:
            return
        if self._cores is not None:
            # Ranks that share the cores of a node use them to copy.
            yield self._cores.work(size / self._times.bandwidth)
        elif sender == receiver:
            yield self._environment.timeout(size / self._times.memory_bandwidth)
        elif self._network is not None:
            yield self._network.send(sender, receiver, size)

    def _work(self, seconds: float, urgent: bool = False) -> simpy.Event:
        if self._cores is None:
            return self._environment.timeout(seconds)
        return self._cores.work(seconds, urgent)
