"""What each rank of a run does, for ``status.json``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.engines import monotonic
from mpidl.engines.virtual.cluster import VirtualReplica
from mpidl.engines.virtual.server import VirtualServer
from mpidl.history.lines import RankStatus
from mpidl.report.recorder import Recorder
from mpidl.topology.roles import Roles
from mpidl.transport.protocol import State

#: Shortest and longest time in seconds between two writings of the file, and ranks for which it may take a second more.
SHORTEST, LONGEST, RANKS = 1.0, 2.0, 1000
#: Names of the states of ranks.
STATES = {0: "starting", State.WORKING: "working", State.TRAINED: "trained", State.DONE: "done"}
#: Figures of the activities of a worker, by their names in a record's shares.
ACTIVITIES = {
    "computing": ("computing_seconds", "overhead_seconds"),
    "pushing": ("pushing_seconds",),
    "fetching": ("fetching_seconds",),
    "waiting": ("waiting_seconds",),
}


class StatusFile:
    """Writes a run's ``status.json`` anew, now and then; `every` is the time in seconds between two reports.

    Attributes
    ----------
    ranks : callable
        Returns what each rank does; set by the coordinator, or by a run in one process.
    """

    ranks: Callable[[], Sequence[RankStatus]] = staticmethod(list)

    def __init__(self, recorder: Recorder, every: float) -> None:
        self._recorder, self._every = recorder, min(max(every, SHORTEST), LONGEST)
        self._origin = {"pid": os.getpid(), "host": socket.gethostname()}
        self._due = 0.0

    def write_due(self, record: Callable[[], Mapping[str, Any]]) -> None:
        """Write what `record` returns, and what each rank does, if it is time to."""
        if monotonic.now() >= self._due:
            self.write(record())

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the last record, and what each rank does."""
        ranks = self.ranks()
        self._recorder.status({**self._origin, "record": record, "ranks": ranks})
        self._due = monotonic.now() + self._every + len(ranks) / RANKS


