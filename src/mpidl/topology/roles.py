"""Which rank of the job plays which role: a pure function of the ranks' nodes and of `[topology]`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mpidl.errors import UsageError

__all__ = ["Roles", "assign", "check_number"]


@dataclass(frozen=True, slots=True)
class Roles:
    """World ranks by role.

    Attributes
    ----------
    servers : tuple of int
        ``servers[k]`` is the rank that holds shard k.
    replicas : tuple of tuple of int
        ``replicas[r][p]`` is the rank that holds partition p of replica r; all have as many partitions.
    standby : tuple of int
        Ranks without work: those held back, and those too few to form one more replica.
    coordinator : int
        Always rank 0.
    hosts : tuple of str
        ``hosts[r]`` is the name of rank r's host; empty where nobody wants to know.
    """

    servers: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]
    standby: tuple[int, ...] = ()
    coordinator: int = 0
    hosts: tuple[str, ...] = ()

    def role(self, rank: int) -> str:
        """Return the role of world rank `rank` as text: ``"server 0"``, ``"worker 1"``.

        Of a replica of several ranks, each is a worker: ``"worker 1, partition 0 of 2"``.

        Raises
        ------
        IndexError
            `rank` is not a rank of this world.
        """
        if not 0 <= rank <= len(self.servers) + sum(map(len, self.replicas)) + len(self.standby):
            raise IndexError(f"rank {rank} is not of this world")
        return self.names()[rank]

    def place(self, rank: int) -> str:
        """Return where a rank is, ``" on node7"``; nothing if all are there."""
        return f" on {self.hosts[rank]}" if len(set(self.hosts)) > 1 else ""

    def names(self) -> list[str]:
        """Return the role of each rank as text; see `role`."""
        found = {self.coordinator: "coordinator"}
        found |= {rank: f"server {number}" for number, rank in enumerate(self.servers)}
        for number, ranks in enumerate(self.replicas):
            count = len(ranks)
            parts = [""] if count == 1 else [f", partition {part} of {count}" for part in range(count)]
            found |= {rank: f"worker {number}{part}" for rank, part in zip(ranks, parts, strict=True)}
        found |= {rank: f"standby {number}" for number, rank in enumerate(self.standby)}
        return [found[rank] for rank in range(len(found))]


def assign(nodes: Sequence[str | int], servers: int, partitions: int = 1, standby: int = 0) -> Roles:
    """Give every rank a role; servers are spread over the nodes, and the partitions of a replica stay together.

    The coordinator is rank 0. Each server takes the lowest free rank of the node with the fewest servers; among
    several such nodes, of the one with the most free ranks; among several of these, of the first. Each replica takes
    ranks of the node with the most free ranks and, if they don't suffice, of the next such node, so that it spans few
    nodes. Replicas are numbered by their lowest rank. The remaining ranks are standby.

    Parameters
    ----------
    nodes : sequence of str or int
        ``nodes[r]`` is the node of world rank r (any name or number that is equal on the same node).
    servers : int
        Shards of the parameters; 0 where the algorithm needs no servers.
    partitions : int
        Ranks of one replica; at least 1.
    standby : int
        Ranks to hold back, besides those that can't form a whole replica.

    Raises
    ------
    UsageError
        The world is too small for one replica.
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
    for _ in range(servers):
        node = min((n for n in free if free[n]), key=lambda n: (placed[n], -len(free[n])))
        placed[node] += 1
        server_ranks.append(free[node].popleft())

    replicas = []
    for _ in range((len(nodes) - 1 - servers - standby) // partitions):
        replica: list[int] = []
        while len(replica) < partitions:
            ranks = max(free.values(), key=len)
            replica += [ranks.popleft() for _ in range(min(partitions - len(replica), len(ranks)))]
        replicas.append(tuple(replica))

    left = sorted(rank for ranks in free.values() for rank in ranks)
    return Roles(tuple(server_ranks), tuple(sorted(replicas, key=min)), tuple(left))


def check_number(ranks: int, servers: int, partitions: int) -> None:
    """Check that all ranks have work: a coordinator, servers, and replicas of so many ranks.

    Raises
    ------
    UsageError
        Some ranks would have none. (Too few ranks are an error of `assign`.)
    """
    workers = ranks - 1 - servers
    if workers > partitions and workers % partitions:
        least = ranks - workers % partitions
        raise UsageError(
            f"{ranks} ranks: a coordinator{_counted(servers)} and replicas of {partitions} workers leave "
            f"{workers % partitions} without work, expected {least} or {least + partitions} ranks"
        )


def _counted(servers: int) -> str:
    return f", {servers} server{'s' * (servers > 1)}" if servers else ""


def _too_few(ranks: int, needed: int, servers: int, partitions: int, standby: int) -> str:
    """Return the line that says what a world of `ranks` lacks."""
    parts = ["a coordinator"]
    if servers:
        parts.append(f"{servers} server{'s' * (servers > 1)}")
    parts.append("1 worker" if partitions == 1 else f"1 replica of {partitions} workers")
    if standby:
        parts.append(f"{standby} standby")
    text = f"{', '.join(parts[:-1])} and {parts[-1]}"
    few = "1 rank is" if ranks == 1 else f"{ranks} ranks are"
    return f"{few} too few: {text} need {needed} (or run without mpirun for one process)"
