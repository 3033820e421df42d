"""Fetches as encoded differences: the worker asks, and the server encodes what the worker's copy lacks.

Each worker has two counters for each of its shards, in the window of the server that holds it: `asked`, which the
worker sets, and `answered`, which the server sets to the same number once the answer lies in its window for the worker
to read. A server that supports deferred gets sends it then. The answer has all that the worker has pushed before it
asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.regions import of_shard
from mpidl.rma.verbs import RemoteMemory
from mpidl.wire import Differences, Wire


class DifferenceFetch:
    """A worker's end, for one shard.

    `worker` is the number of this worker among those that fetch the shard. A `copy` that has begun is sent to the
    server, which then follows it. `bytes` counts the values that have arrived.
    """

    def __init__(
        self, window: RemoteMemory, server: int, worker: int, copy: Differences, doorbells: Doorbells, shard: int
    ) -> None:
        self.window, self.server, self._worker, self._copy = window.to(server), server, worker, copy
        self._doorbells, self._names = doorbells, of_shard(shard)
        self._asked, self._answered = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._encoded = np.empty(copy.nbytes, np.uint8)
        self.bytes, self._comes = 0, self.window.supports_deferred_get
        if copy.begun:
            self.window.put(copy.values, server, self._names.copies, worker * copy.values.size)
            self.window.fence(server)

    def ask(self) -> None:
        """Ask for a difference or, the first time, for the whole shard: an odd number."""
        self._asked[0] = (self._asked[0] // 2 + 1) * 2 + (not self._copy.begun)
        self.window.put(self._asked, self.server, self._names.asked, self._worker)
        self.window.fence(self.server)
        self._doorbells.ring(self.server)
        if self._comes:
            number, counter = int(self._asked[0]), (self._names.answered, self._worker)
            self.window.get_when(*self._answer(), *counter, number)

    def _answer(self) -> tuple[np.ndarray, int, str, int]:
        """Return the destination of the answer, and its source: rank, region and offset."""
        copy, name = self._copy, self._names
        if copy.begun:
            return self._encoded, self.server, name.encoded, self._worker * copy.nbytes
        return copy.values, self.server, name.copies, self._worker * copy.values.size

    @property
    def answered(self) -> bool:
        """Whether the server had answered when its counter was last read."""
        return bool(self._answered[0] == self._asked[0])

    def start_looking(self) -> None:
        """Start reading whether the server has answered, or waiting for its answer; the caller flushes."""
        if self._comes:
            self._answered[0] = self._asked[0]
        else:
            self.window.get(self._answered, self.server, self._names.answered, self._worker)

    def start_taking(self) -> None:
        """Start reading the answer; the caller flushes."""
        if not self._comes:
            self.window.get(*self._answer())

    def take(self) -> None:
        """Update the copy by the answer, which has arrived."""
        copy = self._copy
        if copy.begun:
            copy.decode(self._encoded)
        self.bytes += self._encoded.nbytes if copy.begun else copy.values.nbytes
        copy.begun = True


def take_answers(fetches: Collection[DifferenceFetch]) -> bool:
    """Take the answers so far; return whether none is missing."""
    waiting = [each for each in fetches if not each.answered]
    for each in waiting:
        each.start_looking()
    _flush(waiting)
    answered = [each for each in waiting if each.answered]
    for each in answered:
        each.start_taking()
    _flush(answered)
    for each in answered:
        each.take()
    return len(answered) == len(waiting)


def _flush(fetches: Collection[DifferenceFetch]) -> None:
    for each in fetches:
        each.window.flush(each.server)


class DifferenceAnswers:
    """A server's end, for the workers that fetch one shard.

    `ranks` are the workers', to wake them. `pending` returns the number of a worker's chunks that wait to be applied.
    """

    def __init__(
        self, window: RemoteMemory, parameters: np.ndarray, wire: Wire, ranks: Sequence[int], doorbells: Doorbells,
        shard: int, pending: Callable[[int], int], statistics: Sequence[Range] = (),
    ) -> None:  # fmt: skip
        name = of_shard(shard)
        self._window, self._parameters, self._ranks, self._doorbells = window, parameters, ranks, doorbells
        self._pending = pending
        self._asked, self._answered = window.local(name.asked), window.local(name.answered)
        copies = window.local(name.copies).reshape(len(ranks), -1)
        self._copies = [Differences(wire, row, statistics=statistics) for row in copies]
        self._encoded = window.local(name.encoded).reshape(len(ranks), -1)
        self._seen = bytes(self._asked.nbytes)

    def answer(self) -> bool:
        """Answer all workers that have asked; return whether there was one. Nearly free if there was none."""
        now = self._asked.tobytes()
        if now == self._seen:
            return False
        self._window.sync()
        answered = True
        for worker, asked in enumerate(np.frombuffer(now, np.int64).tolist()):
            if asked != self._answered[worker]:
                if self._pending(worker):
                    answered = False
                    continue
                if asked % 2:
                    self._copies[worker].copy(self._parameters)
                else:
                    self._copies[worker].encode(self._parameters, self._encoded[worker])
                self._window.sync()
                self._answered[worker] = asked
                self._doorbells.ring(self._ranks[worker])
        if answered:
            self._seen = now
        return True
