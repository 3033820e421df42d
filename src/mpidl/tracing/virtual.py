"""The spans of a virtual cluster, in its time, and those of a run in one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpidl.algorithms.requests import Accrue, Fetch, Gradient, NextBatch, Push, UpdateShared
from mpidl.engines.virtual.cluster import VirtualReplica
from mpidl.engines.virtual.handler import Hooks
from mpidl.shards.shard import Shard
from mpidl.topology.roles import Roles
from mpidl.tracing.feature import save
from mpidl.tracing.files import remove
from mpidl.tracing.spans import KINDS, Ring

#: What a replica does while its request is carried out; all others wait for other ranks.
REQUESTS: dict[type, str] = {
    Gradient: "gradient", NextBatch: "step", Fetch: "fetch", Push: "push", Accrue: "push", UpdateShared: "push",
}  # fmt: skip


class TracedProcess:
    """Keeps the spans of the replicas and servers of a run in one process, in virtual time if its cluster is virtual.

    There, a push takes a replica no time, as it leaves while the replica goes on: its span has no length.

    `shards` are the servers', and `roles` those of the ranks. `directory` is the run's, and `kept` the key
    ``run.trace``.
    """

    def __init__(self, shards: Sequence[Shard], roles: Roles, directory: Path, kept: bool | float) -> None:
        self._places = {id(shard): number for number, shard in enumerate(shards)}
        self._roles, self._directory, self._kept = roles, directory, kept
        self._rings: dict[int, Ring] = {}
        self._ends: defaultdict[int, float] = defaultdict(float)
        self._pushes: Counter[int] = Counter()
        self._applied: Counter[tuple[int, int]] = Counter()
        self._turn = 0

    def watched(self, hooks: Hooks) -> Hooks:
        """Return an engine's hooks with which the spans are kept."""
        return replace(hooks, on_request=self.requested, on_applied=self.applied)

    def requested(self, replica: VirtualReplica, request: Any, started: float, ended: float) -> None:
        """Keep the span of a replica's request; of None, that it has waited for its pushes."""
        rank = self._roles.replicas[replica.number][0]
        kind, push = REQUESTS.get(type(request), "wait"), self._pushes[rank]
        shard = clock = -1
        if kind == "push":
            self._pushes[rank] += 1
        elif kind == "fetch" and replica.fetched:
            self._turn += 1
            shard = self._turn % len(replica.fetched)
            clock = replica.fetched[shard]
        if ended > started or kind == "push":
            self._write(rank, kind, started, ended, push, clock, shard, rank)

    def applied(self, shard: Shard, sender: int, fetched: int, before: int, started: float, ended: float) -> None:
        """Keep the span of the application of a push by a replica or an intermediary, which had fetched at a clock."""
        server, workers = self._places[id(shard)], self._roles.replicas
        pusher = workers[sender][0] if sender < len(workers) else -1
        push = self._applied[pusher, server]
        self._applied[pusher, server] += 1
        rank = self._roles.servers[server] if self._roles.servers else workers[0][0]
        clock = shard.clock if shard.clock != before else -1
        self._write(rank, "apply", started, ended, push, clock, server, pusher, before - fetched)

    def _write(self, rank: int, kind: str, started: float, ended: float, *about: int) -> None:
        # What has been written already interrupts this one at its beginning.
        started = max(started, self._ends[rank])
        ended = max(started, ended)
        self._ends[rank] = ended
        self._rings.setdefault(rank, Ring()).write(KINDS.index(kind), started, ended, ended - started, *about)

    def end(self) -> None:
        """Write the spans into the run's directory."""
        remove(self._directory)
        for rank, role in enumerate(self._roles.names()):
            if not save(self._directory, (rank, role, self._roles.hosts[rank]), self._rings.get(rank), self._kept):
                return
