"""The memory of a rank that shares it with no other: the verbs of a window of one rank, without MPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.rma.windows import PAGE, place


class OwnMemory:
    """A `mpidl.rma.verbs.RemoteMemory` that this rank alone reaches; all operations are complete at once.

    `shapes` has the dtype and the count of each region; `memory` is all of them, as uint8.
    """

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

    def flush(self, rank: int) -> None: ...

    def fence(self, rank: int) -> None: ...

    def sync(self) -> None: ...

    def free(self) -> None:
        self.memory = np.empty(0, np.uint8)
