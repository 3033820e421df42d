"""Which ranks share a node's memory."""

from __future__ import annotations

import os
from typing import Any

from mpi4py import MPI

from mpidl.launch.environment import number

#: Variable with a number of ranks: windows and doorbells take groups of that many ranks of a node for nodes, so that
#: traffic between nodes can be tested on one.
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
