"""Atomic counters in a window."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpidl.rma.windows import Window


class Counter:
    """One int64 of an int64 region, read and changed atomically by any rank.

    An aligned int64 is copied whole, so that reading it needs no atomic operation; see `place`.

    Parameters
    ----------
    window : Window
    rank : int
        The rank that holds the counter; it must keep calling MPI.
    name : str
        An int64 region of that rank.
    offset : int
        Which element of the region.
    """

    def __init__(self, window: Window, rank: int, name: str, offset: int = 0) -> None:
        self._window, self._rank, self._name, self._offset = window, rank, name, offset
        self._value = np.zeros(1, np.int64)
        self._before = np.zeros(1, np.int64)

    def _operate(self, value: int, op: MPI.Op) -> int:
        self._value[0] = value
        self._window.fetch_and_op(self._value, self._before, self._rank, self._name, self._offset, op)
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
        """Return the present value: by a Get, since other ranks' atomic operations don't hold it up."""
        self._window.get(self._value, self._rank, self._name, self._offset)
        self._window.flush(self._rank)
        return int(self._value[0])
