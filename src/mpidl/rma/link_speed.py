"""The speed of the link between two nodes, and the transfer chunk size that follows from it."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

#: Bytes of a trial, and their number; the first one makes the connection.
TRIAL, TRIALS = 1 << 20, 4
#: Seconds of a piece's transfer, beside the negotiation of the next one, and its fewest and most bytes. Messages in the
#: other direction may wait for some pieces, and each of them costs processor time.
DURATION, LEAST, MOST = 2e-3, 128 << 10, 8 << 20


def piece_between(comm: MPI.Intracomm, far: int | None) -> int:
    """Return the transfer chunk size in bytes; collective. Rank 0 measures the link for all.

    `far` is a rank that rank 0 reaches by messages, or None if there is none.
    """
    far = comm.bcast(far)
    if far is None:
        return MOST
    round_trip = _fastest(comm, far, np.zeros(1, np.uint8))
    seconds = _fastest(comm, far, np.zeros(TRIAL, np.uint8))
    piece: int = comm.bcast(bytes_of_piece(round_trip, seconds))
    return piece


def bytes_of_piece(round_trip: float, seconds: float) -> int:
    """Return the number of bytes of a piece.

    Both times begin with a short message: the `round_trip` ends with the answer, `seconds` with the end of a trial's
    bytes, on which MPI agrees by another round trip.
    """
    speed = TRIAL / max(seconds - 2 * round_trip, seconds / 8)
    return int(min(max(LEAST, speed * (DURATION + 2 * round_trip)), MOST))


def _fastest(comm: MPI.Intracomm, far: int, data: np.ndarray) -> float:
    """Return the seconds in which `far` answers by `data`, the fewest of some trials; meaningless but on rank 0."""
    question, fastest = np.zeros(1, np.uint8), float("inf")
    for _ in range(TRIALS):
        if comm.rank == 0:
            began = time.perf_counter()
            comm.Send(question, far)
            comm.Recv(data, far)
            fastest = min(fastest, time.perf_counter() - began)
        elif comm.rank == far:
            comm.Recv(question, 0)
            comm.Send(data, 0)
    return fastest
