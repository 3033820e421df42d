"""An MPI window whose memory is cut into named regions, different on each rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.errors import MpidlError
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.staging import Staging

#: MPI counts are C ints on many paths: longer transfers are cut into pieces of this many bytes.
LONGEST_MESSAGE = 1 << 30
CACHE_LINE = 64
PAGE = 4096

#: The ways of getting window memory. MPI_Win_allocate lets MPI choose shared memory and is the fastest; MPI_Alloc_mem
#: + MPI_Win_create avoids faults that some MPI releases have in the former.
ALLOCATIONS = ("allocate", "create")


def allocation_chosen() -> str:
    """Return the way of getting window memory: the environment's ``MPIDL_WINDOWS``, "allocate" or "create"."""
    return os.environ.get("MPIDL_WINDOWS", "allocate")


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region lies in its rank's window, in bytes."""

    dtype: np.dtype
    displacement: int
    size: int


def place(shapes: Mapping[str, tuple[Any, int]]) -> tuple[dict[str, Region], int]:
    """Place regions one behind the other, large ones on page and small ones on cache-line boundaries.

    Parameters
    ----------
    shapes : mapping of name to (dtype, count)

    Returns
    -------
    regions : dict of name to Region
    size : int
        Bytes that the window needs, whole pages: MPI may place one rank's memory right behind another's.
    """
    regions, end = {}, 0
    for name, (kind, count) in shapes.items():
        dtype = np.dtype(kind)
        alignment = PAGE if dtype.itemsize * count >= PAGE else CACHE_LINE
        start = -(-end // alignment) * alignment
        regions[name] = Region(dtype, start, dtype.itemsize * count)
        end = start + dtype.itemsize * count
    return regions, -(-end // PAGE) * PAGE


class Window(Owner):
    """A window over all ranks of a communicator, open for passive-target access from creation to `free`.

    Creation and `free` are collective. Offsets and counts are in elements of the region's dtype. Nothing that
    `put`, `get` or `fetch_and_op` starts is complete before `flush`.

    Parameters
    ----------
    comm : MPI.Intracomm
    shapes : mapping of name to (dtype, count)
        The regions that this rank offers; other ranks may offer others.
    allocation : {"allocate", "create"}
        MPI_Win_allocate, or MPI_Alloc_mem + MPI_Win_create.
    staging : Staging, optional
        On a rank with vectors on a device: how they travel.

    Raises
    ------
    MpidlError
        The MPI library offers no unified memory model: a local store would not become visible to remote reads.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shapes: Mapping[str, tuple[Any, int]],
        allocation: str = "allocate",
        staging: Staging | None = None,
    ) -> None:
        regions, size = place(shapes)
        if allocation not in ALLOCATIONS:
            raise ValueError(f"allocation: {allocation!r}, known: {', '.join(ALLOCATIONS)}")
        self._rank, self._staging = comm.rank, staging
        self._allocated: MPI.buffer | None = None
        if allocation == "allocate":
            self._window: Any = MPI.Win.Allocate(size, 1, comm=comm)
        else:
            self._allocated = MPI.Alloc_mem(max(size, 1))
            self._window = MPI.Win.Create(self._allocated if size else None, 1, comm=comm)
        self._window.Set_errhandler(MPI.ERRORS_RETURN)
        if self._window.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
            raise MpidlError("this MPI's windows keep a private copy of their memory; mpidl needs the unified model")
        memory: Any = self._allocated if self._allocated is not None else self._window.tomemory()
        self._memory = np.frombuffer(memory, np.uint8)
        self._memory[:size] = 0
        self._regions: Any = comm.allgather(regions)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self.sync()
        comm.Barrier()

    def region(self, rank: int, name: str) -> Region:
        """Return where the region `name` of `rank` lies."""
        region: Region = self._regions[rank][name]
        return region

    def local(self, name: str) -> np.ndarray:
        """Return this rank's region as a 1-D array on the window's memory."""
        region = self._regions[self._rank][name]
        return self._memory[region.displacement : region.displacement + region.size].view(region.dtype)

    def put(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        """Start writing contiguous `values`, the host's or a device's, into a region of `rank`."""
        region = self._regions[rank][name]
        if self._staging is not None:
            values = self._staging.outgoing(values, rank)
        self._transfer(self._window.Put, values, rank, region.displacement + offset * region.dtype.itemsize)

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        """Start reading a part of a region of `rank` into contiguous `values`, the host's or a device's."""
        region = self._regions[rank][name]
        if self._staging is not None:
            values = self._staging.incoming(values, rank)
        self._transfer(self._window.Get, values, rank, region.displacement + offset * region.dtype.itemsize)

    def _transfer(self, operation: Any, values: Any, rank: int, displacement: int) -> None:
        size = values.nbytes
        if size <= LONGEST_MESSAGE:
            operation((values, size, MPI.BYTE), rank, (displacement, size, MPI.BYTE))
            return
        data = MPI.buffer.frombuffer(values)
        for start in range(0, size, LONGEST_MESSAGE):
            piece = data[start : start + LONGEST_MESSAGE]
            operation((piece, piece.nbytes, MPI.BYTE), rank, (displacement + start, piece.nbytes, MPI.BYTE))

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        """Start an atomic operation on one int64; `before` receives the value it had."""
        region = self._regions[rank][name]
        self._window.Fetch_and_op(value, before, rank, region.displacement + offset * region.dtype.itemsize, op)

    def flush(self, rank: int) -> None:
        """Complete every operation on `rank`, here and there."""
        self._window.Flush(rank)
        if self._staging is not None:
            self._staging.flushed(rank)

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        """Return `values`, or a copy if they are a device's, valid until `rank` is flushed."""
        return values if self._staging is None else self._staging.on_host(values, rank)

    def sync(self) -> None:
        """Order local loads and stores on window memory with what other ranks read and write."""
        self._window.Sync()

    def free(self) -> None:
        """Close and free the window; collective. Arrays from `local` are invalid afterwards."""
        window = self._window
        window.Unlock_all()
        self._window = self._regions = Freed("the window")
        self._memory = np.empty(0, np.uint8)
        window.Free()
        if self._allocated is not None:
            MPI.Free_mem(self._allocated)
            self._allocated = None
