"""How fast the link between two nodes is, and in what pieces messages travel over it."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

#: Bytes of a trial, and their number; the first one makes the connection.
TRIAL, TRIALS = 1 << 20, 4
#: Seconds that a piece takes, and the bytes that it has at least and at most. What travels the other way may wait for
#: some pieces, and each of them costs a processor some work.
DURATION, LEAST, MOST = 2e-3, 128 << 10, 8 << 20


def piece_between(comm: MPI.Intracomm, far: int | None) -> int:
    """Return the bytes of the pieces in which long messages travel; collective. Rank 0 tries the link out for all.

    Parameters
    ----------
    comm : MPI.Intracomm
    far : int or None
        On rank 0: a rank that it reaches by messages, None if there is none.
    """
    far = comm.bcast(far)
    if far is None:
        return MOST
    data, question, fastest = np.zeros(TRIAL, np.uint8), np.zeros(1, np.uint8), float("inf")
    for _ in range(TRIALS):
        if comm.rank == 0:
            began = time.perf_counter()
            comm.Send(question, far)
            comm.Recv(data, far)
            fastest = min(fastest, time.perf_counter() - began)
        elif comm.rank == far:
            comm.Recv(question, 0)
            comm.Send(data, 0)
    piece: int = comm.bcast(int(min(max(LEAST, TRIAL / fastest * DURATION), MOST)))
    return piece
