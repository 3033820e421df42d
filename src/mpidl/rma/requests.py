"""Requests: messages by which ranks read and write each other's memory.

MPI keeps messages of a pair of ranks in order, so that data arrive before the counter that follows them, and answers in
the order of their requests. A request announces long data, which follow in a message of their own, straight into their
region; later requests of the same rank wait until they have arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from mpidl.rma.sends import Sends, pieces
from mpidl.rma.windows import OwnMemory, Region, Window


class RequestTag(IntEnum):
    """Kinds of messages."""

    REQUEST = 1
    DATA = 2
    ANSWER = 3
    LATER = 4  # the answer to a request that had to wait


class RequestKind(IntEnum):
    """Kinds of requests."""

    PUT = 0  # of the bytes that follow in the same message
    LONG_PUT = 1
    GET = 2
    FETCH_AND_OP = 3
    QUIESCE = 4  # nothing follows before all ranks have quiesced
    GET_WHEN = 5  # once a counter, an element of a region, is large enough


#: Numbers at the head of a request: operation, the region's number, offset in elements, bytes, operator, operand, and
#: the least value of a counter; of that, the region's number and the element take the places of operator and operand.
HEAD = 7
HEAD_BYTES = HEAD * 8
#: Bytes of the longest data that are sent with their request: MPI libraries send such messages at once.
SHORT = 2048
OPERATORS = (MPI.SUM, MPI.REPLACE, MPI.MAX, MPI.NO_OP)
#: Most requests that a rank carries out before it does other work: others may ask faster than it answers.
MOST = 64


#: What is called when another rank has changed a counter: the memory, the rank, region and offset, operand, and the
#: value before.
Changed: TypeAlias = "Callable[[Any, int, str, int, int, int], object]"


def ignored(*change: Any) -> None:
    """Follow no change of a counter."""


class Requester:
    """The requests of one rank, in its order; `message`, as uint8, receives the next.

    `waiting` has requests that wait for the long data at its head: receives that have begun, and copies of messages.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.message = rank, np.empty(HEAD_BYTES + SHORT, np.uint8)
        self.waiting: deque[Any] = deque()


