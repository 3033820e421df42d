"""A worker's end of the mailbox of one shard: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mpidl.rma.mailboxes import CHUNK, GROUP
from mpidl.rma.push_chunks import PushChunks
from mpidl.rma.ring import Ring
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.capacity import MailboxGeometry
from mpidl.transport.protocol import END
from mpidl.wire import ErrorFeedback


class Outbox:
    """Sends pushes through a worker's ring for one shard, and fetches behind them.

    `worker` is the index of this worker's ring. `feedback` encodes its pushes; without it they travel as they are,
    whatever the geometry's wire format. `applied_later` says whether the chunks that the rank of the ring consumes are
    applied by others, later. `bytes` counts the values delivered.
    """

    def __init__(
        self, window: RemoteMemory, server: int, worker: int, geometry: MailboxGeometry,
        feedback: ErrorFeedback | None = None, shard: int = 0, applied_later: bool = False,
    ) -> None:  # fmt: skip
        self.server, self._geometry, self._encodes = server, geometry, feedback is not None
        self._group = min(GROUP, max(1, window.piece(server) // geometry.slot))
        self.ring = Ring(window, server, worker, geometry, shard, self._encodes, applied_later)
        self._push = PushChunks(geometry, feedback, self._group, partial(window.on_host, rank=server))
        self.bytes = self._followed = 0
        self._zero_copy = self.ended = False

    @property
    def pushes(self) -> int:
        """Whole pushes delivered."""
        return self._push.pushes

    @property
    def delivered(self) -> bool:
        """Whether the whole push has been written."""
        return self._push.all_taken

    def resume(self) -> np.ndarray | None:
        """Go on where another process has ended; return the header of its last message, None if there is none."""
        header = self.ring.resume()
        if header is not None:
            self._push.resume(header)
            self.ended = header[CHUNK] == END
        return header

    def begin(self, fetched: int, batches: tuple[int, int] = (-1, -1), zero_copy: bool = False) -> None:
        """Begin a push; `write` and publish until it is `delivered`.

        `fetched` is the shard's clock at the last fetch; `batches` are the first and the last one that the push was
        computed on. If `zero_copy`, the vector is unchanged until the server has been flushed after the push.
        """
        self._push.begin(fetched, batches)
        self._zero_copy = zero_copy and not self._encodes

    def has_chunks_from(self, start: int) -> bool:
        """Return whether there is a chunk that is still to be written and doesn't begin before element `start`."""
        return self._push.left_from(start) > 0

    def has_room(self) -> bool:
        """Return whether a group of the push or half of a ring has room; if not, the server announces it."""
        return self.ring.has_room(min(self._group, self._push.left_from(), self._geometry.slots // 2))

    def write(self, values: Any, start: int = 0) -> bool:
        """Start writing as many chunks of the push as there are free slots for, at most a group.

        `values` are the whole push for this server, of shape (shard size,) or (2, shard size), in host or device
        memory. No chunk is written that begins before element `start` of the shard. Return whether there is something
        to publish.
        """
        room = self.ring.room(min(self._group, self._push.left_from(start)))
        if not room:
            return False
        headers, parts = self._push.take(values, room)
        self.ring.put(headers, parts, self._zero_copy)
        self.bytes += sum(part.nbytes for _, part in parts)
        return True

    def write_between(self, chunk: int, order: int = 0, payload: np.ndarray | None = None) -> bool:
        """Start writing a message behind the pushes, such as the `MARK` of an order; False if there is no free slot.

        Its `payload` are bytes, uint8, which stay as they are until the message is published.
        """
        if not self.ring.has_room(1):
            return False
        if payload is None:
            self.ring.put(self._push.between(chunk, order))
            return True
        self.ring.put(self._push.between(chunk, order, payload.size), [(0, payload)])
        return True

    def follow(self, parameters: Any, clock: np.ndarray, after: np.ndarray, regions: tuple[str, str]) -> None:
        """Start a fetch behind the push that was delivered last, a group of chunks when the server has applied it.

        `parameters`, of shape (shard size,), may be None to fetch the clock alone, when the whole push has been
        applied. `clock` and `after`, int64 of shape (len(ShardClock),), receive the shard's clock before the parameters
        and after them. `regions` are the names of the server's regions of parameters and clock.
        """
        geometry, ring, (values, clocks) = self._geometry, self.ring, regions
        sent = self._followed = ring.sent
        begun = sent - geometry.chunks
        groups = range(geometry.chunks, 0, -self._group) if parameters is not None else ()
        ring.get_when(clock, clocks, 0, begun + min(self._group, geometry.chunks) if groups else sent)
        for stop in groups:
            first = max(stop - self._group, 0)
            part = slice(first * geometry.chunk, stop * geometry.chunk)
            ring.get_when(parameters[part], values, part.start, begun + geometry.chunks - first)
        ring.get_when(after, clocks, 0, sent)

    def followed(self) -> None:
        """Note that what `follow` started has arrived: everything that was sent before has been applied."""
        self.ring.note_applied(self._followed)
