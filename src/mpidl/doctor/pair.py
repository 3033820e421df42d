"""A pair of ranks: the origin measures its puts into and gets from the target."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from mpi4py import MPI

from mpidl.rma.nodes import neighbours

T = TypeVar("T")

ORIGIN, TARGET = 0, 1


class Pair:
    """A communicator of two ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
        Communicator of size 2.

    Attributes
    ----------
    origin : bool
        Whether this rank measures.
    one_node : bool
        Whether both ranks are on the same node.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.origin = comm.rank == ORIGIN
        node = neighbours(comm)
        self.one_node = node.size == comm.size
        node.Free()

    def measure(self, action: Callable[[], T], serve: Callable[[], None] = lambda: None) -> T:
        """Run `action` on the origin while the target serves, as a server does; return the result on both ranks."""
        result: T
        if not self.origin:
            while not self.comm.Iprobe(ORIGIN):
                serve()
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
    """Return the seconds that each of `rounds` calls takes."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return times


def typical(action: Callable[[], object], rounds: int) -> float:
    """Return the median of the seconds that a call takes."""
    return median(seconds(action, rounds))
