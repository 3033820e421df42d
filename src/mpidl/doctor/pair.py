"""Two ranks: the origin measures, the target is put to and got from."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from mpi4py import MPI

T = TypeVar("T")

ORIGIN, TARGET = 0, 1


class Pair:
    """A communicator of two ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of size 2.

    Attributes
    ----------
    origin : bool
        Whether this rank is the one that measures.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.origin = comm.rank == ORIGIN
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.one_node = node.size == comm.size
        node.Free()

    def measure(self, action: Callable[[], T]) -> T:
        """Let the origin act while the target keeps calling MPI, as a server does; return the result on both."""
        if not self.origin:
            while not self.comm.Iprobe(ORIGIN):
                pass
            result, error = self.comm.recv(source=ORIGIN)
            if error is not None:
                raise error
            return result
        try:
            result = action()
        except Exception as error:
            self.comm.send((None, RuntimeError(str(error))), TARGET)
            raise
        self.comm.send((result, None), TARGET)
        return result


def seconds(action: Callable[[], object], rounds: int) -> list[float]:
    """Return how long each of some calls took."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return times


def typical(action: Callable[[], object], rounds: int) -> float:
    """Return the median of how long calls take."""
    return median(seconds(action, rounds))
