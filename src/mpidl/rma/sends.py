"""Messages on their way: the memory from which they are sent, the size of their pieces, a thread that advances them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

#: Bytes of the pieces into which longer transfers are cut: MPI's counts are C ints on many paths.
LONGEST_MESSAGE = 1 << 30
#: Bytes of the longest message that doesn't wait for those before it.
SHORT = 4096
#: Pieces in MPI's hands at a time for one rank: it negotiates the next one while one travels.
AT_A_TIME = 2


def pieces(values: Any, longest: int | None = None) -> list[list[Any]]:
    """Return contiguous values as arguments of MPI's transfers, none longer than `longest`, `LONGEST_MESSAGE` bytes."""
    size, longest = values.nbytes, longest or LONGEST_MESSAGE
    if size <= longest:
        return [[values, size, MPI.BYTE]]
    data = MPI.buffer.frombuffer(values)
    parts = [data[start : start + longest] for start in range(0, size, longest)]
    return [[part, part.nbytes, MPI.BYTE] for part in parts]


class Sent(NamedTuple):
    """A piece of a message: the arguments of MPI's send, its tag and destination.

    `lent` is borrowed memory that is free once this piece has left; if `held`, its values must not change until then.
    `long` says whether it belongs to a message that isn't short.
    """

    piece: list[Any]
    tag: int
    to: Outgoing
    lent: np.ndarray | None
    held: bool
    long: bool


class Outgoing:
    """The messages on their way to one rank.

    `queued` pieces have not been passed to MPI yet. `given` counts the pieces of long messages that have, and have not
    left; `held` those whose values must not change, queued ones included.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.queued = rank, deque[Sent]()
        self.given = self.held = 0


class Sends:
    """Starts sends, and keeps the memory of each until it has left.

    Long messages travel in pieces, of which few are passed to MPI at a time: it negotiates each with the receiver, and
    these negotiations, and messages in the other direction, wait behind everything that has been passed before.
    Messages of one tag arrive in order. Memory is borrowed in sizes of powers of two and reused, so that its amount is
    the largest that was ever on its way.

    Receivers know the bytes of a `piece`. By default, all messages are passed to MPI at once, in as few pieces as
    possible.
    """

    def __init__(self, comm: MPI.Intracomm, piece: int | None = None) -> None:
        self._comm, self._piece = comm, piece
        self._at_a_time = sys.maxsize if piece is None else AT_A_TIME
        self._outgoing: dict[int, Outgoing] = {}
        self._requests: list[MPI.Request] = []
        self._sent: list[Sent] = []
        self._free: dict[int, list[np.ndarray]] = {}

    def __bool__(self) -> bool:
        """Whether any message is on its way; otherwise, none is queued."""
        return bool(self._requests)

    def borrow(self, size: int) -> np.ndarray:
        """Return memory for at least `size` bytes, to be passed to `start`."""
        order = max(size - 1, 1).bit_length()
        free = self._free.setdefault(order, [])
        return free.pop() if free else np.empty(1 << order, np.uint8)

    def start(self, values: Any, rank: int, tag: int, lent: np.ndarray | None = None) -> None:
        """Start sending `values`, which lie in the borrowed memory `lent` or don't change."""
        outgoing = self._outgoing.get(rank)
        if outgoing is None:
            outgoing = self._outgoing[rank] = Outgoing(rank)
        parts, held = pieces(values, self._piece), lent is None
        outgoing.held += len(parts) * held
        if len(parts) == 1 and values.nbytes <= SHORT and not any(each.tag == tag for each in outgoing.queued):
            self._give(Sent(parts[0], tag, outgoing, lent, held, False))
            return
        last = len(parts) - 1
        for number, part in enumerate(parts):
            outgoing.queued.append(Sent(part, tag, outgoing, lent if number == last else None, held, True))
        self._give_queued(outgoing)

    def _give_queued(self, outgoing: Outgoing) -> None:
        """Pass as many queued pieces to MPI as allowed."""
        while outgoing.queued and outgoing.given < self._at_a_time:
            self._give(outgoing.queued.popleft())

    def _give(self, sent: Sent) -> None:
        self._requests.append(self._comm.Isend(sent.piece, sent.to.rank, sent.tag))
        self._sent.append(sent)
        sent.to.given += sent.long

    def holds(self, rank: int) -> bool:
        """Return whether values for `rank` that must not change had not all left at the last `advance`."""
        return rank in self._outgoing and self._outgoing[rank].held > 0

    def advance(self) -> None:
        """Advance sends, and take back the memory of those that have left."""
        while self._requests and (done := MPI.Request.Testsome(self._requests)):
            gone, left = set(done), [self._sent[number] for number in done]
            self._requests = [each for number, each in enumerate(self._requests) if number not in gone]
            self._sent = [each for number, each in enumerate(self._sent) if number not in gone]
            for sent in left:
                sent.to.given -= sent.long
                sent.to.held -= sent.held
                if sent.lent is not None:
                    self._free[sent.lent.nbytes.bit_length() - 1].append(sent.lent)
            for sent in left:
                self._give_queued(sent.to)


#: Bytes of a trial, and their number; the first one makes the connection.
TRIAL, TRIALS = 1 << 20, 4
#: Seconds of a piece's transfer, beside the negotiation of the next one, and its fewest and most bytes. Messages in the
#: other direction may wait for some pieces, and each of them costs processor time.
PIECE_SECONDS, SHORTEST_PIECE, LONGEST_PIECE = 2e-3, 128 << 10, 8 << 20


def piece_between(comm: MPI.Intracomm, far: int | None) -> int:
    """Return the transfer chunk size in bytes; collective. Rank 0 measures the link for all.

    `far` is a rank that rank 0 reaches by messages, or None if there is none.
    """
    far = comm.bcast(far)
    if far is None:
        return LONGEST_PIECE
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
    return int(min(max(SHORTEST_PIECE, speed * (PIECE_SECONDS + 2 * round_trip)), LONGEST_PIECE))


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


#: Seconds between two looks while messages are on their way.
PERIOD = 100e-6


class ProgressThread:
    """Takes steps from `wake` on until there is nothing to do, and sleeps otherwise.

    `step` calls MPI, which must allow calls from several threads, and returns whether there is more to do. No step
    follows one that fails, with `error`.
    """

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step, self._awake, self._ended = step, threading.Event(), False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mpidl messages", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Take steps until there is nothing to do."""
        self._awake.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._awake.wait() and not self._ended:
                self._awake.clear()
                while self._step():
                    time.sleep(PERIOD)
        except Exception as error:
            self.error = error
