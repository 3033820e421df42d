"""The roles of a job's ranks: a pure function of the ranks' nodes and of `[topology]`."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from mpidl.errors import UsageError

#: Returns the roles of ranks, given their nodes, the number of servers, and that of a replica's partitions.
Assign: TypeAlias = "Callable[[Sequence[int], int, int], Roles]"
#: Fewest replicas on a node that get a relay: with two it saves half of the bytes.
FEWEST_FOR_RELAY = 2


class RelayRank(NamedTuple):
    """The rank that pushes and fetches for the workers of its node.

    Attributes
    ----------
    workers : tuple of int
        Ranks of these workers, replica by replica, in the order of the partitions.
    """

    rank: int
    workers: tuple[int, ...]


class Roles(Struct, frozen=True):
    """World ranks by role.

    Attributes
    ----------
    servers : tuple of int
        ``servers[k]`` is the rank that holds shard k.
    replicas : tuple of tuple of int
        ``replicas[r][p]`` is the rank that holds partition p of replica r; all have the same number of partitions.
    standby : tuple of int
        Ranks without work: those held back, and a remainder too small for another replica.
    coordinator : int
        Always rank 0.
    hosts : tuple of str
        ``hosts[r]`` is the name of rank r's host; empty if unknown.
    relays : tuple of RelayRank
        The relays of nodes whose workers don't push to the servers directly.
    """

    servers: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]
    standby: tuple[int, ...] = ()
    coordinator: int = 0
    hosts: tuple[str, ...] = ()
    relays: tuple[RelayRank, ...] = ()

    def role(self, rank: int) -> str:
        """Return the role of a world rank as text: ``"server 0"``, ``"worker 1"``, ``"worker 1, partition 0 of 2"``.

        Raises
        ------
        IndexError
            `rank` is not a rank of this world.
        """
        names = self.names()
        if not 0 <= rank < len(names):
            raise IndexError(f"rank {rank} is not of this world")
        return names[rank]

    def relay_of(self, worker: int) -> RelayRank | None:
        """Return the relay of the worker on rank `worker`, or None if that worker pushes to the servers directly."""
        return next((relay for relay in self.relays if worker in relay.workers), None)

    def pushers(self, partition: int = 0) -> list[int]:
        """Return the rank that writes into each ring of mailboxes of a shard of a partition.

        These are the workers that have no relay, then the relays, then the relays again: see `mpidl.relays.role`.
        """
        workers = [replica[partition] for replica in self.replicas]
        relayed = {worker for relay in self.relays for worker in relay.workers}
        return [rank for rank in workers if rank not in relayed] + 2 * [each.rank for each in self.relays]

    def fetchers(self, partition: int = 0) -> list[int]:
        """Return the ranks that fetch a shard of a partition, as `pushers` does, but each once."""
        pushers = self.pushers(partition)
        return pushers[: len(pushers) - len(self.relays)]

    @property
    def intermediaries(self) -> list[int]:
        """The ranks that push and fetch without being workers. They follow the coordinator's orders as servers do."""
        return [relay.rank for relay in self.relays]

    @property
    def served(self) -> list[tuple[int, ...]]:
        """The workers that each of the `intermediaries` exchanges for."""
        return [relay.workers for relay in self.relays]

    def place(self, rank: int) -> str:
        """Return a rank's host as ``" on node7"``; nothing if there is only one."""
        return f" on {self.hosts[rank]}" if len(set(self.hosts)) > 1 else ""

    def sizes(self) -> dict[str, int]:
        """Return the number of ranks, and those of servers, replicas, a replica's partitions and relays."""
        return {
            "ranks": len(self.names()),
            "servers": len(self.servers),
            "replicas": len(self.replicas),
            "partitions": len(self.replicas[0]),
            "relays": len(self.relays),
        }

    def names(self) -> list[str]:
        """Return the role of each rank as text, as `role` does."""
        found = {self.coordinator: "coordinator"}
        found |= {rank: f"server {number}" for number, rank in enumerate(self.servers)}
        for number, ranks in enumerate(self.replicas):
            count = len(ranks)
            parts = [""] if count == 1 else [f", partition {part} of {count}" for part in range(count)]
            found |= {rank: f"worker {number}{part}" for rank, part in zip(ranks, parts, strict=True)}
        found |= {rank: f"standby {number}" for number, rank in enumerate(self.standby)}
        found |= {relay.rank: f"relay {number}" for number, relay in enumerate(self.relays)}
        return [found[rank] for rank in range(len(found))]


