"""Everything that a set of ranks shares through MPI: communicator, doorbells, window, and what lies in the window.

It is owned in this one place so that it can be freed and made anew, for other ranks or other shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.parameters.ranges import Range
from mpidl.rma import status
from mpidl.rma.backoff import BLIND_SLEEP, RUNG_SLEEP, Backoff
from mpidl.rma.clocks import Clocks
from mpidl.rma.counters import Counter
from mpidl.rma.doorbells import Doorbells, cores
from mpidl.rma.geometry import Geometry
from mpidl.rma.mailboxes import Inbox, Outbox
from mpidl.rma.scheduling import run_promptly, sharpen_sleeps
from mpidl.rma.shared import SharedVectors
from mpidl.rma.staging import Staging
from mpidl.rma.windows import Window
from mpidl.topology.roles import Roles
from mpidl.wire import Wire

#: Seconds that a rank spins before it sleeps, if it has a core of its own.
SPIN = 50e-6
#: Elements of a server's `orders` region, written by the coordinator.
ORDER_NUMBER, ORDER_STEP, ORDER_LEAVE = range(3)
#: Elements of a server's `clock` region: updates applied, and chunks received.
CLOCK, RECEIVED = range(2)


class Fabric:
    """The shared memory of one job; creation and `free` are collective over `comm`.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that `roles` speaks of; duplicated.
    roles : Roles
    shards : list of Range
        What each server holds or, without servers, each worker.
    dtype : dtype
        Of the parameters.
    evaluations : int
        How many epochs can be evaluated.
    shared : int
        How many vectors of parameters the workers share in their node's memory; 0 for none.
    wire : Wire, optional
        How pushes are encoded.
    allocation : {"allocate", "create"}
        See `Window`.
    chunk_bytes : int
        See `mailboxes.Geometry`.
    units : int
        The most units that a coordinator's evaluation has; 0 where there are none.
    notice : int
        Elements of what the coordinator tells workers of it.
    staging : Staging, optional
        See `Window`.

    Attributes
    ----------
    workers : list of int
        World rank of each worker.
    peers : MPI.Intracomm or None
        On a worker of a job without servers: the workers.
    shared, updates : SharedVectors or None
        On a worker, if they share memory: the vectors, and one count for each worker.
    crowded : bool
        Whether there are more ranks than cores.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        roles: Roles,
        shards: list[Range],
        dtype: Any,
        evaluations: int,
        allocation: str = "allocate",
        shared: int = 0,
        wire: Wire | None = None,
        chunk_bytes: int | None = None,
        units: int = 0,
        notice: int = 0,
        staging: Staging | None = None,
    ) -> None:
        self.units, self._notice = units, notice
        self.comm = comm.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.roles, self.shards = roles, shards
        self.workers = [replica[0] for replica in roles.replicas]
        options = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
        self.geometries = [Geometry.of(shard, len(self.workers), dtype, wire, **options) for shard in shards]
        self.doorbells = Doorbells(self.comm)
        self.window = Window(self.comm, self._regions(np.dtype(dtype), evaluations), allocation, staging)
        # Windows in the shared memory of one node need no progress from their targets, so these may sleep until rung.
        self._direct = self.doorbells.alone and allocation == "allocate"
        self.crowded = self.comm.size > cores()
        self.peers = self._join_peers()
        self.shared = self.updates = None
        if shared and self.peers is not None:
            self.shared = SharedVectors(self.peers, shared, shards[-1].stop, dtype)
            self.updates = SharedVectors(self.peers, 1, len(self.workers), np.int64)
        sharpen_sleeps()
        if self.comm.rank == roles.coordinator or self.comm.rank in roles.servers:
            run_promptly()

    def _join_peers(self) -> MPI.Intracomm | None:
        if self.roles.servers or self.comm.rank not in self.workers:
            return None
        group = self.comm.Get_group().Incl(self.workers)
        return self.comm.Create_group(group)

    def _regions(self, dtype: np.dtype, evaluations: int) -> dict[str, tuple[Any, int]]:
        rank = self.comm.rank
        if rank == self.roles.coordinator:
            regions = status.regions(len(self.workers), len(self.shards), evaluations)
            if self.units:
                regions |= {"evaluation": (np.int64, self._notice), "copies": (np.int64, self.units)}
            return regions
        if rank in self.roles.servers:
            number = self.roles.servers.index(rank)
            return {
                "parameters": (dtype, self.shards[number].size),
                "clock": (np.int64, 2),
                "orders": (np.int64, 3),
                **({"done": (np.uint8, self.units)} if self.units else {}),
                **self.geometries[number].regions(),
            }
        return {}

    def backoff(self, longest: float = RUNG_SLEEP) -> Backoff:
        """Return a back-off for this rank's waiting: it sleeps up to `longest` where everybody can ring."""
        sleep = longest if self._direct else BLIND_SLEEP
        return Backoff(self.comm, self.doorbells, sleep, 0.0 if self.crowded else SPIN)

    def tickets(self) -> Counter:
        """Return the counter that hands out portions."""
        return Counter(self.window, self.roles.coordinator, "desk", status.Desk.TICKETS)

    def signals(self) -> Counter:
        """Return the counter of ranks that a signal asked to stop."""
        return Counter(self.window, self.roles.coordinator, "desk", status.Desk.SIGNALS)

    def clocks(self, worker: int) -> Clocks:
        """Return the replicas' clocks, of which one is this worker's."""
        return Clocks(self.window, self.roles.coordinator, "clocks", worker, len(self.workers))

    def outboxes(self, worker: int) -> list[Outbox]:
        """Return the worker's ends of its rings, one for each server."""
        pairs = zip(self.roles.servers, self.geometries, strict=True)
        return [Outbox(self.window, rank, worker, geometry, self.doorbells) for rank, geometry in pairs]

    def inbox(self, server: int) -> Inbox:
        """Return the server's end of the rings of all workers."""
        return Inbox(self.window, self.geometries[server], self.workers, self.doorbells)

    def row(self, name: str, index: int) -> status.Row:
        """Return a worker's or server's row on the board."""
        return status.Row(self.window, self.roles.coordinator, name, index, self.doorbells)

    def free(self) -> None:
        """Give everything back; collective."""
        for vectors in (self.shared, self.updates):
            if vectors is not None:
                vectors.free()
        if self.peers is not None:
            self.peers.Free()
        self.window.free()
        self.doorbells.close()
        self.comm.Free()
