"""Checks that a node's shared memory has space for the windows of its ranks."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpidl.launch.shared_memory import check_free, of_windows
from mpidl.rma.nodes import neighbours
from mpidl.rma.regions import regions
from mpidl.rma.windows import allocation_chosen, place
from mpidl.transport.routes import Routes

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
