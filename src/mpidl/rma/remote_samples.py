"""Samples in the memory of several nodes: those of other nodes are requested, and arrive as messages.

A batch sends one request to each node that has some of its samples: one worker there answers for its node. Workers
compute, and MPI moves nothing for a rank that doesn't call it: a thread of each worker sends requests, answers those of
others and receives the answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpidl.data.batch import outside
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.sends import PERIOD, Sends, pieces

#: Most samples of a request, and most bytes of their inputs, unless one sample has more.
ROWS, BYTES = 1024, 1 << 23
#: Numbers at the head of a request: the split's, and that of the samples, whose rows in the memory of the node follow.
HEAD = 2
#: Unsuccessful looks before the thread sleeps: some MPIs take in one message per look.
LOOKS = 3
#: Longest sleep in seconds of the thread while it waits for no answer.
IDLE_SLEEP = 500e-6


class SampleTag(IntEnum):
    """Kinds of messages."""

    REQUEST = 1
    INPUTS = 2
    TARGETS = 3


class NodeSamples(NamedTuple):
    """A node's part of a split, and the first sample of each node's part, with the end of the last one."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    starts: NDArray[np.int64]


class PendingBatch:
    """Memory for a batch of split `number`, the samples of each node together, until they have been used.

    The batch's samples are in `rows` of `inputs` and `targets`. `remote` has, for each of these rows, the row in the
    memory of the node that has it, and `stops` the end of each node's samples. `requests` are answers that have yet to
    arrive.
    """

    def __init__(self, number: int, part: NodeSamples, size: int, free: Callable[[PendingBatch], None]) -> None:
        self.number, self._free = number, free
        self.inputs, self.targets = (np.empty((size, *each.shape[1:]), each.dtype) for each in part[:2])
        self.rows, self.remote = np.empty(size, np.int64), np.empty(size, np.int64)
        self.stops = np.empty(len(part.starts) - 1, np.int64)
        self.requests: list[MPI.Request] = []
        self.arrived = threading.Event()

    def aim(self, indices: NDArray[np.int64], part: NodeSamples) -> None:
        """Prepare for these samples."""
        nodes = np.searchsorted(part.starts, indices, side="right") - 1
        order = np.argsort(nodes, kind="stable")
        self.rows[order] = np.arange(len(indices))
        np.subtract(indices[order], part.starts[nodes[order]], out=self.remote)
        np.cumsum(np.bincount(nodes, minlength=len(self.stops)), out=self.stops)
        self.arrived.clear()

    def result(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        self.arrived.wait()
        return self.inputs, self.targets, self.rows

    def release(self) -> None:
        self._free(self)


class RemoteStore:
    """The samples of one split; see `mpidl.data.cached.Store`."""

    def __init__(self, samples: RemoteSamples, number: int) -> None:
        self._samples, self._number = samples, number

    def ask(self, indices: NDArray[np.int64]) -> PendingBatch:
        return self._samples.ask(self._number, indices)


class RemoteSamples(Owner):
    """One worker's end of the exchange of samples; creation and `free` are collective over `comm`.

    `comm` has the workers of all nodes, and `nodes` the ranks of each. `parts` are those of this rank's node, complete
    on all nodes. MPI must allow calls from several threads. `guard` returns a context for the thread's work: an error
    there ends the job. `bytes_taken` counts samples requested from other nodes, and `bytes_allocated` the memory for
    batches under way.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        nodes: Sequence[Sequence[int]],
        parts: Sequence[NodeSamples],
        guard: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._comm: Any = comm.Dup()
        self._parts, self._guard = parts, guard
        ((self._node, place),) = [
            (node, ranks.index(comm.rank)) for node, ranks in enumerate(nodes) if comm.rank in ranks
        ]
        # Each worker of a node asks another one.
        self._asked_ranks = [ranks[place % len(ranks)] for ranks in nodes]
        own = len(nodes[self._node])
        others = (ranks for node, ranks in enumerate(nodes) if node != self._node)
        self._sources = [rank for ranks in others for each, rank in enumerate(ranks) if each % own == place]
        self._doorbells: Any = Doorbells(self._comm)
        self._sends = Sends(self._comm)
        self._free: dict[tuple[int, int], list[PendingBatch]] = {}
        self._asked: deque[PendingBatch] = deque()
        self._waiting: list[PendingBatch] = []
        self.bytes_taken = self.bytes_allocated = 0
        self._messages = np.empty((len(self._sources), HEAD + ROWS), np.int64)
        # MPICH may lose messages for a receive from any source where several threads call it.
        self._arrivals: Any = [self._receive(number) for number in range(len(self._sources))]
        self._ending = False
        self._all_end: Any = None
        self._looks = LOOKS
        self._thread = threading.Thread(target=self._run, name="mpidl samples", daemon=True)
        self._thread.start()

    def store(self, number: int) -> RemoteStore:
        """Return the samples of a split."""
        return RemoteStore(self, number)

    def ask(self, number: int, indices: NDArray[np.int64]) -> PendingBatch:
        """Ask for samples of split `number`; raise IndexError if there is no such sample."""
        part = self._parts[number]
        if indices.min() < 0 or indices.max() >= part.starts[-1]:
            raise outside(indices, 0, part.starts[-1])
        free = self._free.setdefault((number, len(indices)), [])
        asked = free.pop() if free else self._allocate(number, len(indices), free)
        asked.aim(indices, part)
        self._asked.append(asked)
        self._doorbells.ring(self._comm.rank)
        return asked

    def _allocate(self, number: int, size: int, free: list[PendingBatch]) -> PendingBatch:
        asked = PendingBatch(number, self._parts[number], size, free.append)
        self.bytes_allocated += asked.inputs.nbytes + asked.targets.nbytes
        return asked

    # The thread.

    def _run(self) -> None:
        with self._guard():
            while not self._ending or not self._has_ended():
                if self._work():
                    self._looks = LOOKS
                self._pause()

    def _work(self) -> bool:
        """Do the work that is due; return whether there was any."""
        worked = False
        while self._asked:
            self._request(self._asked.popleft())
            worked = True
        while arrived := MPI.Request.Testsome(self._arrivals):
            for number in arrived:
                self._answer(self._messages[number], self._sources[number])
                self._arrivals[number] = self._receive(number)
            worked = True
        self._sends.advance()
        for asked in tuple(self._waiting):
            if MPI.Request.Testall(asked.requests):
                self._waiting.remove(asked)
                asked.requests.clear()
                asked.arrived.set()
                worked = True
        return worked

    def _has_ended(self) -> bool:
        """Return whether no rank requests anything any more; until then, this rank answers."""
        if self._asked or self._waiting or self._sends:
            return False
        if self._all_end is None:
            self._all_end = self._comm.Ibarrier()
        return bool(self._all_end.Test())

    def _request(self, asked: PendingBatch) -> None:
        """Ask other nodes for their samples, then take those of this node."""
        part, start, own = self._parts[asked.number], 0, slice(0, 0)
        rows = max(1, min(ROWS, BYTES // max(1, asked.inputs[:1].nbytes)))
        for node, stop in enumerate(asked.stops.tolist()):
            if node == self._node:
                own = slice(start, stop)
            else:
                for first in range(start, stop, rows):
                    self._request_from(self._asked_ranks[node], asked, slice(first, min(stop, first + rows)))
            start = stop
        for values, out in ((part.inputs, asked.inputs[own]), (part.targets, asked.targets[own])):
            np.take(values, asked.remote[own], axis=0, out=out, mode="clip")
        self._waiting.append(asked)

    def _request_from(self, rank: int, asked: PendingBatch, place: slice) -> None:
        for values, tag in ((asked.inputs[place], SampleTag.INPUTS), (asked.targets[place], SampleTag.TARGETS)):
            asked.requests += [self._comm.Irecv(piece, rank, tag) for piece in pieces(values)]
            self.bytes_taken += values.nbytes
        rows = asked.remote[place]
        size = 8 * (HEAD + len(rows))
        lent = self._sends.borrow(size)
        message = lent[:size].view(np.int64)
        message[:HEAD], message[HEAD:] = (asked.number, len(rows)), rows
        self._sends.start(message, rank, SampleTag.REQUEST, lent)

    def _receive(self, number: int) -> MPI.Request:
        arrival: MPI.Request = self._comm.Irecv(
            [self._messages[number], MPI.BYTE], self._sources[number], SampleTag.REQUEST
        )
        return arrival

    def _answer(self, message: NDArray[np.int64], rank: int) -> None:
        """Send a rank the samples that its request names."""
        number, count = message[:HEAD]
        part, rows = self._parts[number], message[HEAD : HEAD + count]
        for values, tag in ((part.inputs, SampleTag.INPUTS), (part.targets, SampleTag.TARGETS)):
            size = len(rows) * values[:1].nbytes
            lent = self._sends.borrow(size)
            out = lent[:size].view(values.dtype).reshape(len(rows), *values.shape[1:])
            np.take(values, rows, axis=0, out=out, mode="clip")
            self._sends.start(out, rank, tag, lent)

    def _pause(self) -> None:
        """Sleep for a moment, or until there is work."""
        if self._looks:
            self._looks -= 1
            return
        waits = self._waiting or self._sends or self._ending
        if self._doorbells.sleep(PERIOD if waits else IDLE_SLEEP):
            self._doorbells.clear()
            self._looks = LOOKS

    def free(self) -> None:
        """Answer until no rank requests anything any more, and free everything; collective."""
        self._ending = True
        self._doorbells.ring(self._comm.rank)
        self._thread.join()
        for arrival in self._arrivals:
            arrival.Cancel()
            arrival.Wait()
        self._doorbells.free()
        comm = self._comm
        self._comm = self._doorbells = self._arrivals = Freed("the exchange of samples")
        comm.Free()