class PostedRanks:
    """Tells from what the ranks of a job have posted what each of them does.

    `shards` returns the numbers of the shards that a server holds.
    """

    def __init__(self, roles: Roles, shards: Callable[[int], Sequence[int]]) -> None:
        self._roles, self._names = roles, roles.names()
        self._hosts: Sequence[str | None] = roles.hosts or [None] * len(self._names)
        self._workers = [rank for replica in roles.replicas for rank in replica]
        self._shards = [list(shards(number)) for number in range(len(roles.servers))]
        # The time, the workers' samples, and the servers' pushes and sums of their staleness, at the last call.
        self._last: tuple[float, np.ndarray, np.ndarray, np.ndarray] | None = None
        self._staleness: list[float | None] = [None] * len(self._shards)

    def at(self, now: float, posted: Any, processes: Any, memory: int) -> list[RankStatus]:
        """Return the status of all ranks.

        Parameters
        ----------
        now : float
            In seconds of the run's clock.
        posted : mpidl.rma.coordinator.Posted
        processes : sequence or array of int
            The process that plays each rank.
        memory : int
            Bytes in memory of this process, the coordinator's.
        """
        found = [
            RankStatus(rank=rank, role=name, host=host, process=int(process))
            for rank, (name, host, process) in enumerate(zip(self._names, self._hosts, processes, strict=True))
        ]
        samples = posted.workers["samples"].astype(float)
        counts = np.array([posted.servers["staleness"][own].sum() for own in self._shards], float)
        sums = np.array([posted.servers["staleness_sum"][own].sum() for own in self._shards], float)
        before, self._last = self._last, (now, samples, counts, sums)
        self._describe_workers(found, now, posted.workers, samples, before)
        self._describe_servers(found, now, posted, counts, sums, before)
        for rank, row in zip(self._roles.intermediaries, posted.intermediaries, strict=True):
            found[rank].state, found[rank].memory = STATES[int(row["state"])], int(row["memory"]) or None
        coordinator = found[self._roles.coordinator]
        coordinator.state, coordinator.memory = STATES[int(posted.workers["state"].min())], memory or None
        return found

    def _describe_workers(self, found: list[RankStatus], now: float, rows: Any, samples: Any, before: Any) -> None:
        trained = rows["state"] >= State.TRAINED
        ends = np.where(trained & (rows["last_push"] > 0), rows["last_push"], now)
        seconds = np.where(rows["first_fetch"] > 0, ends - rows["first_fetch"] - rows["evaluation_seconds"], 0).clip(0)
        parts = np.array([sum(rows[name] for name in names) for names in ACTIVITIES.values()])
        whole = np.maximum(np.maximum(seconds, parts.sum(axis=0)), 1e-9)
        shares = np.vstack([parts / whole, 1 - (parts / whole).sum(axis=0)]).clip(0).round(4).T.tolist()
        rates = np.where(trained, samples / whole, np.nan)
        if before is not None and now > before[0]:
            rates = np.where(trained, rates, (samples - before[1]) / (now - before[0]))
        columns = (self._workers, rows["state"], rows["samples"], rates, seconds, rows["memory"])
        for each, measured, (rank, state, count, rate, time, memory) in zip(
            shares, parts[0] > 0, zip(*(np.asarray(column).tolist() for column in columns), strict=True), strict=True
        ):
            own = found[rank]
            own.state = STATES[state] if own.process == rank else "dead"
            own.samples, own.memory = count, memory or None
            own.samples_per_second = round(rate, 1) if own.process == rank and np.isfinite(rate) else None
            if measured:
                own.seconds, own.shares = round(time, 3), dict(zip((*ACTIVITIES, "rest"), each, strict=True))

    def _describe_servers(
        self, found: list[RankStatus], now: float, posted: Any, counts: Any, sums: Any, before: Any
    ) -> None:
        begun = posted.workers["first_fetch"][posted.workers["first_fetch"] > 0]
        trained = (posted.workers["state"] >= State.TRAINED).all()
        end = posted.workers["last_push"].max() if trained else now
        seconds = max(0.0, float(end - begun.min())) if begun.size else 0.0
        for number, rank in enumerate(self._roles.servers):
            own, rows = found[rank], posted.servers[self._shards[number]]
            own.state, own.queue = STATES[int(rows["state"].min())], int(rows["queue"].sum())
            own.memory = int(rows["memory"].max()) or None
            pushes, total = (counts[number], sums[number]) if before is None else (
                counts[number] - before[2][number], sums[number] - before[3][number]
            )  # fmt: skip
            if pushes > 0:
                self._staleness[number] = round(total / pushes, 3)
            own.staleness = self._staleness[number]
            _share(own, float(rows["busy_seconds"].max()), seconds)


def simulated(
    roles: Roles, replicas: Sequence[VirtualReplica], servers: Sequence[VirtualServer], seconds: float
) -> list[RankStatus]:
    """Return what is known of the ranks of a virtual cluster after a number of `seconds` of training."""
    found = [RankStatus(rank=rank, role=name, process=rank) for rank, name in enumerate(roles.names())]
    for replica, ranks in zip(replicas, roles.replicas, strict=False):
        for own in (found[rank] for rank in ranks):
            own.state = "working" if replica.active else "dead" if replica.died else "trained"
            own.samples = replica.samples
            _share(own, replica.seconds, seconds)
            if seconds > 0:
                own.samples_per_second = round(replica.samples / seconds, 1)
    for server, rank in zip(servers, roles.servers, strict=False):
        own, histogram = found[rank], server.shard.staleness
        own.queue, own.state = server.waiting, "working"
        if count := int(histogram.counts.sum()):
            own.staleness = round(histogram.sum / count, 3)
        _share(own, server.busy_seconds, seconds)
    return found


def _share(own: RankStatus, computing: float, seconds: float) -> None:
    """Set the shares of a rank's time, of which it has computed for a part."""
    if seconds > 0:
        part = round(min(1.0, computing / seconds), 4)
        own.seconds, own.shares = round(seconds, 3), {"computing": part, "rest": round(1 - part, 4)}