def assign(
    nodes: Sequence[str | int], servers: int, partitions: int = 1, standby: int = 0, relay: bool = False
) -> Roles:
    """Give every rank a role; servers are spread over the nodes, and the partitions of a replica stay together.

    The coordinator is rank 0. Each server takes the lowest free rank of the node with the fewest servers; ties are
    broken by the most free ranks, then by the order of nodes. With `relay`, the lowest free rank of each node that
    doesn't have all servers becomes its relay, if enough ranks are left for two replicas. Each replica takes ranks of
    the node with the most free ranks and, if they don't suffice, of the next such node, so that it spans few nodes; one
    that spans several has no relay. Replicas are numbered by their lowest rank. The remaining ranks are standby. Raise
    UsageError if the world is too small for one replica.

    Parameters
    ----------
    nodes : sequence of str or int
        ``nodes[r]`` is the node of world rank r (any name or number that is equal on the same node).
    servers : int
        Shards of the parameters; 0 where the algorithm needs no servers.
    partitions : int
        Ranks of one replica; at least 1.
    standby : int
        Ranks to hold back, besides those that can't form a replica.
    relay : bool
        Whether nodes have relays.
    """
    needed = 1 + servers + partitions + standby
    if len(nodes) < needed:
        raise UsageError(_too_few(len(nodes), needed, servers, partitions, standby))

    free: dict[str | int, deque[int]] = {}
    for rank, node in enumerate(nodes):
        free.setdefault(node, deque())
        if rank > 0:
            free[node].append(rank)

    placed = dict.fromkeys(free, 0)
    server_ranks = []
    emptiest = [(0, -len(ranks), order, node) for order, (node, ranks) in enumerate(free.items()) if ranks]
    heapify(emptiest)
    for _ in range(servers):
        _, _, order, node = heappop(emptiest)
        placed[node] += 1
        server_ranks.append(free[node].popleft())
        if free[node]:
            heappush(emptiest, (placed[node], -len(free[node]), order, node))

    relays = {}
    for node, ranks in free.items():
        if relay and placed[node] < servers and len(ranks) > FEWEST_FOR_RELAY * partitions:
            relays[node] = ranks.popleft()

    replicas = []
    freest = [(-len(ranks), order, ranks) for order, ranks in enumerate(free.values())]
    heapify(freest)
    for _ in range((len(nodes) - 1 - servers - len(relays) - standby) // partitions):
        replica: list[int] = []
        while len(replica) < partitions:
            _, order, ranks = freest[0]
            replica += [ranks.popleft() for _ in range(min(partitions - len(replica), len(ranks)))]
            heapreplace(freest, (-len(ranks), order, ranks))
        replicas.append(tuple(replica))

    left = sorted(rank for ranks in free.values() for rank in ranks)
    replicas.sort(key=min)
    whole: dict[str | int, list[int]] = {node: [] for node in relays}
    for each in replicas:
        first, *others = {nodes[rank] for rank in each}
        if not others and first in whole:
            whole[first] += each
    relayed = [RelayRank(own, tuple(whole[node])) for node, own in relays.items()]
    return Roles(tuple(server_ranks), tuple(replicas), tuple(left), relays=tuple(relayed))


def most_ranks(replicas: int, servers: int, partitions: int, of_node: int, place: Assign | None = None) -> int:
    """Return the most ranks, `of_node` per node, that yield `replicas` replicas by `place`, without standby.

    By default that is `assign` without relays.
    """
    least = 1 + servers + replicas * partitions
    if place is None:
        return least

    def roles(ranks: int) -> Roles:
        return place([rank // of_node for rank in range(ranks)], servers, partitions)

    numbers = range(least, 2 * least + 1)
    most = bisect_right(numbers, replicas, key=lambda ranks: len(roles(ranks).replicas)) - 1
    return next(ranks for ranks in reversed(numbers[: most + 1]) if not roles(ranks).standby)


def check_number(ranks: int, servers: int, partitions: int, relays: int = 0) -> None:
    """Check that a coordinator, servers, relays and replicas of `partitions` ranks leave no rank without work.

    Raises
    ------
    UsageError
        Some ranks would have no work. (Too few ranks are an error of `assign`.)
    """
    workers = ranks - 1 - servers - relays
    if workers > partitions and workers % partitions:
        least = ranks - workers % partitions
        raise UsageError(
            f"{ranks} ranks: a coordinator{_counted(servers, 'server')}{_counted(relays, 'relay')} and replicas of "
            f"{partitions} workers leave {workers % partitions} without work, "
            f"expected {least} or {least + partitions} ranks"
        )


def _counted(number: int, kind: str) -> str:
    return f", {number} {kind}{'s' * (number > 1)}" if number else ""


def _too_few(ranks: int, needed: int, servers: int, partitions: int, standby: int) -> str:
    """Return the error for a world of too few ranks."""
    parts = ["a coordinator"]
    if servers:
        parts.append(f"{servers} server{'s' * (servers > 1)}")
    parts.append("1 worker" if partitions == 1 else f"1 replica of {partitions} workers")
    if standby:
        parts.append(f"{standby} standby")
    text = f"{', '.join(parts[:-1])} and {parts[-1]}"
    few = "1 rank is" if ranks == 1 else f"{ranks} ranks are"
    return f"{few} too few: {text} need {needed} (or run without mpirun for one process)"
