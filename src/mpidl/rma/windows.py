"""An MPI window whose memory is cut into named regions, different on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from mpidl.errors import MpidlError
from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.sends import LONGEST_MESSAGE, pieces
from mpidl.rma.staging import Staging
from mpidl.rma.verbs import RemoteMemory

CACHE_LINE = 64
PAGE = 4096

#: The ways of allocating window memory. "allocate" stands for MPI_Win_allocate_shared on one node, and for
#: MPI_Win_allocate on several; MPI_Alloc_mem + MPI_Win_create avoids faults of some MPI releases in these.
ALLOCATIONS = ("allocate", "create")


def allocation_chosen() -> str:
    """Return the way of allocating window memory: the environment's ``MPIDL_WINDOWS``, "allocate" or "create"."""
    return os.environ.get("MPIDL_WINDOWS", "allocate")


class Region(Struct, frozen=True):
    """The place of a region in its rank's window, in bytes."""

    dtype: np.dtype
    displacement: int
    size: int


def place(shapes: Mapping[str, tuple[Any, int]]) -> tuple[dict[str, Region], int]:
    """Place regions one behind the other, large ones on page and small ones on cache-line boundaries.

    Return them by name, and the bytes that the window needs, whole pages: MPI may place one rank's memory right behind
    another's.
    """
    regions, end = {}, 0
    for name, (kind, count) in shapes.items():
        dtype = np.dtype(kind)
        alignment = PAGE if dtype.itemsize * count >= PAGE else CACHE_LINE
        start = -(-end // alignment) * alignment
        regions[name] = Region(dtype, start, dtype.itemsize * count)
        end = start + dtype.itemsize * count
    return regions, -(-end // PAGE) * PAGE


def _on_one_node(comm: MPI.Intracomm) -> bool:
    """Return whether all ranks are on this rank's node; collective."""
    node = neighbours(comm)
    alone = node.size == comm.size
    node.Free()
    return bool(comm.allreduce(alone, op=MPI.LAND))


class Window(Owner, RemoteMemory):
    """A window over all ranks of a communicator, open for passive-target access from creation to `free`.

    `shapes` has the dtype and the count of each region that this rank offers; other ranks may offer others. `memory` is
    all of them, as uint8. The `allocation` is one of `ALLOCATIONS`. `staging` transfers vectors on a device, on a rank
    that has them. MpidlError is raised if the MPI library offers no unified memory model: a local store would not
    become visible to remote reads.

    `ranks` are the numbers by which the verbs call the ranks of `comm`: by default, those that they have there.

    `shared` says whether all ranks are on one node and map each other's memory, which then outlives the process that
    made it.
    """

    supports_deferred_get, piece = False, LONGEST_MESSAGE

    def __init__(
        self,
        comm: MPI.Intracomm,
        shapes: Mapping[str, tuple[Any, int]],
        allocation: str = "allocate",
        staging: Staging | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        regions, size = place(shapes)
        if allocation not in ALLOCATIONS:
            raise ValueError(f"allocation: {allocation!r}, known: {', '.join(ALLOCATIONS)}")
        self._comm: Any = comm
        ranks = range(comm.size) if ranks is None else ranks
        self._numbers = {rank: number for number, rank in enumerate(ranks)}
        self._rank, self._staging = ranks[comm.rank], staging
        self._allocated: MPI.buffer | None = None
        self.shared = allocation == "allocate" and _on_one_node(comm)
        if self.shared:
            info = MPI.Info.Create({"alloc_shared_noncontig": "true"})
            self._window: Any = MPI.Win.Allocate_shared(size, 1, info, comm)
            info.Free()
        elif allocation == "allocate":
            self._window = MPI.Win.Allocate(size, 1, comm=comm)
        else:
            self._allocated = MPI.Alloc_mem(max(size, 1))
            self._window = MPI.Win.Create(self._allocated if size else None, 1, comm=comm)
        self._window.Set_errhandler(MPI.ERRORS_RETURN)
        if self._window.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
            raise MpidlError("this MPI's windows keep a private copy of their memory; mpidl needs the unified model")
        memory: Any = self._allocated if self._allocated is not None else self._window.tomemory()
        self.memory = np.frombuffer(memory, np.uint8)
        self.memory[:size] = 0
        self._regions: Any = dict(zip(ranks, comm.allgather(regions), strict=True))
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self.sync()
        comm.Barrier()

    def region(self, rank: int, name: str) -> Region:
        """Return the place of the region `name` of `rank`."""
        region: Region = self._regions[rank][name]
        return region

    def local(self, name: str) -> np.ndarray:
        region = self._regions[self._rank][name]
        return self.memory[region.displacement : region.displacement + region.size].view(region.dtype)

    def to(self, rank: int) -> Window:
        return self

    def as_rank(self, rank: int) -> Window:
        if not self.shared:
            raise ValueError(f"the memory of rank {rank} is not shared")
        twin = copy(self)
        memory: Any = self._window.Shared_query(self._numbers[rank])[0]
        twin._rank, twin.memory = rank, np.frombuffer(memory, np.uint8)
        return twin

    def put(self, values: Any, rank: int, name: str, offset: int = 0, *, zero_copy: bool = False) -> None:
        region = self._regions[rank][name]
        if self._staging is not None:
            values = self._staging.outgoing(values, rank)
        place = region.displacement + offset * region.dtype.itemsize
        self._transfer(self._window.Put, values, self._numbers[rank], place)

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        region = self._regions[rank][name]
        if self._staging is not None:
            values = self._staging.incoming(values, rank)
        place = region.displacement + offset * region.dtype.itemsize
        self._transfer(self._window.Get, values, self._numbers[rank], place)

    def _transfer(self, operation: Any, values: Any, number: int, displacement: int) -> None:
        for piece in pieces(values):
            operation(piece, number, (displacement, piece[1], MPI.BYTE))
            displacement += piece[1]

    def get_when(self, values: Any, rank: int, name: str, offset: int, counter: str, element: int, least: int) -> None:
        raise ValueError(f"rank {rank} is reached through a window, which answers at once")

    def watch(self, rank: int, name: str, element: int, least: int) -> Callable[[], bool]:
        value = np.zeros(1, np.int64)

        def reached() -> bool:
            self.get(value, rank, name, element)
            self.flush(rank)
            return bool(value[0] >= least)

        return reached

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        region = self._regions[rank][name]
        place = region.displacement + offset * region.dtype.itemsize
        self._window.Fetch_and_op(value, before, self._numbers[rank], place, op)

    def fence(self, rank: int) -> None:
        """Complete all operations, here and there."""
        self.flush(rank)

    def flush(self, rank: int) -> None:
        """Complete all operations, here and there."""
        self._window.Flush(self._numbers[rank])
        if self._staging is not None:
            self._staging.flushed(rank)

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        return values if self._staging is None else self._staging.on_host(values, rank)

    def sync(self) -> None:
        self._window.Sync()

    def serve(self) -> bool:
        """Return False: MPI serves a window whenever it is called."""
        return False

    def attended(self) -> AbstractContextManager[None]:
        return nullcontext()

    def quiesce(self) -> None:
        self._comm.Barrier()
        self.sync()

    def free(self) -> None:
        window = self._window
        window.Unlock_all()
        self._window = self._regions = self._comm = Freed("the window")
        self.memory = np.empty(0, np.uint8)
        window.Free()
        if self._allocated is not None:
            MPI.Free_mem(self._allocated)
            self._allocated = None


class OwnMemory:
    """A `mpidl.rma.verbs.RemoteMemory` that this rank alone reaches; all operations are complete at once.

    `shapes` has the dtype and the count of each region; `memory` is all of them, as uint8.
    """

    supports_deferred_get, piece = False, LONGEST_MESSAGE

    def __init__(self, shapes: Mapping[str, tuple[Any, int]]) -> None:
        self._regions, size = place(shapes)
        memory = np.zeros(size + PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        self.memory = memory[start : start + size]

    def local(self, name: str) -> np.ndarray:
        region = self._regions[name]
        return self.memory[region.displacement : region.displacement + region.size].view(region.dtype)

    def put(self, values: Any, rank: int, name: str, offset: int = 0, *, zero_copy: bool = False) -> None:
        self._part(values, name, offset)[:] = values.reshape(-1).view(np.uint8)

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        values.reshape(-1).view(np.uint8)[:] = self._part(values, name, offset)

    def _part(self, values: Any, name: str, offset: int) -> np.ndarray:
        region = self._regions[name]
        start = region.displacement + offset * region.dtype.itemsize
        return self.memory[start : start + values.nbytes]

    def watch(self, rank: int, name: str, element: int, least: int) -> Callable[[], bool]:
        counter = self.local(name)
        return lambda: bool(counter[element] >= least)

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        element = self.local(name)[offset : offset + 1]
        before[0] = element[0]
        if op == MPI.SUM:
            element += value
        elif op == MPI.REPLACE:
            element[:] = value
        elif op == MPI.MAX:
            np.maximum(element, value, out=element)

    def to(self, rank: int) -> OwnMemory:
        return self

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        host: np.ndarray = values
        return host

    def flush(self, rank: int) -> None: ...

    def fence(self, rank: int) -> None: ...

    def sync(self) -> None: ...

    def free(self) -> None:
        self.memory = np.empty(0, np.uint8)
