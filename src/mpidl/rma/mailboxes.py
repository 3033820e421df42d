"""Mailboxes: how pushes travel from a worker into a server's window.

Each worker has a ring of chunk slots for each of its shards, in the window of the server that holds it. Two counters
make it a queue with one writer and one reader, without locks: `published` (chunks that the worker has written, set by
the worker after their data have arrived) and `consumed` (chunks that the server has applied, set by the server). The
worker learns of free slots, and that its pushes are applied, by reading `consumed`: nothing is ever written to a
worker, who does not enter MPI while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpidl.errors import MpidlError
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.windows import Window
from mpidl.transport.mailbox_geometry import MailboxGeometry
from mpidl.transport.protocol import END, MARK, Header, Message
from mpidl.wire import ErrorFeedback

#: Plain integers, which index arrays faster than an enumeration's.
PUSH, CHUNK, FETCHED, COUNT, FIRST, LAST = (int(number) for number in Header)
HEADER = len(Header)
#: Chunks that a worker publishes at once: each publication costs two round trips.
GROUP = 8


class Names(NamedTuple):
    """Names of the window regions of a shard's rings."""

    published: str
    consumed: str
    headers: str
    slots: str


def names(shard: int) -> Names:
    """Return the names of the window regions of the rings of shard number `shard`."""
    return Names(*(f"{name}/{shard}" for name in Names._fields))


def regions(geometry: MailboxGeometry, shard: int = 0) -> dict[str, tuple[Any, int]]:
    """Return the window regions of the rings of shard number `shard`."""
    slots, name = geometry.workers * geometry.slots, names(shard)
    return {
        name.published: (np.int64, geometry.workers),
        name.consumed: (np.int64, geometry.workers),
        name.headers: (np.int64, slots * HEADER),
        name.slots: (np.uint8, slots * geometry.slot),
    }


class Outbox:
    """A worker's end of its ring for one shard.

    Parameters
    ----------
    window : Window
    server : int
        Rank of the server.
    worker : int
        Index of this worker's ring.
    geometry : MailboxGeometry
    doorbells : Doorbells
    feedback : ErrorFeedback, optional
        Encodes this worker's pushes to the shard, where the geometry has a wire format.
    shard : int
        The shard's number.

    Attributes
    ----------
    pushes : int
        Whole pushes delivered.
    bytes : int
        Bytes of values delivered.
    """

    def __init__(
        self,
        window: Window,
        server: int,
        worker: int,
        geometry: MailboxGeometry,
        doorbells: Doorbells,
        feedback: ErrorFeedback | None = None,
        shard: int = 0,
    ) -> None:
        self._names = names(shard)
        self._window, self._server, self._worker, self._doorbells = window, server, worker, doorbells
        self._geometry, self._feedback = geometry, feedback
        self._first_slot = worker * geometry.slots
        self._published = np.zeros(1, np.int64)
        self._consumed = np.zeros(1, np.int64)
        self._headers = np.zeros((GROUP, HEADER), np.int64)
        self._encoded = np.empty(GROUP * geometry.slot if feedback is not None else 0, np.uint8)
        self.pushes = self.bytes = 0
        self._chunk = 0
        self._fetched, self._portions = 0, (-1, -1)

    @property
    def sent(self) -> int:
        """Chunks delivered."""
        return int(self._published[0])

    def begin(self, fetched: int, portions: tuple[int, int] = (-1, -1)) -> None:
        """Begin a push; `send` until it returns True.

        Parameters
        ----------
        fetched : int
            The shard's clock at the last fetch.
        portions : (int, int)
            The first and the last portion that the push was computed on.
        """
        self._chunk, self._fetched, self._portions = 0, fetched, portions

    def send(self, values: Any) -> bool:
        """Deliver as many chunks of the push as there are free slots for, at most a group.

        Parameters
        ----------
        values : array, shape (shard size,) or (2, shard size)
            The whole push for this server, the host's or a device's.

        Returns
        -------
        bool
            Whether the whole push has been delivered.
        """
        geometry = self._geometry
        room = self._room(min(GROUP, geometry.chunks - self._chunk))
        if room:
            headers = self._headers[:room]
            headers[:, PUSH] = self.pushes
            headers[:, FETCHED] = self._fetched
            headers[:, FIRST], headers[:, LAST] = self._portions
            start = self._chunk * geometry.chunk
            part = values[..., start : start + room * geometry.chunk]
            elements = part.shape[-1]
            for i in range(room):
                headers[i, CHUNK] = self._chunk + i
                headers[i, COUNT] = min(geometry.chunk, elements - i * geometry.chunk)
            if self._feedback is not None:
                host = self._window.on_host(part, self._server)
                nbytes = self._feedback.encode_chunks(start, host, geometry.chunk, self._encoded, geometry.slot)
                part = self._encoded[:nbytes]
            self._publish(headers, part)
            self.bytes += part.nbytes
            self._chunk += room
        if self._chunk < geometry.chunks:
            return False
        self.pushes += 1
        return True

    def end(self) -> bool:
        """Say that no push follows; False if there is no free slot yet."""
        if not self._room(1):
            return False
        self._headers[0] = (self.pushes, END, 0, 0, -1, -1)
        self._publish(self._headers[:1], None)
        return True

    def mark(self, order: int) -> bool:
        """Mark an order behind the pushes sent so far; False if there is no free slot yet."""
        if not self._room(1):
            return False
        self._headers[0] = (self.pushes, MARK, 0, 0, order, -1)
        self._publish(self._headers[:1], None)
        return True

    def applied(self) -> bool:
        """Return whether the server has applied everything that was sent."""
        return self._read_consumed() == int(self._published[0])

    def _read_consumed(self) -> int:
        if self._consumed[0] != self._published[0]:
            self._window.get(self._consumed, self._server, self._names.consumed, self._worker)
            self._window.flush(self._server)
        return int(self._consumed[0])

    def _room(self, wanted: int) -> int:
        """Return how many slots in a row, at most `wanted`, may be written."""
        slots = self._geometry.slots
        sent = int(self._published[0])
        free = slots - (sent - int(self._consumed[0]))
        if free < wanted:
            free = slots - (sent - self._read_consumed())
        return min(wanted, free, slots - sent % slots)

    def _publish(self, headers: np.ndarray, values: Any) -> None:
        window, server, name = self._window, self._server, self._names
        slot = self._first_slot + int(self._published[0]) % self._geometry.slots
        if values is not None:
            window.put(values, server, name.slots, slot * self._geometry.slot)
        window.put(headers, server, name.headers, slot * HEADER)
        window.flush(server)
        self._published[0] += len(headers)
        window.put(self._published, server, name.published, self._worker)
        window.flush(server)
        self._doorbells.ring(server)


