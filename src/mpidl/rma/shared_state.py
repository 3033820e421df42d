"""What the ranks of a transport share: communicators, doorbells, the window and its regions.

All of it is owned here, so that it can be freed and made anew, for other ranks or other shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.rma import differences, mailboxes
from mpidl.rma.backoff import POLLING_SLEEP, RUNG_SLEEP, Backoff
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.messages import MessageWindow
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.scheduling import crowded, run_promptly, sharpen_sleeps
from mpidl.rma.shared_vectors import SharedVectors
from mpidl.rma.staging import Staging
from mpidl.rma.verbs import RemoteMemory
from mpidl.rma.windows import Window, allocation_chosen
from mpidl.topology.roles import Relay, Roles
from mpidl.transport.capacity import Capacity
from mpidl.transport.protocol import (
    NOTICE,
    PLACES,
    SERVER_STATUS,
    WORKER_STATUS,
    Control,
    Row,
    ShardClock,
    evaluation,
)

#: Seconds that a rank spins before it sleeps, if it has a core of its own.
SPIN = 50e-6


class SharedState(Owner):
    """One rank's part of what a transport shares; creation and `free` are collective over `comm`.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that `roles` speaks of; duplicated.
    roles : Roles
    capacity : Capacity
    allocation : {"allocate", "create"}, optional
        How window memory is obtained; see `Window`. The environment's choice if not given.
    staging : Staging, optional
        See `Window`.
    way : {"windows", "messages", "mixed", "auto"}
        How ranks reach each other's memory; see `mpidl.config.topology.TopologySection`.

    Attributes
    ----------
    comm : MPI.Intracomm
    window : RemoteMemory
    doorbells : Doorbells
    peers : MPI.Intracomm or None
        On a worker of a job without servers: the workers with the same partition of their replicas.
    geometries : list of MailboxGeometry
        The mailboxes of each shard, at its server.
    workers : list of int
        See `Transport`.
    replicas, partitions : int
        Number of replicas, and of ranks of each.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        roles: Roles,
        capacity: Capacity,
        allocation: str | None = None,
        staging: Staging | None = None,
        way: str = "windows",
    ) -> None:
        allocation = allocation_chosen() if allocation is None else allocation
        self.comm: Any = comm.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size, self.roles, self.capacity = comm.rank, comm.size, roles, capacity
        self.workers = [rank for replica in roles.replicas for rank in replica]
        self.replicas, self.partitions = len(roles.replicas), len(roles.replicas[0])
        rings = len(roles.pushers())
        self.geometries = [capacity.mailboxes(number, rings) for number in range(len(capacity.shards))]
        self._relay = next((relay for relay in roles.relays if relay.rank == self.rank), None)
        self.doorbells = Doorbells(self.comm)
        self.window = self._open(way, allocation, staging)
        # Windows in the shared memory of one node need no progress from their targets, so these may sleep until rung.
        self._direct = self.doorbells.alone and allocation == "allocate" and way != "messages"
        self._serves = self.rank in (roles.coordinator, *roles.servers) or self._relay is not None
        self.crowded = crowded(self.comm)
        self.peers: Any = self._join_peers()
        self._shared: list[SharedVectors] = []
        if capacity.shared_vectors and self.peers is not None:
            size = capacity.shards[-1].stop
            self._shared.append(SharedVectors(self.peers, capacity.shared_vectors, size, capacity.dtype))
            self._shared.append(SharedVectors(self.peers, len(self.workers) + 1, len(Row) + 2 * PLACES, np.int64))
        sharpen_sleeps()
        if self._serves:
            run_promptly()

    def _open(self, way: str, allocation: str, staging: Staging | None) -> RemoteMemory:
        if way == "windows" or (way != "messages" and self.doorbells.alone):
            return Window(self.comm, self._regions(), allocation, staging)
        asked_by = None if self._relay is None else {self.roles.coordinator, *self._relay.workers}
        return MessageWindow(self.comm, self._regions(), way != "messages", allocation, staging, asked_by)

    def _join_peers(self) -> MPI.Intracomm | None:
        if self.roles.servers or self.rank not in self.workers:
            return None
        partition = self.workers.index(self.rank) % self.partitions
        group = self.comm.Get_group().Incl([replica[partition] for replica in self.roles.replicas])
        peers: MPI.Intracomm = self.comm.Create_group(group)
        return peers

    def _regions(self) -> dict[str, tuple[Any, int]]:
        """Return what this rank offers in the window."""
        capacity, units = self.capacity, self.capacity.units
        if self.rank == self.roles.coordinator:
            regions: dict[str, tuple[Any, int]] = {
                "control": (np.int64, len(Control)),
                "clocks": (np.int64, self.replicas),
                "workers": (WORKER_STATUS, len(self.workers)),
                "servers": (SERVER_STATUS, len(capacity.shards)),
                "relays": (WORKER_STATUS, len(self.roles.relays)),
                "sums": (np.float64, len(self.workers) * capacity.sums),
                "evaluations": (evaluation(capacity.figures), capacity.evaluations),
                "evaluated": (np.int64, capacity.evaluations),
            }
            return regions | ({"notice": (np.int64, NOTICE), "copies": (np.int64, units)} if units else {})
        if self.rank in self.roles.servers:
            regions = {"control": (np.int64, len(Control)), **({"done": (np.uint8, units)} if units else {})}
            for shard in capacity.held_by(self.roles.servers.index(self.rank)):
                regions |= {
                    f"parameters/{shard}": (capacity.dtype, capacity.shards[shard].size),
                    f"clock/{shard}": (np.int64, len(ShardClock)),
                    **mailboxes.regions(self.geometries[shard], shard),
                }
                if (wire := capacity.wire_fetch) is not None:
                    fetchers, part = len(self.roles.fetchers()), capacity.shards[shard]
                    regions |= differences.regions(fetchers, part, capacity.dtype, wire, shard, capacity.statistics)
            return regions
        if self._relay is not None:
            return self._regions_of_relay(self._relay)
        return {}

    def _regions_of_relay(self, relay: Relay) -> dict[str, tuple[Any, int]]:
        """Return what a relay offers to its workers: what a server would that had all shards, and the coordinator."""
        count = len(relay.workers)
        found: dict[str, tuple[Any, int]] = {
            "control": (np.int64, len(Control)),
            "workers": (WORKER_STATUS, count),
            "sums": (np.float64, count * self.capacity.sums),
        }
        for number, geometry in enumerate(self.capacity.relay_mailboxes(relay)):
            found |= {
                f"parameters/{number}": (self.capacity.dtype, self.capacity.shards[number].size),
                f"clock/{number}": (np.int64, len(ShardClock)),
                **mailboxes.regions(geometry, number, relayed=True),
            }
        return found

    @property
    def shards(self) -> Sequence[Any]:
        return self.capacity.shards

    @property
    def chunks(self) -> list[int]:
        return [geometry.chunk for geometry in self.geometries]

    @property
    def shared_vectors(self) -> list[np.ndarray]:
        return list(self._shared[0].vectors) if self._shared else []

    @property
    def shared_rows(self) -> np.ndarray:
        return np.array(0) if not self._shared else self._shared[1].vectors

    def backoff(self, longest: float | None = None) -> Backoff:
        sleep = POLLING_SLEEP
        if self._direct:
            sleep = RUNG_SLEEP if longest is None else longest
        return Backoff(self.comm, self.window, self.doorbells, sleep, 0.0 if self.crowded else SPIN)

    def quiesce(self) -> None:
        self.window.quiesce()

    def free(self) -> None:
        """Give everything back; collective."""
        for shared in self._shared:
            shared.free()
        if self.peers is not None:
            self.peers.Free()
        self.window.free()
        self.doorbells.free()
        comm = self.comm
        self.comm = self.peers = Freed("the transport")
        comm.Free()
