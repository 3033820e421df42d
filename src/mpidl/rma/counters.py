"""Atomic counters in a window."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpidl.rma.verbs import RemoteMemory

#: Whether a Get copies an aligned int64 (see `place`) whole. On shared memory Intel MPI's copies it in halves, about
#: once in 100,000 times between two changes.
WHOLE_GETS = MPI.get_vendor()[0] != "Intel MPI"


class Counter:
    """One int64 of an int64 region, read and changed atomically by any rank.

    It is element `offset` of the region `name` of `rank`, which must keep calling MPI.
    """

    def __init__(self, window: RemoteMemory, rank: int, name: str, offset: int = 0) -> None:
        self._window, self._rank, self._name, self._offset = window.to(rank), rank, name, offset
        self._value = np.zeros(1, np.int64)
        self._before = np.zeros(1, np.int64)

    def _start(self, value: int, op: MPI.Op) -> None:
        self._value[0] = value
        self._window.fetch_and_op(self._value, self._before, self._rank, self._name, self._offset, op)

    def _operate(self, value: int, op: MPI.Op) -> int:
        self._start(value, op)
        return self.finish()

    def start_add(self, amount: int = 1) -> None:
        """Start a `fetch_add`; call `finish` before any other method."""
        self._start(amount, MPI.SUM)

    def finish(self) -> int:
        """Wait for the operation that was started, and return the value before."""
        self._window.flush(self._rank)
        return int(self._before[0])

    def fetch_add(self, amount: int = 1) -> int:
        """Add `amount` and return the value before."""
        return self._operate(amount, MPI.SUM)

    def swap(self, value: int) -> int:
        """Set the counter and return the value before."""
        return self._operate(value, MPI.REPLACE)

    def raise_to(self, value: int) -> int:
        """Set the counter unless it is greater already, and return the value before."""
        return self._operate(value, MPI.MAX)

    def read(self) -> int:
        """Return the present value, by a Get where one is whole: no atomic operations delay it."""
        if not WHOLE_GETS:
            return self._operate(0, MPI.NO_OP)
        self._window.get(self._value, self._rank, self._name, self._offset)
        self._window.flush(self._rank)
        return int(self._value[0])
