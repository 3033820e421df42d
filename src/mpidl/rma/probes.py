"""Tests of two ranks' access to each other's memory: its correctness, and each operation by itself."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpidl.rma.counters import Counter
from mpidl.rma.messages import MessageWindow
from mpidl.rma.ownership import Owner
from mpidl.rma.verbs import RemoteMemory
from mpidl.rma.windows import Window

#: Elements of the region of counters.
ANNOUNCED, CONSUMED = range(2)


class WindowProbe(Owner):
    """Memory in which two ranks offer the same; creation and `free` are collective.

    Rank 0 of the two measures, rank 1 is the target. Each offers `size` int64 elements twice: data, and an answer. The
    `way` "messages" uses a `MessageWindow`; the others are ways to allocate a `Window`.
    """

    def __init__(self, comm: MPI.Intracomm, size: int, way: str) -> None:
        self._comm, self._size, self._partner = comm, size, 1 - comm.rank
        shapes = {"counters": (np.int64, 2), "data": (np.int64, size), "answer": (np.int64, size)}
        self._window: RemoteMemory
        if way == "messages":
            self._window = MessageWindow(comm, shapes, mixed=False)
        else:
            self._window = Window(comm, shapes, way)
        self._target = self._window.to(self._partner)
        self._arrived = np.zeros(1, np.int64)
        self._counter = Counter(self._window, 1, "counters", ANNOUNCED)

    def put(self, values: np.ndarray) -> None:
        """Write int64 `values` into the partner's data, and wait until they are there."""
        self._target.put(values, self._partner, "data")
        if isinstance(self._window, MessageWindow):
            self._target.get(self._arrived, self._partner, "counters", CONSUMED)
        self._target.flush(self._partner)

    def get(self, values: np.ndarray) -> None:
        """Read the partner's data into int64 `values`."""
        self._target.get(values, self._partner, "data")
        self._target.flush(self._partner)

    def fetch_add(self) -> None:
        """Add to a counter of rank 1."""
        self._counter.fetch_add()

    def serve(self) -> None:
        """Advance the partner's operations."""
        self._comm.Iprobe()
        self._window.serve()

    def carries_values(self) -> bool:
        """Return, on both ranks, whether each one's puts arrive and its gets return what arrived."""
        own, back = np.arange(self._size) + 10 * self._comm.rank, np.zeros(self._size, np.int64)
        self.put(own)
        self._window.quiesce()
        self.get(back)
        self._window.quiesce()
        arrived = np.arange(self._size) + 10 * self._partner
        right = np.array_equal(back, own) and np.array_equal(self._window.local("data"), arrived)
        return bool(self._comm.allreduce(bool(right), op=MPI.LAND))

    def overtakes(self, rounds: int) -> tuple[int, int]:
        """Return, on both ranks, in how many rounds a counter was seen before the data that it announces.

        The two numbers are those of rounds with wrong data put by rank 0, and with wrong data that it got.
        """
        turn = self._write if self._comm.rank == 0 else self._read
        wrong = sum(turn(number) for number in range(1, rounds + 1))
        self._window.quiesce()
        gets, puts = self._comm.allgather(wrong)
        return puts, gets

    def _write(self, number: int) -> bool:
        """Put data and announce them, as a worker does; return whether the target reports errors."""
        data, counter, answer = np.full(self._size, number), np.array([number]), np.zeros(self._size, np.int64)
        self._target.put(data, self._partner, "data")
        self._target.fence(self._partner)
        self._target.put(counter, self._partner, "counters", ANNOUNCED)
        self._target.fence(self._partner)
        counter[0] = 0
        while counter[0] < number:
            self._target.get(counter, self._partner, "counters", CONSUMED)
            self._target.flush(self._partner)
        self._target.get(answer, self._partner, "answer")
        self._target.flush(self._partner)
        return bool((answer != number).any())

    def _read(self, number: int) -> bool:
        """Wait for data, as a server does, and announce others; return whether the data are wrong."""
        counters, answer = self._window.local("counters"), self._window.local("answer")
        while counters[ANNOUNCED] < number:
            self.serve()
            self._window.sync()
        wrong = bool((self._window.local("data") != number).any())
        answer[:] = number
        self._window.sync()
        counters[CONSUMED] = number
        self._window.sync()
        return wrong

    def free(self) -> None:
        """Free the window; collective."""
        self._window.free()
