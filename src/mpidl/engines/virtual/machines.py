"""The machines of a virtual cluster: draw durations and let virtual time pass."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from mpidl.engines.virtual.cores import Cores
from mpidl.engines.virtual.cut import gradient
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
        cut = self._cut = times.cut
        nodes = [rank // times.ranks_per_node for rank in range(1 + servers + replicas * cut.partitions)]
        roles = assign(nodes, servers, cut.partitions)
        self._of_replica = [[nodes[rank] for rank in ranks] for ranks in roles.replicas]
        self._of_server = [nodes[rank] for rank in roles.servers]
        self._shares = cut.shares(servers)
        finite = math.isfinite(times.bandwidth)
        self._network = Network(environment, np.full(nodes[-1] + 1, times.bandwidth)) if finite else None

    @property
    def shares_cores(self) -> bool:
        """Whether all replicas and servers share a number of cores."""
        return self._cores is not None

    @property
    def load(self) -> float:
        """What part of its capacity the fullest network card has carried so far, in its fuller direction."""
        if self._network is None or not self._environment.now:
            return 0.0
        return float(self._network.carried.max() / self._times.bandwidth / self._environment.now)

    def compute(self, replica: int) -> simpy.Event:
        """Return an event that occurs when a replica has computed a gradient."""
        cut, slow = self._cut, self._times.slow.get(replica, 1.0)
        seconds = [self._times.compute(self._replicas[replica]) * slow for _ in range(cut.partitions)]
        if cut.partitions == 1:
            return self._work(seconds[0])
        nodes, speeds = self._of_replica[replica], [each / cut.whole for each in seconds]
        return gradient(
            self._environment,
            cut.flows,
            lambda rank, seconds: self._work(seconds * speeds[rank]),
            lambda rank, to, size: self._pass(replica, nodes[rank], nodes[to], size),
        )

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
        yield from self._pass_parts(replica, server, size, lambda own, its: (own, its))

    def fetch(self, replica: int, server: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let `size` bytes pass from a server to a replica."""
        yield from self._pass_parts(replica, server, size, lambda own, its: (its, own))

    def apart(self, replica: int, server: int) -> bool:
        """Return whether all that passes between a replica and a server crosses the network."""
        nodes, its = self._of_replica[replica], self._of_server[server]
        return self._network is not None and all(nodes[rank] != its for rank, _ in self._shares[server])

    def by_messages(self, replica: int, server: int) -> bool:
        """Return whether all of that crosses the network as messages."""
        return self._times.messages and self.apart(replica, server)

    def all_reduce(self, replicas: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let the replicas reduce vectors of `size` bytes; each sends and receives all parts but its own, twice."""
        for _ in range(2):
            yield self._environment.timeout(max(self._times.latency(random) for random in self._replicas[:replicas]))
            if self._cores is None:
                yield self._environment.timeout(self._exchange(replicas, size / replicas))
            else:
                transfer = (replicas - 1) / replicas * size / self._times.bandwidth
                copies = [self._cores.work(transfer * part) for part in self._cut.parts for _ in range(replicas)]
                yield self._environment.all_of(copies)

    def _exchange(self, replicas: int, size: float) -> float:
        """Return the seconds in which each replica sends `size` bytes to each other: those of the fullest card.

        A rank sends to the ranks that hold the same slice of other replicas.
        """
        through_card: defaultdict[int, float] = defaultdict(float)
        within = 0.0
        for partition, part in enumerate(self._cut.parts):
            ranks = Counter(nodes[partition] for nodes in self._of_replica[:replicas])
            within = max(within, (max(ranks.values()) - 1) * part)
            for node, count in ranks.items():
                through_card[node] += count * (replicas - count) * part
        fullest = max(through_card.values())
        return max(fullest * size / self._times.bandwidth, within * size / self._times.memory_bandwidth)

    def _pass_parts(
        self, replica: int, server: int, size: float, way: Callable[[int, int], tuple[int, int]]
    ) -> Generator[simpy.Event, Any, None]:
        """Let a message to or from a server pass; each rank of the replica has its part of it."""
        own, its, shares = self._of_replica[replica], self._of_server[server], self._shares[server]
        first, *others = [self._pass(replica, *way(own[rank], its), size * share) for rank, share in shares]
        processes = [self._environment.process(each) for each in others]
        yield from first
        if processes:
            yield self._environment.all_of(processes)

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
