"""A worker's end of the mailbox of one shard: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.rma.mailboxes import CHUNK, COUNT, ENCODED, FETCHED, FIRST, GROUP, HEADER, LAST, PUSH, names
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.mailbox_geometry import MailboxGeometry
from mpidl.transport.protocol import END, MARK
from mpidl.wire import ErrorFeedback


class Outbox:
    """A worker's end of its ring for one shard.

    Parameters
    ----------
    window : RemoteMemory
    server : int
        Rank of the server.
    worker : int
        Index of this worker's ring.
    geometry : MailboxGeometry
    feedback : ErrorFeedback, optional
        Encodes this worker's pushes to the shard. Where the geometry has a wire format but this is not given, they
        travel as they are.
    shard : int
        The shard's number.
    applied_later : bool
        Whether the chunks that the rank of the ring consumes are applied by others, later.

    Attributes
    ----------
    server : int
    pushes : int
        Whole pushes delivered.
    bytes : int
        Bytes of values delivered.
    """

    def __init__(
        self,
        window: RemoteMemory,
        server: int,
        worker: int,
        geometry: MailboxGeometry,
        feedback: ErrorFeedback | None = None,
        shard: int = 0,
        applied_later: bool = False,
    ) -> None:
        self._names = names(shard)
        self._window, self.server, self._worker = window, server, worker
        self._geometry, self._feedback = geometry, feedback
        self._first_slot = worker * geometry.slots
        self._stride = geometry.stride(feedback is not None)
        self._published = np.zeros(1, np.int64)
        self._consumed = np.zeros(1, np.int64)
        self._applied = np.zeros(1, np.int64) if applied_later else self._consumed
        self._applied_name = self._names.applied if applied_later else self._names.consumed
        self._group = min(GROUP, max(1, window.piece(server) // geometry.slot))
        self._headers = np.zeros((self._group, HEADER), np.int64)
        self._encoded = np.empty(self._group * geometry.slot if feedback is not None else 0, np.uint8)
        self.pushes = self.bytes = 0
        self._left = self._unpublished = self._followed = 0
        self._zero_copy = False
        # Tells whether the server has come as far as it was asked to say: that counter, and the number.
        self._watch: Callable[[], bool] | None = None
        self._watched = self._consumed, 0
        self._fetched, self._portions = 0, (-1, -1)

    @property
    def sent(self) -> int:
        """Chunks delivered."""
        return int(self._published[0])

    def begin(self, fetched: int, portions: tuple[int, int] = (-1, -1), zero_copy: bool = False) -> None:
        """Begin a push; `write` and `publish` until it is `delivered`.

        Parameters
        ----------
        fetched : int
            The shard's clock at the last fetch.
        portions : (int, int)
            The first and the last portion that the push was computed on.
        zero_copy : bool
            Whether the vector is unchanged until the server has been flushed after the push.
        """
        self._left, self._fetched, self._portions = self._geometry.chunks, fetched, portions
        self._zero_copy = zero_copy and self._feedback is None

    @property
    def applied(self) -> bool:
        """Whether the server, when it was asked last, had applied everything that was sent."""
        return bool(self._applied[0] == self._published[0])

    @property
    def delivered(self) -> bool:
        """Whether the whole push has been written."""
        return self._left == 0

    def follow(self, parameters: Any, clock: np.ndarray, after: np.ndarray, regions: tuple[str, str]) -> None:
        """Start a fetch behind the push that was delivered last, a group of chunks when the server has applied it.

        Parameters
        ----------
        parameters : array, shape (shard size,), or None
            None to fetch the clock alone, when the whole push has been applied.
        clock, after : array of int64, shape (len(ShardClock),)
            Receive the shard's clock before the parameters, and after them.
        regions : (str, str)
            Names of the server's regions of parameters and clock.
        """
        geometry, (values, clocks) = self._geometry, regions
        begun, self._followed = self.sent - geometry.chunks, self.sent
        groups = range(geometry.chunks, 0, -self._group) if parameters is not None else ()
        self._get_when(clock, clocks, 0, begun + min(self._group, geometry.chunks) if groups else self.sent)
        for stop in groups:
            first = max(stop - self._group, 0)
            part = slice(first * geometry.chunk, stop * geometry.chunk)
            self._get_when(parameters[part], values, part.start, begun + geometry.chunks - first)
        self._get_when(after, clocks, 0, self.sent)

    def followed(self) -> None:
        """Note that what `follow` started has arrived: everything that was sent before has been applied."""
        for counter in (self._consumed, self._applied):
            np.maximum(counter, self._followed, out=counter)

    def _get_when(self, values: Any, name: str, offset: int, applied: int) -> None:
        self._window.get_when(values, self.server, name, offset, self._applied_name, self._worker, applied)

    def has_applied(self) -> bool:
        """Return whether the server has applied everything that was sent; if it hasn't, let it say when it has."""
        while not self.applied:
            if not self._reached(self._applied_name, self._applied, self.sent):
                return False
        return True

    def has_room(self, slots: int | None = None) -> bool:
        """Return whether so many slots may be written, by default for a group of the push or half of the ring.

        If not, the server is to say when they may.
        """
        wanted = min(self._group, self._left, self._geometry.slots // 2) if slots is None else slots
        while self._free < wanted:
            if not self._reached(self._names.consumed, self._consumed, self.sent - self._geometry.slots + wanted):
                return False
        return True

    def _reached(self, name: str, counter: np.ndarray, least: int) -> bool:
        """Return whether what was watched last has been reached; if nothing is watched, watch a counter first."""
        if self._watch is None:
            self._watch = self._window.watch(self.server, name, self._worker, least)
            self._watched = counter, least
        if not self._watch():
            return False
        watched, reached = self._watched
        self._watch, watched[0] = None, max(int(watched[0]), reached)
        return True

    @property
    def _free(self) -> int:
        """Slots that may be written, as far as the server has said."""
        # Of the two counters, which are read one after the other, the later one may be ahead.
        return self._geometry.slots - self.sent + max(int(self._consumed[0]), int(self._applied[0]))

    def ask(self) -> None:
        """Start asking the server how far it has come, unless it has come to the end; the caller flushes."""
        if self.applied:
            return
        self._window.get(self._consumed, self.server, self._names.consumed, self._worker)
        if self._applied is not self._consumed:
            self._window.get(self._applied, self.server, self._applied_name, self._worker)

    def write(self, values: Any, start: int = 0) -> bool:
        """Start writing as many chunks of the push as there are free slots for, at most a group.

        Parameters
        ----------
        values : array, shape (shard size,) or (2, shard size)
            The whole push for this server, the host's or a device's.
        start : int
            Write no chunk that begins before this element of the shard.

        Returns
        -------
        bool
            Whether there is something to publish.
        """
        geometry = self._geometry
        room = self._room(min(self._group, self._chunks_from(start)))
        if not room:
            return False
        headers = self._headers[:room]
        headers[:, PUSH] = self.pushes
        headers[:, FETCHED] = self._fetched
        headers[:, FIRST], headers[:, LAST] = self._portions
        headers[:, ENCODED] = self._feedback is not None
        first = self._left - room
        begin = first * geometry.chunk
        part = values[..., begin : self._left * geometry.chunk]
        elements = part.shape[-1]
        for i in range(room):
            headers[i, CHUNK] = first + i
            headers[i, COUNT] = min(geometry.chunk, elements - i * geometry.chunk)
        if self._feedback is not None:
            host = self._window.on_host(part, self.server)
            written = self._feedback.encode_chunks(begin, host, geometry.chunk, self._encoded, self._stride)
            parts = [(own.start, self._encoded[own]) for own in written]
        else:
            parts = [(0, part)]
        self._put(headers, parts)
        self.bytes += sum(part.nbytes for _, part in parts)
        self._left = first
        self.pushes += self.delivered
        return True

    def has_chunks_from(self, start: int) -> bool:
        """Return whether there is a chunk that is still to be written and doesn't begin before element `start`."""
        return self._chunks_from(start) > 0

    def _chunks_from(self, start: int) -> int:
        return self._left - max(0, -(-start // self._geometry.chunk))

    def write_end(self) -> bool:
        """Start saying that no push follows; False if there is no free slot yet."""
        return self._write_message(END, 0)

    def write_mark(self, order: int) -> bool:
        """Start marking an order behind the pushes sent so far; False if there is no free slot yet."""
        return self._write_message(MARK, order)

    def _write_message(self, chunk: int, order: int) -> bool:
        if not self._room(1):
            return False
        self._headers[0] = (self.pushes, chunk, 0, 0, order if chunk == MARK else -1, -1, 0)
        self._put(self._headers[:1])
        return True

    def _room(self, wanted: int) -> int:
        """Return how many slots in a row, at most `wanted`, may be written."""
        slots = self._geometry.slots
        return min(wanted, self._free, slots - self.sent % slots)

    def _put(self, headers: np.ndarray, parts: Sequence[tuple[int, Any]] = ()) -> None:
        """Start writing consecutive messages, and what of their slots has to be written, from which byte on."""
        slot = self._geometry.slots - self.sent % self._geometry.slots - len(headers)
        begin = self._worker * self._geometry.ring + slot * self._stride
        for offset, values in parts:
            self._window.put(values, self.server, self._names.slots, begin + offset, zero_copy=self._zero_copy)
        self._window.put(headers, self.server, self._names.headers, (self._first_slot + slot) * HEADER)
        self._unpublished = len(headers)

    def publish(self) -> None:
        """Start showing the server what has been written, which must have been ordered before."""
        self._published[0] += self._unpublished
        self._window.put(self._published, self.server, self._names.published, self._worker)
