"""Memory that all ranks of one node map into their address space, for loads and stores without MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.rma.ownership import Freed, Owner


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
