"""The sum of the pushes of a node's workers, made of whole pushes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.relays.batching_window import BatchingWindow
from mpidl.rma.mailboxes import Inbox
from mpidl.transport.protocol import END, MARK, REQUEST, SIDE_DATA, PushMessage

#: Chunks of one worker that are taken before the next worker's turn.
GROUP = 8


class Gathered(NamedTuple):
    """The sum of pushes: a vector of shape (size,), valid until the sum after the next one is taken.

    `fetched` has the oldest clock of each shard at which one of the pushes was computed, and `batches` the first and
    the last minibatch. If `late`, the pushes came after their workers' marks, in a checkpoint that others have not
    marked yet. `taken` has, for each worker with a push, the number of its chunks taken from each shard's mailbox.
    `side_data` has, for each shard, the messages of the pushes for the side channel, bytes as uint8.
    """

    vector: np.ndarray
    fetched: list[int]
    batches: tuple[int, int]
    late: bool
    taken: dict[int, list[int]]
    side_data: list[list[np.ndarray]]


class PushAggregator:
    """Adds up whole pushes as their chunks arrive.

    A cut replica counts as one worker: each of its ranks writes the parts of a push for its own shards.

    `chunks` has the elements of a chunk of each shard. `clock` returns the time in seconds. The changes of `statistics`
    are averaged.

    `active` are the workers that still push, and `marked` those whose pushes are late: early and late ones are not
    added to each other, and `late` says which the sum has. While `closing`, no further push is taken before those that
    have begun are whole.

    Side data between pushes is taken at once: a worker that waits for an answer may have a push in the
    sum. `requests` has, for each shard, what workers have asked for: the worker and a message.
    """

    def __init__(
        self, inboxes: Sequence[Inbox], shards: Sequence[Range], chunks: Sequence[int], dtype: Any,
        workers: int, clock: Callable[[], float], statistics: Sequence[Range] = (),
    ) -> None:  # fmt: skip
        self._statistics = [slice(*each) for each in statistics]
        self._inboxes, self._shards, self._chunks, self._clock = inboxes, shards, chunks, clock
        self._vectors = [np.empty(shards[-1].stop, dtype) for _ in range(2)]
        self._counts = [-(-shard.size // chunk) for shard, chunk in zip(shards, chunks, strict=True)]
        # Pushes begun by each worker, and shards of them that have not arrived whole.
        self._begun, self._missing = [0] * workers, [0] * workers
        self.active, self.marked = set(range(workers)), set[int]()
        self.requests = [deque[tuple[int, np.ndarray]]() for _ in shards]
        # For each shard, the side data of each worker's next push.
        self._coming = [defaultdict[int, list[np.ndarray]](list) for _ in shards]
        # The workers with a push in the sum that the servers are applying.
        self._under_way = set[int]()
        self.window = BatchingWindow(clock(), workers)
        self._begin()

    def _begin(self) -> None:
        self._here: set[int] = set()
        self._side_data = [list[np.ndarray]() for _ in self._shards]
        self._pushes = 0
        self._touched = [[False] * count for count in self._counts]
        self._fetched: list[int | None] = [None] * len(self._shards)
        self._batches: tuple[int, int] | None = None
        self.late = self.closing = self._has_whole = False

    @property
    def empty(self) -> bool:
        """Whether the sum has no push."""
        return not self._here

    @property
    def whole(self) -> bool:
        """Whether all pushes of the sum are whole."""
        return not any(self._missing)

    @property
    def worth_waiting(self) -> bool:
        """Whether to wait for more pushes."""
        return not self._has_whole or self.window.waits(self._here, self._clock())

    def take(self) -> bool:
        """Add up the chunks that have arrived; return whether there were any."""
        worked = False
        for shard, inbox in enumerate(self._inboxes):
            for worker in inbox.waiting():
                worked |= self._take_group(shard, inbox, worker)
        return worked

    def _take_group(self, shard: int, inbox: Inbox, worker: int) -> bool:
        taken = between = 0
        while taken < GROUP and inbox.pending(worker):
            message = inbox.head(worker)
            if message.chunk == REQUEST:
                self.requests[shard].append((worker, message.values.copy()))
            elif message.chunk == SIDE_DATA:
                self._coming[shard][worker].append(message.values.copy())
            elif message.chunk < 0 or not self._takes(worker, message.push):
                break
            else:
                self._add(shard, message)
            between += message.chunk < 0
            inbox.release(worker)
            taken += 1
        if taken:
            inbox.acknowledge(worker)
        if between:
            self._show_idle(worker)
        return taken > 0

    def _takes(self, worker: int, push: int) -> bool:
        """Return whether a worker's push belongs to this sum; if so, it has begun."""
        if push < self._begun[worker]:
            return True
        late = worker in self.marked
        if self.closing or (self._here and late != self.late):
            return False
        self.late = late
        self._here.add(worker)
        self._begun[worker] = push + 1
        self._pushes += 1
        self._missing[worker] += len(self._shards)
        self.window.begins_push(worker, self._clock())
        return True

    def _add(self, shard: int, message: PushMessage) -> None:
        if self._coming[shard]:
            self._side_data[shard] += self._coming[shard].pop(message.worker, ())
        start = self._shards[shard].start + message.chunk * self._chunks[shard]
        part = self._vectors[0][start : start + message.values.size]
        if self._touched[shard][message.chunk]:
            part += message.values
        else:
            part[:] = message.values
            self._touched[shard][message.chunk] = True
        if message.chunk == 0:
            self._end_of_shard(shard, message)

    def _end_of_shard(self, shard: int, message: PushMessage) -> None:
        """Note that a shard's part of a push is whole."""
        known, worker = self._fetched[shard], message.worker
        self._fetched[shard] = message.fetched if known is None else min(known, message.fetched)
        (first, last), (known_first, known_last) = message.batches, self._batches or message.batches
        self._batches = min(first, known_first), max(last, known_last)
        self._missing[worker] -= 1
        if not self._missing[worker]:
            self.window.ends_push(worker, self._clock(), first=not self._has_whole)
            self._has_whole = True

    def swap(self) -> Gathered:
        """Return the sum, which has whole pushes only, and begin another."""
        assert self._batches is not None, "nothing has arrived"
        assert self.whole, "a push has arrived in part"
        vector = self._vectors[0]
        for part in self._statistics:
            vector[part] /= self._pushes
        fetched = [0 if clock is None else clock for clock in self._fetched]
        taken = {worker: [inbox.taken(worker) for inbox in self._inboxes] for worker in self._here}
        gathered = Gathered(vector, fetched, self._batches, self.late, taken, self._side_data)
        self._vectors.reverse()
        self._under_way = self._here
        self._begin()
        return gathered

    def show_applied(self, gathered: Gathered, seconds: float) -> None:
        """Show the workers that the servers have applied a sum, in an exchange of `seconds`."""
        self._under_way = set()
        for worker, taken in gathered.taken.items():
            self._show(worker, taken if worker in self._here else None)
        self.window.exchanged([each for each in gathered.taken if each not in self._here], seconds, self._clock())

    def _show(self, worker: int, taken: Sequence[int] | None = None) -> None:
        """Show a worker the number of its chunks applied in each shard, by default all that have been taken."""
        for inbox, count in zip(self._inboxes, taken or [each.taken(worker) for each in self._inboxes], strict=True):
            inbox.show_applied(worker, count)

    def _show_idle(self, worker: int) -> None:
        """Show a worker that all of its chunks are applied, unless it has a push that isn't."""
        if worker not in self._here | self._under_way:
            self._show(worker)

    def rest(self, worker: int) -> list[list[np.ndarray]]:
        """Return, for each shard, the side data that a worker which has ended has sent since its last push."""
        return [own.pop(worker, []) for own in self._coming]

    def next_message(self) -> PushMessage | None:
        """Take a mark or an end that a worker has written behind its pushes to all shards; None without one.

        Not while a sum is on its way to the servers: what is before the message must be before it there, too.
        """
        for worker in self.active:
            if all(inbox.pending(worker) for inbox in self._inboxes):
                heads = [inbox.head(worker) for inbox in self._inboxes]
                if all(head.chunk in (END, MARK) for head in heads):
                    for inbox in self._inboxes:
                        inbox.release(worker)
                        inbox.acknowledge(worker)
                    self._show_idle(worker)
                    return heads[0]
        return None