class Inbox:
    """A server's end of the rings of a shard's workers.

    Parameters
    ----------
    window : Window
    geometry : MailboxGeometry
    ranks : list of int
        Rank of each worker, to wake it.
    doorbells : Doorbells
    shard : int
        The shard's number.
    """

    def __init__(
        self, window: Window, geometry: MailboxGeometry, ranks: list[int], doorbells: Doorbells, shard: int = 0
    ) -> None:
        self._window, self._geometry, self._ranks, self._doorbells = window, geometry, ranks, doorbells
        name = names(shard)
        self._published = window.local(name.published)
        self._consumed = window.local(name.consumed)
        workers, slots, chunk = geometry.workers, geometry.slots, geometry.chunk
        headers = window.local(name.headers).reshape(workers, slots, HEADER)
        memory = window.local(name.slots).reshape(workers, slots, geometry.slot)
        payloads = memory.view(geometry.dtype) if geometry.wire is None else memory
        self._headers = [[headers[w, s] for s in range(slots)] for w in range(workers)]
        self._payloads = [[payloads[w, s] for s in range(slots)] for w in range(workers)]
        self._decoded = np.empty(geometry.wire.rows * chunk if geometry.wire is not None else 0, geometry.dtype)
        self._taken = [0] * workers
        # What `published` was when nothing was waiting; a worker may have published before this end exists.
        self._seen = bytes(self._published.nbytes)
        self._expected = [(0, 0)] * workers
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

    def head(self, worker: int) -> Message:
        """Return the oldest waiting chunk of `worker`, which must have one.

        Raises
        ------
        MpidlError
            The chunk is not the one that must follow the last: this MPI let a counter overtake its data.
        """
        slot = self._taken[worker] % self._geometry.slots
        push, chunk, fetched, count, first, last = self._headers[worker][slot].tolist()
        expected, self._chunk[worker] = self._expected[worker], chunk
        if (push, chunk) != expected and (chunk not in (END, MARK) or (push, 0) != expected):
            raise MpidlError(
                f"worker {worker}'s mailbox holds chunk {chunk} of push {push} where chunk {expected[1]} of "
                f"push {expected[0]} belongs: this MPI delivers one-sided writes out of order here"
            )
        return Message(worker, push, chunk, fetched, self._values(worker, slot, count), (first, last))

    def _values(self, worker: int, slot: int, count: int) -> np.ndarray:
        wire, payload = self._geometry.wire, self._payloads[worker][slot]
        values: np.ndarray
        if wire is None or not count:
            values = payload[:count]
            return values
        values = self._decoded[: wire.rows * count].reshape(wire.shape(count))
        wire.decode(payload[: wire.size(count, values.dtype)], values)
        return values

    def release(self, worker: int) -> None:
        """Free the slot of the oldest waiting chunk of `worker`, which has been applied."""
        self._taken[worker] += 1
        push, chunk = self._expected[worker]
        if self._chunk[worker] < 0:
            return
        self._expected[worker] = (push, chunk + 1) if chunk + 1 < self._geometry.chunks else (push + 1, 0)

    def acknowledge(self, worker: int) -> None:
        """Show `worker` what has been released, and wake it if it may be waiting for that."""
        taken = self._taken[worker]
        self._window.sync()
        self._consumed[worker] = taken
        if self._expected[worker][1] == 0 or 2 * self.pending(worker) < self._geometry.slots:
            self._doorbells.ring(self._ranks[worker])

    def drain(self, worker: int, most: int) -> Iterator[Message]:
        """Yield up to `most` waiting chunks of `worker`, releasing each after use and acknowledging at the end."""
        for _ in range(min(most, self.pending(worker))):
            yield self.head(worker)
            self.release(worker)
        self.acknowledge(worker)
