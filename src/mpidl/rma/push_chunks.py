"""A push as messages: its chunks, from the last to the first, with their headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.rma.mailboxes import CHUNK, COUNT, ENCODED, FETCHED, FIRST, HEADER, LAST, MARKED, PUSH
from mpidl.transport.capacity import MailboxGeometry
from mpidl.transport.protocol import MARK
from mpidl.wire import ErrorFeedback


class PushChunks:
    """Cuts one push after another into chunks, and encodes them.

    `take` returns at most `group` chunks, encoded by `feedback`; without it they travel as they are. `on_host` returns
    an array's values in host memory. `pushes` counts whole pushes taken.
    """

    def __init__(
        self, geometry: MailboxGeometry, feedback: ErrorFeedback | None, group: int, on_host: Callable[[Any], Any]
    ) -> None:
        self._chunk, self._chunks, self._stride = geometry.chunk, geometry.chunks, geometry.stride(feedback is not None)
        self._feedback, self._on_host = feedback, on_host
        self._headers = np.zeros((group, HEADER), np.int64)
        self._encoded = np.empty(group * geometry.slot if feedback is not None else 0, np.uint8)
        self._left = self.pushes = 0
        self._fetched, self._batches = 0, (-1, -1)
        self._marked = 0

    def begin(self, fetched: int, batches: tuple[int, int]) -> None:
        """Begin a push; see `Outbox.begin`."""
        self._left, self._fetched, self._batches = self._chunks, fetched, batches

    def resume(self, last: np.ndarray) -> None:
        """Go on behind a message, of which this is the header."""
        push, chunk = int(last[PUSH]), int(last[CHUNK])
        self.pushes, self._left = push + (chunk == 0), max(0, chunk)
        self._fetched, self._batches = int(last[FETCHED]), (int(last[FIRST]), int(last[LAST]))
        self._marked = int(last[MARKED])

    @property
    def all_taken(self) -> bool:
        """Whether the whole push has been taken."""
        return self._left == 0

    def left_from(self, start: int = 0) -> int:
        """Return how many chunks are left that don't begin before element `start` of the shard."""
        return max(0, self._left - max(0, -(-start // self._chunk)))

    def take(self, values: Any, count: int) -> tuple[np.ndarray, list[tuple[int, Any]]]:
        """Take the next `count` chunks of a push.

        `values` are the whole push, of shape (shard size,) or (2, shard size), in host or device memory. Return the
        headers, int64 of shape (count, HEADER), and the contents of the slots, each part with its first byte; they are
        valid until the next call.
        """
        headers, first = self._headers[:count], self._left - count
        headers[:, PUSH] = self.pushes
        headers[:, FETCHED] = self._fetched
        headers[:, FIRST], headers[:, LAST] = self._batches
        headers[:, ENCODED], headers[:, MARKED] = self._feedback is not None, self._marked
        begin = first * self._chunk
        part = values[..., begin : self._left * self._chunk]
        elements = part.shape[-1]
        for i in range(count):
            headers[i, CHUNK] = first + i
            headers[i, COUNT] = min(self._chunk, elements - i * self._chunk)
        self._left = first
        self.pushes += self.all_taken
        if self._feedback is None:
            return headers, [(0, part)]
        host = self._on_host(part)
        written = self._feedback.encode_chunks(begin, host, self._chunk, self._encoded, self._stride)
        return headers, [(own.start, self._encoded[own]) for own in written]

    def between(self, chunk: int, order: int = 0, count: int = 0) -> np.ndarray:
        """Return the header of a message between two pushes, with a payload of `count` bytes."""
        self._marked = order if chunk == MARK else self._marked
        last = self._batches[1]
        first, encoded = order if chunk == MARK else -1, self._feedback is not None
        self._headers[0] = (self.pushes, chunk, 0, count, first, last, encoded, self._marked)
        return self._headers[:1]
