"""A worker's end of a ring of slots: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.rma.mailboxes import HEADER, names
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.capacity import MailboxGeometry


class Ring:
    """A queue of messages to one server, with its counters.

    `worker` is the index of this worker's ring. `applied_later` says whether the chunks that the rank of the ring
    consumes are applied by others, later.
    """

    def __init__(
        self, window: RemoteMemory, server: int, worker: int, geometry: MailboxGeometry, shard: int = 0,
        encoded: bool = False, applied_later: bool = False,
    ) -> None:  # fmt: skip
        self._window, self._server, self._worker, self._names = window, server, worker, names(shard)
        self._slots, self._stride = geometry.slots, geometry.stride(encoded)
        self._first_slot, self._first_byte = worker * geometry.slots, worker * geometry.ring
        self._published, self._consumed = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._applied = np.zeros(1, np.int64) if applied_later else self._consumed
        self._applied_name = self._names.applied if applied_later else self._names.consumed
        self._unpublished = 0
        # Returns whether the watched counter has reached a number; both are below.
        self._watch: Callable[[], bool] | None = None
        self._watched = self._consumed, 0

    def resume(self) -> np.ndarray | None:
        """Go on behind the messages of another process; return the last one's header, None if there is none."""
        counters = {self._names.published: self._published, self._names.consumed: self._consumed}
        for name, counter in (counters | {self._applied_name: self._applied}).items():
            self._window.get(counter, self._server, name, self._worker)
        self._window.flush(self._server)
        if not self.sent:
            return None
        header = np.zeros(HEADER, np.int64)
        slot = self._slots - 1 - (self.sent - 1) % self._slots
        self._window.get(header, self._server, self._names.headers, (self._first_slot + slot) * HEADER)
        self._window.flush(self._server)
        return header

    @property
    def sent(self) -> int:
        """Messages that have been published."""
        return int(self._published[0])

    # The server's counters.

    @property
    def applied(self) -> bool:
        """Whether the server had applied everything that was sent when it was last asked."""
        return bool(self._applied[0] == self._published[0])

    def has_applied(self) -> bool:
        """Return whether the server has applied everything that was sent; if not, it announces it then."""
        while not self.applied:
            if not self._reached(self._applied_name, self._applied, self.sent):
                return False
        return True

    def has_room(self, slots: int) -> bool:
        """Return whether `slots` slots are free; if not, the server announces it then."""
        while self._free < slots:
            if not self._reached(self._names.consumed, self._consumed, self.sent - self._slots + slots):
                return False
        return True

    def _reached(self, name: str, counter: np.ndarray, least: int) -> bool:
        """Return whether the watched counter has reached its number; if nothing is watched, watch this one first."""
        if self._watch is None:
            self._watch = self._window.watch(self._server, name, self._worker, least)
            self._watched = counter, least
        if not self._watch():
            return False
        watched, reached = self._watched
        self._watch, watched[0] = None, max(int(watched[0]), reached)
        return True

    @property
    def _free(self) -> int:
        """Slots that are free as far as this worker knows."""
        # Of the two counters, which are read one after the other, the later one may be ahead.
        return self._slots - self.sent + max(int(self._consumed[0]), int(self._applied[0]))

    def ask(self) -> None:
        """Start reading the server's counters, unless all has been applied; the caller flushes."""
        if self.applied:
            return
        self._window.get(self._consumed, self._server, self._names.consumed, self._worker)
        if self._applied is not self._consumed:
            self._window.get(self._applied, self._server, self._applied_name, self._worker)

    def get_when(self, values: Any, name: str, offset: int, applied: int) -> None:
        """Start reading a region of the server's memory as soon as it has applied `applied` messages."""
        self._window.get_when(values, self._server, name, offset, self._applied_name, self._worker, applied)

    def note_applied(self, count: int) -> None:
        """Note that the first `count` messages have been applied."""
        for counter in (self._consumed, self._applied):
            np.maximum(counter, count, out=counter)

    # Messages.

    def room(self, wanted: int) -> int:
        """Return how many consecutive slots, at most `wanted`, are free."""
        return min(wanted, self._free, self._slots - self.sent % self._slots)

    def put(self, headers: np.ndarray, parts: Sequence[tuple[int, Any]] = (), zero_copy: bool = False) -> None:
        """Start writing consecutive messages.

        `headers`, int64, has the shape (messages, HEADER). `parts` are the contents of their slots, each with its first
        byte; if `zero_copy`, they are unchanged until the server has been flushed.
        """
        slot = self._slots - self.sent % self._slots - len(headers)
        begin = self._first_byte + slot * self._stride
        for offset, values in parts:
            self._window.put(values, self._server, self._names.slots, begin + offset, zero_copy=zero_copy)
        self._window.put(headers, self._server, self._names.headers, (self._first_slot + slot) * HEADER)
        self._unpublished = len(headers)

    def publish(self) -> None:
        """Start showing the server the messages that were put, after a fence."""
        self._published[0] += self._unpublished
        self._window.put(self._published, self._server, self._names.published, self._worker)
