"""Which ranks share a node's memory."""

from __future__ import annotations

import os
from typing import Any

from mpi4py import MPI

from mpidl.launch.environment import number

#: Variable that makes of a node's ranks several nodes of so many ranks each, as far as windows and doorbells go: tests
#: of what travels between nodes run where there is one.
RANKS_PER_NODE = "MPIDL_RANKS_PER_NODE"


def neighbours(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the ranks that are on this rank's node; collective, and to be freed."""
    node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
    if RANKS_PER_NODE in os.environ:
        whole = node
        node = whole.Split(whole.rank // number(os.environ, RANKS_PER_NODE, least=1))
        whole.Free()
    shared: MPI.Intracomm = node
    return shared
