"""A worker's end of the mailbox of one shard: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.rma.mailboxes import CHUNK, COUNT, GROUP, HEADER
from mpidl.rma.regions import of_shard
from mpidl.rma.verbs import RemoteMemory
from mpidl.shards.shard import ABSENT
from mpidl.transport.capacity import MailboxGeometry
from mpidl.transport.protocol import END, MARK
from mpidl.wire import ErrorFeedback


class Outbox:
    """Sends pushes through a worker's ring for one shard, and fetches behind them.

    Each push is cut into chunks, which leave from the last to the first. `worker` is the index of this worker's ring.
    `feedback` encodes its pushes; without it they travel as they are, whatever the geometry's wire format.
    `applied_later` says whether the chunks that the rank of the ring consumes are applied by others, later.

    Attributes
    ----------
    server : int
        The rank of the ring.
    window : RemoteMemory
        Its memory.
    pushes : int
        Whole pushes written.
    bytes : int
        Bytes of their values.
    ended : bool
        Whether the end of the pushes has been written.
    """

    def __init__(
        self, window: RemoteMemory, server: int, worker: int, geometry: MailboxGeometry,
        feedback: ErrorFeedback | None = None, shard: int = 0, applied_later: bool = False,
    ) -> None:  # fmt: skip
        self.window, self.server, self._worker, self._geometry = window.to(server), server, worker, geometry
        self._feedback, self._names, self._encodes = feedback, of_shard(shard), feedback is not None
        self._stride = geometry.stride(self._encodes)
        self._group = min(GROUP, max(1, self.window.piece // geometry.slot))
        self._headers = np.zeros((self._group, HEADER), np.int64)
        self._encoded = np.empty(self._group * geometry.slot if self._encodes else 0, np.uint8)
        self._left = self.pushes = self.bytes = 0
        self._fetched, self._batches, self._marked = 0, (-1, -1), 0
        self._zero_copy = self.ended = False
        self._published, self._unpublished, self._followed = np.zeros(1, np.int64), 0, 0
        # The server's counters, as far as this worker knows.
        self._applied = self._names.applied if applied_later else self._names.consumed
        self._known = {name: np.zeros(1, np.int64) for name in (self._names.consumed, self._applied)}
        # Returns whether the watched counter has reached a number; both are below.
        self._watch: Callable[[], bool] | None = None
        self._watched = self._applied, 0

    def resume(self) -> np.ndarray | None:
        """Go on where another process has ended; return the header of its last message, None if there is none."""
        window, own = self.window, self._names
        for name, counter in {own.published: self._published, **self._known}.items():
            window.get(counter, self.server, name, self._worker)
        window.flush(self.server)
        if not self.sent:
            return None
        header = np.zeros(HEADER, np.int64)
        window.get(header, self.server, own.headers, self._slot(self.sent - 1) * HEADER)
        window.flush(self.server)
        push, chunk, self._fetched, _, first, last, _, self._marked = header.tolist()
        self.pushes, self._left, self._batches = push + (chunk == 0), max(0, chunk), (first, last)
        self.ended = chunk == END
        return header

    # Pushes.

    @property
    def delivered(self) -> bool:
        """Whether the whole push has been written."""
        return self._left == 0

    def begin(self, fetched: int, batches: tuple[int, int] = (-1, -1), zero_copy: bool = False) -> None:
        """Begin a push; `write` and `publish` until it is `delivered`.

        `fetched` is the shard's clock at the last fetch, or `ABSENT`; `batches` are the first and the last one that the
        push was computed on. If `zero_copy`, the vector is unchanged until the server has been flushed after the push.
        """
        self._left, self._fetched, self._batches = self._geometry.chunks, fetched, batches
        self._zero_copy = zero_copy and not self._encodes

    def chunks_from(self, start: int) -> int:
        """Return how many chunks are still to be written that don't begin before element `start` of the shard."""
        return max(0, self._left - max(0, -(-start // self._geometry.chunk)))

    def has_room(self) -> bool:
        """Return whether a group of the push or half of a ring has room; if not, the server announces it."""
        return self._has_free(min(self._group, self._left, self._geometry.slots // 2))

    def write(self, values: Any, start: int = 0) -> bool:
        """Start writing as many chunks of the push as there are free slots for, at most a group.

        `values` are the whole push for this server, of shape (shard size,) or (2, shard size), in host or device
        memory. No chunk is written that begins before element `start` of the shard. Return whether there is something
        to publish.
        """
        slots, size = self._geometry.slots, self._geometry.chunk
        free = slots - self.sent + int(self._known[self._names.consumed][0])
        # In the ring, too, they lie side by side.
        count = min(self._group, self.chunks_from(start), free, slots - self.sent % slots)
        if not count:
            return False
        first = self._left - count
        part = values[..., first * size : self._left * size]
        headers = self._headers[:count]
        headers[:] = self.pushes, 0, self._fetched, size, *self._batches, self._encodes, self._marked
        headers[:, CHUNK] = np.arange(first, self._left)
        headers[-1, COUNT] = part.shape[-1] - (count - 1) * size
        contents = [(0, part)]
        if self._fetched == ABSENT:
            headers[:, COUNT], contents = 0, []
        elif self._feedback is not None:
            host = self.window.on_host(part, self.server)
            encoded = self._feedback.encode_chunks(first * size, host, size, self._encoded, self._stride)
            contents = [(own.start, self._encoded[own]) for own in encoded]
        self._put(headers, contents, self._zero_copy)
        self._left = first
        self.pushes += self.delivered
        self.bytes += sum(each.nbytes for _, each in contents)
        return True

    def write_between(self, chunk: int, order: int = 0, payload: np.ndarray | None = None) -> bool:
        """Start writing a message behind the pushes, such as the `MARK` of an order; False if there is no free slot.

        Its `payload` are bytes, uint8, which stay as they are until the message is published.
        """
        if not self._has_free(1):
            return False
        self.ended |= chunk == END
        self._marked, first = (order, order) if chunk == MARK else (self._marked, -1)
        count, contents = (0, []) if payload is None else (payload.size, [(0, payload)])
        self._headers[0] = self.pushes, chunk, 0, count, first, self._batches[1], self._encodes, self._marked
        self._put(self._headers[:1], contents)
        return True

    # The ring.

    @property
    def sent(self) -> int:
        """Messages that have been published."""
        return int(self._published[0])

    def _slot(self, message: int) -> int:
        """Return the number of the slot of a message, which are filled from a ring's last one to its first."""
        slots = self._geometry.slots
        return (self._worker + 1) * slots - 1 - message % slots

    def _put(self, headers: np.ndarray, contents: Sequence[tuple[int, Any]], zero_copy: bool = False) -> None:
        """Start writing consecutive messages, by their headers and the contents of their slots, each with its place.

        A place counts bytes. If `zero_copy`, contents are unchanged until the server has been flushed.
        """
        slot = self._slot(self.sent + len(headers) - 1)
        begin = self._worker * self._geometry.ring + slot % self._geometry.slots * self._stride
        for place, values in contents:
            self.window.put(values, self.server, self._names.slots, begin + place, zero_copy=zero_copy)
        self.window.put(headers, self.server, self._names.headers, slot * HEADER)
        self._unpublished = len(headers)

    def publish(self) -> None:
        """Start showing the server the messages that were written, after a fence."""
        self._published[0] += self._unpublished
        self.window.put(self._published, self.server, self._names.published, self._worker)

    def has_applied(self) -> bool:
        """Return whether the server has applied everything that was sent; if not, it announces it then."""
        return self._has_reached(self._applied, self.sent)

    def _has_free(self, slots: int) -> bool:
        """Return whether `slots` slots are free; if not, the server announces it then."""
        return self._has_reached(self._names.consumed, self.sent - self._geometry.slots + slots)

    def _has_reached(self, name: str, least: int) -> bool:
        """Return whether a counter has reached a number; if no counter is watched yet, watch this one."""
        while self._known[name][0] < least:
            if self._watch is None:
                self._watch = self.window.watch(self.server, name, self._worker, least)
                self._watched = name, least
            if not self._watch():
                return False
            self._watch = None
            self._note(*self._watched)
        return True

    def _note(self, name: str, reached: int) -> None:
        """Note that a counter has reached a number; what has been applied has been consumed."""
        for counter in (self._known[name], self._known[self._names.consumed]):
            counter[0] = max(int(counter[0]), reached)

    def ask(self) -> None:
        """Start reading the server's counters, unless all has been applied; the caller flushes."""
        if self._known[self._applied][0] < self.sent:
            for name, counter in self._known.items():
                self.window.get(counter, self.server, name, self._worker)

    # Fetches.

    def follow(self, parameters: Any, clock: np.ndarray, after: np.ndarray, regions: tuple[str, str]) -> None:
        """Start a fetch behind the push that was delivered last, a group of chunks when the server has applied it.

        `parameters`, of shape (shard size,), may be None to fetch the clock alone, when the whole push has been
        applied. `clock` and `after`, int64 of shape (len(ShardClock),), receive the shard's clock before the parameters
        and after them. `regions` are the names of the server's regions of parameters and clock.
        """
        geometry, (values, clocks) = self._geometry, regions
        sent = self._followed = self.sent
        begun = sent - geometry.chunks
        groups = range(geometry.chunks, 0, -self._group) if parameters is not None else ()
        self._get_when(clock, clocks, 0, begun + min(self._group, geometry.chunks) if groups else sent)
        for stop in groups:
            first = max(stop - self._group, 0)
            part = slice(first * geometry.chunk, stop * geometry.chunk)
            self._get_when(parameters[part], values, part.start, begun + geometry.chunks - first)
        self._get_when(after, clocks, 0, sent)

    def _get_when(self, values: Any, name: str, offset: int, applied: int) -> None:
        """Start reading a region of the server's memory as soon as it has applied `applied` messages."""
        self.window.get_when(values, self.server, name, offset, self._applied, self._worker, applied)

    def followed(self) -> None:
        """Wait until what `follow` started has arrived: everything that was sent before has been applied."""
        self.window.flush(self.server)
        self._note(self._applied, self._followed)
