"""The machines of a virtual cluster: random durations, and the passage of virtual time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Generator
from functools import cache, partial
from typing import Any

import numpy as np
import simpy

from mpidl.engines.virtual.cores import Cores
from mpidl.engines.virtual.cut import gradient
from mpidl.engines.virtual.network import Fabric
from mpidl.engines.virtual.times import Times
from mpidl.topology.roles import Roles, assign, most_ranks


def place_ranks(times: Times, replicas: int, servers: int) -> tuple[list[int], Roles]:
    """Return the node of each rank of a virtual cluster, and its role."""
    partitions, of_node = times.cut.partitions, times.ranks_per_node
    # Ranks that share cores are on one node.
    between = times.intermediaries if times.cores is None else None
    place = partial(assign, standby=times.standby) if between is None else between.assign
    ranks = times.ranks or (
        most_ranks(replicas, servers, partitions, of_node, None if between is None else place)
        + (times.standby if between is None else 0)
    )
    nodes = [rank // of_node for rank in range(ranks)]
    return nodes, place(nodes, servers, partitions)


class Machines:
    """The machines on which virtual replicas and servers run.

    The `seed` determines every duration. There are 0 servers if the replicas have the shards. As arguments of methods,
    intermediaries have the numbers after those of the replicas; `served` lists the replicas of each. `cores` are those
    that all replicas and servers share, if they do.
    """

    def __init__(self, environment: simpy.Environment, times: Times, seed: Any, replicas: int, servers: int) -> None:
        self._environment, self._times, self.chunk = environment, times, times.chunk
        nodes, self.roles = self.nodes, _ = place_ranks(times, replicas, servers)
        roles = self.roles
        streams = np.random.default_rng(seed).spawn(replicas + servers + len(roles.intermediaries))
        self._servers = streams[replicas : replicas + servers]
        self._replicas = streams[:replicas] + streams[replicas + servers :]
        self.cores = Cores(environment, times.cores) if times.cores is not None else None
        self._cut = times.cut
        first = {ranks[0]: replica for replica, ranks in enumerate(roles.replicas)}
        self.replicas, self.intermediaries = replicas, times.intermediaries
        self.served = [[first[rank] for rank in workers if rank in first] for workers in roles.served]
        self._of_replica = [[nodes[rank] for rank in ranks] for ranks in roles.replicas]
        self._of_replica += [[nodes[rank]] for rank in roles.intermediaries]
        self._of_server = [nodes[rank] for rank in roles.servers]
        self._shares = times.cut.shares(servers)
        self._paths = cache(self._find_paths)
        finite = math.isfinite(times.bandwidth)
        self._network = Fabric(environment, np.full(nodes[-1] + 1, times.bandwidth)) if finite else None

    @property
    def together(self) -> bool:
        """Whether ranks compute a gradient together, or on cores that they share with others."""
        return self.cores is not None or self._cut.partitions > 1

    @property
    def load(self) -> float:
        """The fraction of its capacity that the busiest network card has carried so far, in its busier direction."""
        if self._network is None or not self._environment.now:
            return 0.0
        return float(self._network.carried.max() / self._times.bandwidth / self._environment.now)

    def compute(self, replica: int) -> simpy.Event:
        """Return an event that occurs when a replica has computed a gradient."""
        cut, slow = self._cut, self._times.slow.get(replica, 1.0)
        seconds = [self._times.compute(self._replicas[replica]) * slow for _ in range(cut.partitions)]
        if cut.partitions == 1:
            return self.work(seconds[0])
        nodes, speeds = self._of_replica[replica], [each / cut.whole for each in seconds]
        return gradient(
            self._environment,
            cut.flows,
            lambda rank, seconds: self.work(seconds * speeds[rank]),
            lambda rank, to, size: self._pass(replica, nodes[rank], nodes[to], size),
        )

    def serve(self, server: int, extra: float = 0.0) -> simpy.Event:
        """Return an event that occurs when a server has applied a push, and worked `extra` seconds on more."""
        return self.work(self._times.service(self._servers[server]) + extra, urgent=True)

    def tell(self, replica: int) -> Generator[simpy.Event, Any, None]:
        """Send a message without data to or from a replica."""
        latency = self._times.latency(self._replicas[replica])
        if latency or self.cores is None:
            yield self._environment.timeout(latency)

    def push(self, replica: int, server: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Send `size` bytes from a replica to a server."""
        return self._pass_parts(replica, size, self._paths(replica, server))

    def fetch(self, replica: int, server: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Send `size` bytes from a server to a replica."""
        return self._pass_parts(replica, size, [(its, own, share) for own, its, share in self._paths(replica, server)])

    def share(self, replica: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Send `size` bytes between a replica and its intermediary; each rank of the replica has a part of them."""
        yield from self.tell(replica)
        yield self._environment.timeout(self.copying(size * max(self._cut.parts)))

    def copying(self, size: float) -> float:
        """Return the seconds of a rank's copy of `size` bytes within its node."""
        return size / self._times.memory_bandwidth

    def apart(self, replica: int, server: int) -> bool:
        """Return whether everything between a replica and a server crosses the network."""
        return self._network is not None and all(own != its for own, its, _ in self._paths(replica, server))

    def near(self, replica: int, server: int) -> bool:
        """Return whether a replica and a server are on one node."""
        return self.cores is not None or all(own == its for own, its, _ in self._paths(replica, server))

    def by_messages(self, replica: int, server: int) -> bool:
        """Return whether everything between a replica and a server crosses the network as messages."""
        return self._times.messages and self.apart(replica, server)

    def all_reduce(self, replicas: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let the replicas reduce vectors of `size` bytes; each sends and receives all parts except its own, twice."""
        for _ in range(2):
            yield self._environment.timeout(max(self._times.latency(random) for random in self._replicas[:replicas]))
            if self.cores is None:
                yield self._environment.timeout(self._exchange(replicas, size / replicas))
            else:
                transfer = (replicas - 1) / replicas * size / self._times.bandwidth
                copies = [self.cores.work(transfer * part) for part in self._cut.parts for _ in range(replicas)]
                yield self._environment.all_of(copies)

    def _exchange(self, replicas: int, size: float) -> float:
        """Return the seconds of sending `size` bytes from each replica to each other one, on the busiest card.

        A rank sends to the ranks with the same slice in other replicas.
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

    def _find_paths(self, replica: int, server: int) -> list[tuple[int, int, float]]:
        """Return for each rank of a replica its node, the server's, and its share of their messages."""
        own, its = self._of_replica[replica], self._of_server[server]
        shares = self._shares[server] if replica < self.replicas else [(0, 1.0)]  # an intermediary is one rank
        return [(own[rank], its, share) for rank, share in shares]

    def _pass_parts(
        self, replica: int, size: float, paths: list[tuple[int, int, float]]
    ) -> Generator[simpy.Event, Any, None]:
        """Send the parts of a message to or from a server in parallel, each from a node to a node."""
        first, *others = [self._pass(replica, sender, receiver, size * share) for sender, receiver, share in paths]
        if not others:
            return first
        return self._side_by_side(first, others)

    def _side_by_side(
        self, first: Generator[simpy.Event, Any, None], others: list[Generator[simpy.Event, Any, None]]
    ) -> Generator[simpy.Event, Any, None]:
        processes = [self._environment.process(each) for each in others]
        yield from first
        yield self._environment.all_of(processes)

    def _pass(self, replica: int, sender: int, receiver: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Send a message to or from a replica from one node to another."""
        yield from self.tell(replica)
        if not size:
            return
        if self.cores is not None:
            # Ranks that share the cores of a node use these to copy.
            yield self.cores.work(size / self._times.bandwidth)
        elif sender == receiver:
            yield self._environment.timeout(self.copying(size))
        elif self._network is not None:
            yield self._network.send(sender, receiver, size)

    def work(self, seconds: float, urgent: bool = False) -> simpy.Event:
        """Return an event that occurs after some seconds of work by a replica or, if it is urgent, by a server."""
        if self.cores is None:
            return self._environment.timeout(seconds)
        return self.cores.work(seconds, urgent)
