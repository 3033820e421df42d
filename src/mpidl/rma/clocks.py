"""Clocks of all replicas, in one rank's window: each advances its own and reads all."""

from __future__ import annotations

import numpy as np

from mpidl.rma.windows import Window

#: The clock of a replica that has no more data: it holds nobody up.
STOPPED = np.iinfo(np.int64).max


class Clocks:
    """One element of an int64 region for each replica.

    Parameters
    ----------
    window : Window
    rank : int
        The rank that holds the clocks; it must keep calling MPI.
    name : str
        An int64 region of that rank.
    index : int
        Which clock is this replica's own.
    count : int
        How many there are.
    """

    def __init__(self, window: Window, rank: int, name: str, index: int, count: int) -> None:
        self._window, self._rank, self._name, self._index = window, rank, name, index
        self._own = np.zeros(1, np.int64)
        self._all = np.zeros(count, np.int64)

    @property
    def own(self) -> int:
        """This replica's clock."""
        return int(self._own[0])

    def advance(self) -> None:
        """Let this replica's clock be one more."""
        self._set(self.own + 1)

    def stop(self) -> None:
        """Let nobody wait for this replica any more."""
        self._set(STOPPED)

    def _set(self, value: int) -> None:
        self._own[0] = value
        self._window.put(self._own, self._rank, self._name, self._index)
        self._window.flush(self._rank)

    def slowest(self) -> int:
        """Return the least of all clocks."""
        self._window.get(self._all, self._rank, self._name)
        self._window.flush(self._rank)
        return int(self._all.min())
