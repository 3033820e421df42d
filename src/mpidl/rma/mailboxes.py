"""Mailboxes: how pushes travel from a worker into a server's window.

Each worker has a ring of chunk slots for each of its shards, in the window of the server that holds it. Two counters
make it a queue with one writer and one reader, without locks: `published` (chunks that the worker has written, set by
the worker after their data have arrived) and `consumed` (chunks that the server has applied, set by the server). The
worker learns of free slots and of applied pushes by reading `consumed`: nothing is ever written to a worker, which
does not enter MPI while it computes.

A push travels from its last chunk to its first, as back-propagation computes a gradient, and rings are filled from
their last slot to their first: chunks that are neighbours in the vector are neighbours in the ring, and one transfer
brings several.

A rank may take chunks that servers apply later. Its mailboxes have a third counter, `applied`: the chunks that servers
have applied.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpidl.errors import MpidlError
from mpidl.launch.fault_points import fault_point
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.regions import of_shard
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.capacity import MailboxGeometry
from mpidl.transport.protocol import ChunkHeader, PushMessage

#: Plain integers, which index arrays faster than an enumeration's.
PUSH, CHUNK, FETCHED, COUNT, FIRST, LAST, ENCODED, MARKED = (int(number) for number in ChunkHeader)
HEADER = len(ChunkHeader)
#: Most chunks that a worker publishes at once: each publication costs two round trips.
GROUP = 8


class Inbox:
    """A server's end of the rings of a shard's workers, whose `ranks` it wakes."""

    def __init__(
        self, window: RemoteMemory, geometry: MailboxGeometry, ranks: list[int], doorbells: Doorbells, shard: int = 0
    ) -> None:
        self._window, self._geometry, self._ranks, self._doorbells = window, geometry, ranks, doorbells
        self._names = name = of_shard(shard)
        self._published = window.local(name.published)
        self._consumed = window.local(name.consumed)
        workers, slots, chunk = geometry.workers, geometry.slots, geometry.chunk
        headers = window.local(name.headers).reshape(workers, slots, HEADER)
        rings = window.local(name.slots).reshape(workers, geometry.ring)
        self._headers = [[headers[w, s] for s in range(slots)] for w in range(workers)]
        # The slots of each ring as a worker that doesn't encode chunks lays them out, and as one that does.
        self._payloads = [
            [[ring[s * stride : (s + 1) * stride] for s in range(slots)] for ring in rings]
            for stride in (geometry.stride(False), geometry.stride(True))
        ]
        self._rows = 1 if geometry.encoding is None else geometry.encoding.wire.rows
        self._decoded = np.empty(0 if geometry.encoding is None else self._rows * chunk, geometry.dtype)
        self._taken = [0] * workers
        # `published` when nothing was waiting; a worker may have published before this end exists.
        self._seen = bytes(self._published.nbytes)
        self._last = geometry.chunks - 1
        self._expected = [(0, self._last)] * workers
        # The chunk at each head.
        self._chunk = [0] * workers

    def waiting(self) -> list[int]:
        """Return the workers that have chunks waiting; nearly free if nothing has arrived."""
        now = self._published.tobytes()
        if now == self._seen:
            return []
        self._window.sync()
        snapshot = np.frombuffer(now, np.int64).tolist()
        ready = [w for w, (published, taken) in enumerate(zip(snapshot, self._taken, strict=True)) if published > taken]
        if not ready:
            self._seen = now
        return ready

    def pending(self, worker: int) -> int:
        """Return how many chunks of `worker` are waiting."""
        return int(self._published[worker]) - self._taken[worker]

    def taken(self, worker: int) -> int:
        """Return how many chunks of `worker` have been released."""
        return self._taken[worker]

    def head(self, worker: int) -> PushMessage:
        """Return the oldest waiting chunk of `worker`, which must have one.

        Raise MpidlError if it is not the one that must follow the last: this MPI let a counter overtake its data.
        """
        slots = self._geometry.slots
        slot = slots - 1 - self._taken[worker] % slots
        message = self._message(worker, slot, self._expected[worker])
        self._chunk[worker] = message.chunk
        return message

    def _message(self, worker: int, slot: int, expected: tuple[int, int]) -> PushMessage:
        """Return the message in a slot, which must be the expected chunk or one between two pushes."""
        push, chunk, fetched, count, first, last, encoded, _ = self._headers[worker][slot].tolist()
        if (push, chunk) != expected and (chunk >= 0 or (push, self._last) != expected):
            raise MpidlError(
                f"worker {worker}'s mailbox holds chunk {chunk} of push {push} where chunk {expected[1]} of "
                f"push {expected[0]} belongs: this MPI delivers one-sided writes out of order here"
            )
        return PushMessage(
            worker, push, chunk, fetched, self._values(worker, slot, chunk, count, encoded), (first, last)
        )

    def _values(self, worker: int, slot: int, chunk: int, count: int, encoded: int) -> np.ndarray:
        encoding, payload = self._geometry.encoding, self._payloads[bool(encoded)][worker][slot]
        values: np.ndarray
        if chunk < 0:
            return payload[:count]
        if encoding is None or not encoded:
            values = payload.view(self._geometry.dtype)[:count]
            return values
        values = self._decoded[: self._rows * count].reshape(encoding.wire.shape(count))
        encoding.decode(chunk * self._geometry.chunk, payload, values)
        return values

    def release(self, worker: int) -> None:
        """Free the slot of the oldest waiting chunk of `worker`, which has been applied."""
        self._taken[worker] += 1
        push, chunk = self._expected[worker]
        if self._chunk[worker] < 0:
            return
        self._expected[worker] = (push, chunk - 1) if chunk else (push + 1, self._last)

    def begin_behind(self, worker: int, taken: int, push: int, chunk: int) -> None:
        """Begin behind the first `taken` messages of `worker`; the last of them had these numbers of push and chunk."""
        self._taken[worker], self._chunk[worker] = taken - 1, chunk
        self._expected[worker] = push, self._last if chunk < 0 else chunk
        self.release(worker)
        self.acknowledge(worker)

    def acknowledge(self, worker: int) -> None:
        """Show `worker` the number of released chunks, and wake it if it may be waiting for them."""
        taken = self._taken[worker]
        fault_point("chunks-released")
        self._window.sync()
        self._consumed[worker] = taken
        if self._expected[worker][1] == self._last or 2 * self.pending(worker) < self._geometry.slots:
            self._doorbells.ring(self._ranks[worker])

    def drain(self, worker: int, most: int) -> Iterator[PushMessage]:
        """Yield up to `most` waiting chunks of `worker`, releasing each after use and acknowledging at the end."""
        for _ in range(most):
            if not self.pending(worker):
                break
            yield self.head(worker)
            self.release(worker)
        self.acknowledge(worker)

    def show_applied(self, worker: int, count: int) -> None:
        """Show `worker` the number of its chunks that others have applied, and wake it."""
        self._window.sync()
        self._window.local(self._names.applied)[worker] = count
        self._doorbells.ring(self._ranks[worker])
