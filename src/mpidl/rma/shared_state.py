"""The shared objects of a transport: communicators, doorbells, the window and its regions.

They are owned here, so that they can be freed and made anew, for other ranks or other shards.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from mpidl.rma.backoff import POLLING_SLEEP, RUNG_SLEEP, Backoff, Turn, crowded, run_promptly, sharpen_sleeps
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.messages import MessageWindow
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.regions import regions
from mpidl.rma.staging import Staging
from mpidl.rma.takings import note
from mpidl.rma.verbs import RemoteMemory
from mpidl.rma.windows import Window, allocation_chosen
from mpidl.topology.roles import Roles
from mpidl.transport.capacity import Capacity
from mpidl.transport.protocol import PLACES, Row
from mpidl.transport.routes import Routes
from mpidl.wire import ErrorFeedback

#: Seconds that a rank spins before it sleeps, if it has a core of its own.
SPIN = 50e-6


class SharedState(Owner):
    """One rank's part of a transport's shared objects; creation and `free` are collective over `comm`.

    `comm` is duplicated. `allocation` and `staging` are those of `Window`; the environment chooses the allocation by
    default. `way` is the access to other ranks' memory; see `mpidl.config.cluster.TopologySection`. `routes` are by
    default those to the servers and the coordinator.

    `processes`, int64 (ranks,), has the process that plays each rank, as its number in `comm`: its own, unless another
    has taken it over. It is looked up for every message. Threads of a process that plays several ranks call MPI in
    `turn`.

    `peers` is, on a worker of a job without servers, the workers with the same partition of their replicas, else None.
    `geometries` has the mailboxes of each shard, at its server. `workers` has the rank of each: those of the first
    replica in the order of its partitions, then those of the next, ... `crowded` says whether the ranks of this node
    outnumber the cores that they may run on. `shared` has the vectors that this node's workers share, if they do, and
    their rows; see `protocol.Row`.
    """

    def __init__(
        self, comm: MPI.Intracomm, roles: Roles, capacity: Capacity, allocation: str | None = None,
        staging: Staging | None = None, way: str = "windows", routes: Routes | None = None,
        processes: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        allocation = allocation_chosen() if allocation is None else allocation
        self.comm: Any = comm.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.roles, self.capacity = comm.rank, roles, capacity
        self.routes = Routes(roles, capacity) if routes is None else routes
        self.processes = np.arange(comm.size) if processes is None else processes
        self.workers, self.geometries = self.routes.workers, self.routes.geometries
        self.partitions = len(roles.replicas[0])
        self.doorbells, self.turn = Doorbells(self.comm), Turn()
        self.window = self._open(way, allocation, staging)
        # Windows in the shared memory of one node need no progress from their targets, so these may sleep until rung.
        self._direct = self.doorbells.alone and allocation == "allocate" and way != "messages"
        self.crowded = crowded(self.comm)
        self.peers: Any = self._join_peers()
        self.shared: list[SharedVectors] = []
        if capacity.shared_vectors and self.peers is not None:
            size = capacity.shards[-1].stop
            self.shared.append(SharedVectors(self.peers, capacity.shared_vectors, size, capacity.dtype))
            self.shared.append(SharedVectors(self.peers, len(self.workers) + 1, len(Row) + 2 * PLACES, np.int64))
        sharpen_sleeps()
        if self.rank in (roles.coordinator, *roles.servers, *roles.intermediaries):
            run_promptly()

    def _open(self, way: str, allocation: str, staging: Staging | None) -> RemoteMemory:
        if way == "windows" or (way != "messages" and self.doorbells.alone):
            return Window(self.comm, regions(self.routes, self.rank), allocation, staging)
        askers = self.routes.askers(self.rank)
        own, changed = regions(self.routes, self.rank), partial(note, self.workers)
        return MessageWindow(self.comm, own, way != "messages", allocation, staging, askers, changed)

    def _join_peers(self) -> MPI.Intracomm | None:
        if self.roles.servers or self.rank not in self.workers:
            return None
        partition = self.workers.index(self.rank) % self.partitions
        group = self.comm.Get_group().Incl([replica[partition] for replica in self.roles.replicas])
        peers: MPI.Intracomm = self.comm.Create_group(group)
        return peers

    def as_rank(self, rank: int) -> Self:
        """Return these objects as another rank of this node has them, whose process has ended.

        Raise ValueError if its memory isn't shared.
        """
        twin = copy(self)
        twin.rank, twin.window = rank, self.window.as_rank(rank)
        twin.doorbells = self.doorbells.as_rank(rank)
        return twin

    def vectors(self, shard: int) -> dict[str, np.ndarray]:
        """Return the memory of a shard's vectors by their names, on the rank of its server."""
        return {name: self.window.local(f"{name}/{shard}") for name in self.capacity.vectors}

    def encodes(self, rank: int) -> bool:
        """Return whether this rank and a server encode what they exchange, in a job that encodes."""
        return self.capacity.within_nodes or not self.doorbells.near(rank)

    def encoder(self, rank: int, feedback: ErrorFeedback | None) -> ErrorFeedback | None:
        """Return the encoder of pushes to a server; one with a residual is needed until that has been pushed."""
        whole = feedback is None or not (self.encodes(rank) or feedback.wire.rows > 1 or feedback.residual.any())
        return None if whole else feedback

    def backoff(self, longest: float | None = None) -> Backoff:
        """Return a back-off for this rank that sleeps up to `longest` seconds where every rank can wake it."""
        sleep = POLLING_SLEEP
        if self._direct:
            sleep = RUNG_SLEEP if longest is None else longest
        return Backoff(self.comm, self.window, self.doorbells, sleep, 0.0 if self.crowded else SPIN, self.turn)

    def quiesce(self) -> None:
        """Wait for all ranks, serving them, until all their writes have arrived; collective.

        A rank that others reach calls it before it waits for them in any other way.
        """
        self.window.quiesce()

    def free(self) -> None:
        """Free everything; collective."""
        for shared in self.shared:
            shared.free()
        if self.peers is not None:
            self.peers.Free()
        self.window.free()
        self.doorbells.free()
        comm = self.comm
        self.comm = self.peers = Freed("the transport")
        comm.Free()


class SharedVectors(Owner):
    """`count` vectors of `size` elements, 0 at first, shared by the ranks of one node; `free` is collective, too."""

    def __init__(self, comm: MPI.Intracomm, count: int, size: int, dtype: Any) -> None:
        length = count * size * np.dtype(dtype).itemsize
        self._window: Any = MPI.Win.Allocate_shared(length if comm.rank == 0 else 0, 1, comm=comm)
        memory: Any = self._window.Shared_query(0)[0]
        self.vectors: Any = np.frombuffer(memory, dtype, count * size).reshape(count, size)
        if comm.rank == 0:
            self.vectors[...] = 0
        comm.Barrier()

    def free(self) -> None:
        """Free the memory; the vectors are invalid afterwards."""
        window = self._window
        self._window = self.vectors = Freed("the shared memory")
        window.Free()
