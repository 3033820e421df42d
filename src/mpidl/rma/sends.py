"""Messages on their way, and the memory that they are sent from."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

#: MPI counts are C ints on many paths: longer transfers are cut into pieces of this many bytes.
LONGEST_MESSAGE = 1 << 30


def pieces(values: Any) -> list[list[Any]]:
    """Return contiguous values as arguments of MPI's transfers, none longer than `LONGEST_MESSAGE`."""
    size = values.nbytes
    if size <= LONGEST_MESSAGE:
        return [[values, size, MPI.BYTE]]
    data = MPI.buffer.frombuffer(values)
    parts = [data[start : start + LONGEST_MESSAGE] for start in range(0, size, LONGEST_MESSAGE)]
    return [[part, part.nbytes, MPI.BYTE] for part in parts]


class Sends:
    """Starts sends, and keeps the memory of each until it has left.

    Memory is borrowed in sizes of powers of two and used again, so that there is as much of it as was ever on its way
    at a time.

    Parameters
    ----------
    comm : MPI.Intracomm
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._requests: list[MPI.Request] = []
        self._lent: list[np.ndarray | None] = []
        # The rank that values travel to from where they are; else -1.
        self._held_for: list[int] = []
        self._free: dict[int, list[np.ndarray]] = {}

    def __bool__(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._requests)

    def borrow(self, size: int) -> np.ndarray:
        """Return memory for at least `size` bytes, to be given to `start`."""
        order = max(size - 1, 1).bit_length()
        free = self._free.setdefault(order, [])
        return free.pop() if free else np.empty(1 << order, np.uint8)

    def start(self, values: Any, rank: int, tag: int, lent: np.ndarray | None = None) -> None:
        """Start sending `values`, which lie in the borrowed memory `lent` or stay as they are."""
        for piece in pieces(values):
            self._requests.append(self._comm.Isend(piece, rank, tag))
            self._lent.append(None)
            self._held_for.append(rank if lent is None else -1)
        self._lent[-1] = lent

    def holds(self, rank: int) -> bool:
        """Return whether values that stay where they are had not all left for `rank` at the last `advance`."""
        return rank in self._held_for

    def advance(self) -> None:
        """Let sends go on, and take back the memory of those that have left."""
        if not self._requests:
            return
        done = MPI.Request.Testsome(self._requests)
        if not done:
            return
        left = set(done)
        for number in done:
            lent = self._lent[number]
            if lent is not None:
                self._free[lent.nbytes.bit_length() - 1].append(lent)
        self._requests = [each for number, each in enumerate(self._requests) if number not in left]
        self._lent = [each for number, each in enumerate(self._lent) if number not in left]
        self._held_for = [each for number, each in enumerate(self._held_for) if number not in left]
