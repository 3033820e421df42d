"""The transport: the shared objects of a job's ranks, and the link of each role."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from mpidl.launch.shared_memory import check_free, of_windows
from mpidl.rma.coordinator import CoordinatorLink
from mpidl.rma.fetches import ShardReader
from mpidl.rma.nodes import neighbours
from mpidl.rma.regions import regions
from mpidl.rma.server import ServerLink
from mpidl.rma.shared_state import SharedState
from mpidl.rma.windows import allocation_chosen, place
from mpidl.rma.worker import WorkerLink
from mpidl.transport.routes import Routes
from mpidl.wire import Differences, ErrorFeedback


class Transport(SharedState):
    """The shared objects of a job's ranks; see `SharedState` for its parameters.

    Creation and `free` are collective; it is a context manager. Roles and engines take their links from it and keep
    their own state elsewhere, so that they can be bound to another transport.
    """

    def read_present(self, parameters: np.ndarray) -> None:
        """Read what evaluations read of all shards from their servers, as it is now, into the flat vector."""
        servers = [each for partition in range(self.partitions) for each in self.routes.servers(partition)]
        parts = [slice(*self.capacity.shards[each.shard]) for each in servers]
        reader = ShardReader(self.window, servers, parts, self.capacity.evaluated)
        reader.start(parameters)
        reader.finish()

    def worker(
        self, number: int, feedback: Sequence[ErrorFeedback] = (), copies: Sequence[Differences] = ()
    ) -> WorkerLink:
        """Return the link of worker `number`; see `WorkerLink` for the parameters."""
        return WorkerLink(self, number, feedback, copies)

    def server(self, number: int) -> ServerLink:
        """Return the link of shard `number`, on the server that holds it."""
        return ServerLink(self, number)

    def coordinator(self) -> CoordinatorLink:
        """Return the coordinator's link."""
        return CoordinatorLink(self)


#: Bytes for shared counters, and what MPI keeps beside a window.
SMALL = 1 << 18
#: Open MPI requires this factor of what it uses.
MARGIN = 1.05


def check_window_space(comm: MPI.Intracomm, routes: Routes, way: str = "windows") -> None:
    """Check that window memory fits into each node's shared memory; collective.

    Raise MpidlError on a node where it doesn't: MPI libraries are killed by SIGBUS on writing to memory that is not
    there.
    """
    node = neighbours(comm)
    needed, alone = node.allreduce(_needed(comm.rank, routes, way)), node.size == 1
    node.Free()
    if alone:
        return  # MPI then takes private memory
    remedy = (
        "remove leftover files there, enlarge it (in a container: --shm-size), use more nodes, or set "
        "MPIDL_WINDOWS=create"
    )
    check_free(of_windows(), int(needed * MARGIN), "memory of the windows", remedy)


def _needed(rank: int, routes: Routes, way: str) -> int:
    """Return the bytes of shared memory that a rank takes."""
    roles, capacity = routes.roles, routes.capacity
    needed = SMALL
    if way != "messages" and allocation_chosen() == "allocate":
        needed += place(regions(routes, rank))[1]
    if not roles.servers and rank == roles.replicas[0][0]:
        needed += capacity.shared_vectors * capacity.shards[-1].stop * np.dtype(capacity.dtype).itemsize
    return needed