class Requests:
    """Carries out the requests of other `ranks` on this rank's memory.

    Long data arrive in pieces of `piece` bytes. `quiesced` is the number of announcements, from any rank, that nothing
    follows. `changed` is called for each counter that another rank has changed.
    """

    def __init__(
        self, comm: MPI.Intracomm, ranks: Sequence[int], memory: Window | OwnMemory,
        regions: Mapping[str, Region], sends: Sends, piece: int, changed: Changed = ignored,
    ) -> None:  # fmt: skip
        self._comm, self._memory, self._own, self._sends, self._piece = comm, memory, comm.rank, sends, piece
        self._regions, self._names = list(regions.values()), list(regions)
        self._sources = [Requester(rank) for rank in ranks]
        self._receives = [self._receive(source) for source in self._sources]
        self._waiting: list[Requester] = []
        self._later = Later(memory.memory, ranks)
        self._value, self._before = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.quiesced = 0
        self._changed = changed

    def _receive(self, source: Requester) -> MPI.Request:
        return self._comm.Irecv([source.message, MPI.BYTE], source.rank, RequestTag.REQUEST)

    def serve(self) -> bool:
        """Carry out the requests that have arrived, up to `MOST`; return whether there were any."""
        taken = 0
        while taken < MOST and (arrived := MPI.Request.Testsome(self._receives)):
            taken += len(arrived)
            for number in arrived:
                self._take(self._sources[number])
                self._receives[number] = self._receive(self._sources[number])
        served = taken > 0
        for source in tuple(self._waiting):
            served |= self._go_on(source)
        for rank, values in self._later.take():
            self._sends.start(values, rank, RequestTag.LATER)
            served = True
        return served

    def _take(self, source: Requester) -> None:
        """Carry out a request, or let it wait for those before it."""
        head = source.message[:HEAD_BYTES].view(np.int64).tolist()
        if head[0] == RequestKind.LONG_PUT:
            if not source.waiting:
                self._waiting.append(source)
            data = pieces(self._bytes(head), self._piece)
            source.waiting.extend(self._comm.Irecv(piece, source.rank, RequestTag.DATA) for piece in data)
        elif source.waiting and head[0] != RequestKind.GET_WHEN:  # It only waits for a counter.
            source.waiting.append((head, source.message.copy()))
        else:
            self._carry_out(source, head, source.message)

    def _go_on(self, source: Requester) -> bool:
        """Continue with requests that wait for long data, if these have arrived; return whether they have."""
        served = False
        while source.waiting:
            first = source.waiting[0]
            if isinstance(first, MPI.Request):
                if not first.Test():
                    return served
            else:
                self._carry_out(source, *first)
            source.waiting.popleft()
            served = True
        self._waiting.remove(source)
        return served

    def _bytes(self, head: list[int]) -> np.ndarray:
        region = self._regions[head[1]]
        start = region.displacement + head[2] * region.dtype.itemsize
        return self._memory.memory[start : start + head[3]]

    def _carry_out(self, source: Requester, head: list[int], message: np.ndarray) -> None:
        operation, region, offset, size, operator, operand, least = head
        if operation == RequestKind.PUT:
            self._bytes(head)[:] = message[HEAD_BYTES : HEAD_BYTES + size]
        elif operation == RequestKind.GET:
            self._sends.start(self._bytes(head), source.rank, RequestTag.ANSWER)
        elif operation == RequestKind.GET_WHEN:
            counter = self._regions[operator].displacement + operand * self._value.itemsize
            self._later.add(source.rank, counter, least, self._bytes(head))
        elif operation == RequestKind.FETCH_AND_OP:
            self._value[0] = operand
            place = (self._own, self._names[region], offset, OPERATORS[operator])
            self._memory.fetch_and_op(self._value, self._before, *place)
            self._memory.flush(self._own)
            self._changed(self._memory, source.rank, self._names[region], offset, operand, int(self._before[0]))
            answer = self._sends.borrow(8)
            answer[:8] = self._before.view(np.uint8)
            self._sends.start(answer[:8], source.rank, RequestTag.ANSWER, answer)
        else:
            self.quiesced += 1

    def free(self) -> None:
        """Cancel the receives of further requests."""
        for request in self._receives:
            request.Cancel()
            request.Wait()


class Later:
    """Answers to other ranks that wait for counters in this rank's memory.

    Answers to one rank leave in the order in which it asked, so that only the first one has to be looked at.

    `memory` is uint8, aligned to 8 bytes; `ranks` may ask.
    """

    def __init__(self, memory: np.ndarray, ranks: Sequence[int]) -> None:
        self._counters = memory[: memory.size // 8 * 8].view(np.int64)
        self._answers = {rank: deque[tuple[int, int, np.ndarray]]() for rank in ranks}
        # The waiting ranks, in any order, and the counter and the value for which the first answer to each waits.
        self._ranks: list[int] = []
        self._places, self._least = np.zeros(len(ranks), np.intp), np.zeros(len(ranks), np.int64)

    def add(self, rank: int, counter: int, least: int, values: np.ndarray) -> None:
        """Let an answer to `rank`, with present values, wait until the int64 at byte `counter` is at least `least`."""
        answers = self._answers[rank]
        answers.append((counter // self._counters.itemsize, least, values))
        if len(answers) == 1:
            self._await(rank)

    def _await(self, rank: int) -> None:
        number = len(self._ranks)
        self._places[number], self._least[number], _ = self._answers[rank][0]
        self._ranks.append(rank)

    def take(self) -> list[tuple[int, np.ndarray]]:
        """Take out the answers that wait no longer: pairs of the receiving rank and the values."""
        found: list[tuple[int, np.ndarray]] = []
        count = len(self._ranks)
        if not count:
            return found
        (due,) = (self._counters[self._places[:count]] >= self._least[:count]).nonzero()
        for number in reversed(due.tolist()):
            rank, last = self._ranks[number], len(self._ranks) - 1
            self._ranks[number] = self._ranks[last]
            self._places[number], self._least[number] = self._places[last], self._least[last]
            self._ranks.pop()
            answers = self._answers[rank]
            while answers and self._counters[answers[0][0]] >= answers[0][1]:
                found.append((rank, answers.popleft()[2]))
            if answers:
                self._await(rank)
        return found
